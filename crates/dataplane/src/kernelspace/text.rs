//! HCN objects as text, for `plan node`.

use std::collections::BTreeMap;

use super::object::{BY_CLIENT, HcnEndpoint};
use super::render::{HcnObjects, WantedLoadBalancer};
use crate::nftables::diff::DiffLine;

/// What HNS holds or should hold of ours: object -> content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcnListing {
    objects: BTreeMap<String, String>,
}

impl HcnListing {
    pub fn of(rendered: &HcnObjects) -> Self {
        let endpoints = rendered.endpoints.values().map(endpoint);
        let load_balancers = rendered.load_balancers.values().map(load_balancer);
        Self { objects: endpoints.chain(load_balancers).collect() }
    }

    /// The changes from this to another.
    pub fn changes(&self, new: &Self) -> Vec<DiffLine> {
        let line = |does, what: &String, content: &String| DiffLine {
            does,
            table: "hns".to_owned(),
            what: what.clone(),
            detail: content.clone(),
        };
        let added = new.objects.iter().filter_map(|(what, content)| match self.objects.get(what) {
            None => Some(line("add", what, content)),
            Some(held) if held != content => Some(line("replace", what, content)),
            Some(_) => None,
        });
        let gone = self.objects.iter().filter(|(what, _)| !new.objects.contains_key(*what));
        added.chain(gone.map(|(what, content)| line("delete", what, content))).collect()
    }
}

fn endpoint(endpoint: &HcnEndpoint) -> (String, String) {
    let addresses: Vec<String> = endpoint.addresses().map(|address| address.to_string()).collect();
    let mut text = format!("remote, {}", endpoint.mac_address);
    if let Some(provider) = endpoint.provider() {
        text += &format!(", on node {provider}");
    }
    (format!("endpoint {}", addresses.join(" ")), text)
}

fn load_balancer(wanted: &WantedLoadBalancer) -> (String, String) {
    let object = &wanted.object;
    let mut words = Vec::new();
    for mapping in &object.port_mappings {
        let addresses: Vec<String> = wanted.endpoints.iter().map(ToString::to_string).collect();
        words.push(format!("to port {} of {}", mapping.internal_port, addresses.join(" ")));
        if mapping.distribution_type == BY_CLIENT {
            words.push("by client address".to_owned());
        }
    }
    if object.is_dsr() {
        words.push("DSR".to_owned());
    }
    words.extend(object.source_vip.map(|source| format!("source VIP {source}")));
    (format!("load balancer {}", wanted.address), format!("{} ({})", words.join(", "), wanted.service))
}
