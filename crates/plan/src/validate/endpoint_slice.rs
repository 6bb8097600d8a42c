//! EndpointSlices: addresses of one type, ports, and hints for who should use them.

use std::collections::BTreeSet;

use model::Family;

use super::Change;
use super::field::{Field, Findings, one_of, quoted};
use super::ip::{address, reachable};
use super::meta::{self, Naming};
use super::ports::{optional_number, protocol, unique_name};
use super::syntax::{Rule, dns_label, dns_subdomain, fully_qualified_domain, label_value, qualified_name};

const MAX_ENDPOINTS: usize = 1_000;
const MAX_ADDRESSES: usize = 100;
/// What API servers enforce; the API's own comment still says 100.
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const MAX_TOPOLOGY_LABELS: usize = 16;

pub(super) fn check(change: &Change, findings: &mut Findings) {
    let slice = &change.new;
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, findings);
    let kind = slice.child("addressType");
    let address_type = one_of(&kind, &["IPv4", "IPv6", "FQDN"], findings);
    if !kind.is_given() {
        findings.require(&kind, "say what the addresses are: IPv4, IPv6 or FQDN");
    }
    for endpoint in limited(&slice.child("endpoints"), MAX_ENDPOINTS, findings) {
        check_endpoint(&endpoint, address_type, findings);
    }
    check_ports(&slice.child("ports"), findings);
    if let Some(old) = &change.old {
        meta::fixed(&old.child("addressType"), &kind, findings);
    }
}

/// The entries of a list, unless there are too many: then only that is said.
fn limited<'a>(list: &Field<'a>, most: usize, findings: &mut Findings) -> Vec<Field<'a>> {
    if list.count() > most {
        findings.too_many(list, format!("{} entries: at most {most}", list.count()));
        return Vec::new();
    }
    list.items(findings)
}

fn check_endpoint(endpoint: &Field, address_type: Option<&str>, findings: &mut Findings) {
    let addresses = endpoint.child("addresses");
    if addresses.count() == 0 {
        findings.require(&addresses, format!("an endpoint has 1 to {MAX_ADDRESSES} addresses"));
    }
    for item in limited(&addresses, MAX_ADDRESSES, findings) {
        check_address(&item, address_type, findings);
    }
    let conditions = endpoint.child("conditions").map(findings);
    for name in ["ready", "serving", "terminating"] {
        conditions.child(name).flag(findings);
    }
    findings.spelled(&endpoint.child("hostname"), dns_label);
    findings.spelled(&endpoint.child("nodeName"), dns_subdomain);
    findings.spelled(&endpoint.child("zone"), label_value);
    let target = endpoint.child("targetRef").map(findings);
    for name in ["kind", "namespace", "name", "uid"] {
        target.child(name).text(findings);
    }
    let topology = endpoint.child("deprecatedTopology");
    meta::labels(&topology, findings);
    if topology.value().as_object().is_some_and(|map| map.len() > MAX_TOPOLOGY_LABELS) {
        findings.too_many(&topology, format!("at most {MAX_TOPOLOGY_LABELS} labels"));
    }
    check_hints(&endpoint.child("hints").map(findings), findings);
}

fn check_address(field: &Field, address_type: Option<&str>, findings: &mut Findings) {
    let family = match address_type {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        Some(_) => {
            findings.spelled(field, fully_qualified_domain);
            return;
        }
        // Without a type there is nothing to hold the address against.
        None => return,
    };
    let Some(address) = address(field, findings) else { return };
    if Family::of(address) == family {
        reachable(address, field, findings);
    } else {
        findings.refuse(field, format!("{address} is not of the slice's addressType: {family} is"));
    }
}

fn check_hints(hints: &Field, findings: &mut Findings) {
    let rules: [(&str, Rule); 2] = [("forZones", label_value), ("forNodes", dns_subdomain)];
    for (list, rule) in rules {
        let mut seen = BTreeSet::new();
        for hint in limited(&hints.child(list), MAX_HINTS, findings) {
            let name = hint.child("name");
            if !name.is_set() {
                findings.require(&name, "a hint names one zone or node, as - name: zone-a");
            }
            let Some(text) = name.text(findings) else { continue };
            findings.refuse_if(&name, rule(text));
            if !seen.insert(text) {
                findings.repeated(&name, format!("{} stands here twice: once is enough", quoted(text)));
            }
        }
    }
}

fn check_ports(list: &Field, findings: &mut Findings) {
    let mut names = BTreeSet::new();
    for port in limited(list, MAX_PORTS, findings) {
        let name = port.child("name");
        // A missing name is the empty one, and only one port may be without.
        let text = name.text(findings).unwrap_or_default();
        if !text.is_empty() {
            findings.refuse_if(&name, dns_label(text));
        }
        unique_name(&name, text, &mut names, findings);
        protocol(&port.child("protocol"), findings);
        optional_number(&port.child("port"), findings);
        findings.spelled(&port.child("appProtocol"), qualified_name);
    }
}

#[cfg(test)]
mod tests;
