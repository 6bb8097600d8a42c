//! Ports of a Service: names, numbers, and conflicts between them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::Spec;
use crate::validate::ports::{
    number_or_name, optional_number, outside_of_range, protocol, service_number, unique_name,
};
use crate::validate::syntax::{dns_label, qualified_name};
use model::field::{Field, FieldErrors};

pub(super) fn check(
    spec: &Spec,
    old: Option<&Spec>,
    node_ports: &RangeInclusive<u16>,
    errors: &mut FieldErrors,
) {
    let list = spec.child("ports");
    let ports = list.items(errors);
    if !list.is_nonempty() && !spec.headless && !spec.is("ExternalName") {
        errors.required(&list, "a Service with a cluster IP needs at least one port, e.g. - port: 80");
    }
    let mut names = BTreeSet::new();
    let (mut ports_seen, mut node_ports_seen) = (BTreeSet::new(), BTreeSet::new());
    let stored: BTreeSet<u16> = old.map(stored_node_ports).unwrap_or_default();
    for port in &ports {
        name(port, ports.len() > 1, &mut names, errors);
        let target = port.child("targetPort");
        number_or_name(&target, errors);
        errors.check_format(&port.child("appProtocol"), qualified_name);
        let protocol = protocol(&port.child("protocol"), errors);
        let number = service_number(&port.child("port"), &target, errors);
        if number.is_some_and(|number| !ports_seen.insert((protocol, number))) {
            errors.duplicate(port, "another port has the same protocol and number");
        }
        if let Some(number) = node_port(port, spec, &stored, node_ports, errors)
            && !node_ports_seen.insert((protocol, number))
        {
            errors.invalid(&port.child("nodePort"), "another port has the same protocol and nodePort");
        }
    }
}

fn name<'a>(port: &Field<'a>, required: bool, names: &mut BTreeSet<&'a str>, errors: &mut FieldErrors) {
    let field = port.child("name");
    match field.nonempty_string(errors) {
        Some(text) => {
            errors.invalid_if(&field, dns_label(text));
            unique_name(&field, text, names, errors);
        }
        None if required => errors.required(&field, "with more than one port, each needs a name, e.g. http"),
        None => {}
    }
}

fn stored_node_ports(old: &Spec) -> BTreeSet<u16> {
    let numbers = old.child("ports").as_items();
    let numbers = numbers.iter().filter_map(|port| port.child("nodePort").value().as_u64());
    numbers.filter_map(|number| u16::try_from(number).ok()).collect()
}

/// A stored node port stays valid if the range changes.
fn node_port(
    port: &Field,
    spec: &Spec,
    stored: &BTreeSet<u16>,
    range: &RangeInclusive<u16>,
    errors: &mut FieldErrors,
) -> Option<u16> {
    let field = port.child("nodePort");
    let number = optional_number(&field, errors)?;
    if spec.is("ClusterIP") {
        errors.forbidden(&field, "requires type NodePort or LoadBalancer");
    } else if !range.contains(&number) && !stored.contains(&number) {
        errors.invalid(&field, outside_of_range(number, range));
    }
    Some(number)
}
