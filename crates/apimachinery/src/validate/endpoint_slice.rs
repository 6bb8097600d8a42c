//! EndpointSlices: addresses of one type, ports, hints.

use std::collections::BTreeSet;

use model::Family;

use super::Admission;
use super::ip::{address, reachable};
use super::meta::{self, Naming};
use super::ports::{optional_number, protocol, unique_name};
use super::syntax::one_of;
use super::syntax::{dns_label, dns_subdomain, fully_qualified_domain, label_value, qualified_name};
use model::field::{Field, FieldErrors, FormatRule, quoted};

const MAX_ENDPOINTS: usize = 1_000;
const MAX_ADDRESSES: usize = 100;
/// The limit that API servers enforce; the API documentation says 100.
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const MAX_TOPOLOGY_LABELS: usize = 16;

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    let slice = &admission.new;
    meta::check(admission, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, errors);
    let kind = slice.child("addressType");
    let address_type = one_of(&kind, &["IPv4", "IPv6", "FQDN"], errors);
    if !kind.is_nonempty() {
        errors.required(&kind, "is missing: use IPv4, IPv6 or FQDN");
    }
    for endpoint in limited(&slice.child("endpoints"), MAX_ENDPOINTS, errors) {
        check_endpoint(&endpoint, address_type, errors);
    }
    check_ports(&slice.child("ports"), errors);
    if let Some(old) = &admission.old {
        meta::immutable_once_set(&old.child("addressType"), &kind, errors);
    }
}

/// The entries of a list; none if there are too many.
fn limited<'a>(list: &Field<'a>, most: usize, errors: &mut FieldErrors) -> Vec<Field<'a>> {
    if list.item_count() > most {
        errors.too_many(list, format!("{} entries: at most {most}", list.item_count()));
        return Vec::new();
    }
    list.items(errors)
}

fn check_endpoint(endpoint: &Field, address_type: Option<&str>, errors: &mut FieldErrors) {
    let addresses = endpoint.child("addresses");
    if addresses.item_count() == 0 {
        errors.required(&addresses, format!("an endpoint needs 1 to {MAX_ADDRESSES} addresses"));
    }
    for item in limited(&addresses, MAX_ADDRESSES, errors) {
        check_address(&item, address_type, errors);
    }
    let conditions = endpoint.child("conditions").map(errors);
    for name in ["ready", "serving", "terminating"] {
        conditions.child(name).boolean(errors);
    }
    errors.check_format(&endpoint.child("hostname"), dns_label);
    errors.check_format(&endpoint.child("nodeName"), dns_subdomain);
    errors.check_format(&endpoint.child("zone"), label_value);
    let target = endpoint.child("targetRef").map(errors);
    for name in ["kind", "namespace", "name", "uid"] {
        target.child(name).string(errors);
    }
    let topology = endpoint.child("deprecatedTopology");
    meta::labels(&topology, errors);
    if topology.value().as_object().is_some_and(|map| map.len() > MAX_TOPOLOGY_LABELS) {
        errors.too_many(&topology, format!("at most {MAX_TOPOLOGY_LABELS} labels"));
    }
    check_hints(&endpoint.child("hints").map(errors), errors);
}

fn check_address(field: &Field, address_type: Option<&str>, errors: &mut FieldErrors) {
    let family = match address_type {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        Some(_) => {
            errors.check_format(field, fully_qualified_domain);
            return;
        }
        // A missing addressType is reported on its own.
        None => return,
    };
    let Some(address) = address(field, errors) else { return };
    if Family::of(address) == family {
        reachable(address, field, errors);
    } else {
        errors.invalid(field, format!("{address} is not an {family} address, which addressType requires"));
    }
}

fn check_hints(hints: &Field, errors: &mut FieldErrors) {
    let rules: [(&str, FormatRule); 2] = [("forZones", label_value), ("forNodes", dns_subdomain)];
    for (list, rule) in rules {
        let mut seen = BTreeSet::new();
        for hint in limited(&hints.child(list), MAX_HINTS, errors) {
            let name = hint.child("name");
            if !name.is_set() {
                errors.required(&name, "a hint needs the name of a zone or node, e.g. - name: zone-a");
            }
            let Some(text) = name.string(errors) else { continue };
            errors.invalid_if(&name, rule(text));
            if !seen.insert(text) {
                errors.duplicate(&name, format!("{} occurs twice", quoted(text)));
            }
        }
    }
}

fn check_ports(list: &Field, errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for port in limited(list, MAX_PORTS, errors) {
        let name = port.child("name");
        // An absent name is the empty one; at most one port has it.
        let text = name.string(errors).unwrap_or_default();
        if !text.is_empty() {
            errors.invalid_if(&name, dns_label(text));
        }
        unique_name(&name, text, &mut names, errors);
        protocol(&port.child("protocol"), errors);
        optional_number(&port.child("port"), errors);
        errors.check_format(&port.child("appProtocol"), qualified_name);
    }
}

#[cfg(test)]
mod tests;
