//! Virtual servers and local routes as text, for `plan node`.

use std::collections::BTreeMap;

use model::ForwardingTable;

use super::backend::IpvsSettings;
use super::kernel::{IpvsKernel, read_routes, read_servers};
use super::message::{VirtualServer, VirtualServerKey};
use super::render;
use super::route::LocalRoute;
use crate::nfnetlink::NetlinkError;
use crate::nftables::diff::DiffLine;

/// What a kernel holds or should hold: object -> content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsListing {
    objects: BTreeMap<String, String>,
    /// The Service of an object, where it is known.
    services: BTreeMap<String, String>,
}

impl IpvsListing {
    /// What a kernel should hold.
    pub fn of(table: &ForwardingTable, settings: &IpvsSettings) -> Self {
        let mut listing = Self::default();
        for (key, wanted) in render::servers(table, settings) {
            let mut reals: Vec<_> = wanted.reals.iter().map(|real| (real.address, real.weight)).collect();
            reals.sort();
            let name = listing.add_server(&key, &wanted.server, reals.into_iter());
            listing.services.insert(name, wanted.service.to_string());
        }
        let frontends = table.services().flat_map(|(_, frontends)| frontends);
        for range in frontends.flat_map(|frontend| render::local_ranges(frontend, &table.node, settings)) {
            listing.add_route(&render::route(range, &table.node));
        }
        listing
    }

    /// What a kernel holds of ours.
    pub fn read(kernel: &mut dyn IpvsKernel) -> Result<Self, NetlinkError> {
        let mut listing = Self::default();
        for (key, held) in read_servers(kernel, |_, server| server.is_ours())? {
            let reals = held.reals.values().map(|real| (real.server.address, real.server.weight));
            listing.add_server(&key, &held.server, reals);
        }
        read_routes(kernel)?.iter().for_each(|route| listing.add_route(route));
        Ok(listing)
    }

    fn add_server(
        &mut self,
        key: &VirtualServerKey,
        server: &VirtualServer,
        reals: impl Iterator<Item = (std::net::SocketAddr, u32)>,
    ) -> String {
        let mut words = vec![server.scheduler.clone()];
        words.extend(server.persistence.map(|seconds| format!("persistent {seconds} s")));
        words.extend(reals.map(|(address, weight)| format!("{address} weight {weight}")));
        let name = format!("virtual server {key}");
        self.objects.insert(name.clone(), words.join(", "));
        name
    }

    fn add_route(&mut self, route: &LocalRoute) {
        let source = route.source.map_or_else(String::new, |source| format!("from {source}"));
        self.objects.insert(format!("local route {}", route.range), source);
    }

    /// The changes from this to another.
    pub fn changes(&self, new: &Self) -> Vec<DiffLine> {
        let line = |does, what: &String, content: &String| {
            let service = new.services.get(what).or_else(|| self.services.get(what));
            let service = service.map_or_else(String::new, |service| format!(" ({service})"));
            let detail = format!("{content}{service}").trim_start().to_owned();
            DiffLine { does, table: "ipvs".to_owned(), what: what.clone(), detail }
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
