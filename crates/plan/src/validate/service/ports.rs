//! The ports of a Service: names, numbers, and no two that would catch the same packet.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::Spec;
use crate::validate::field::{Field, Findings};
use crate::validate::ports::{number_or_name, optional_number, protocol, service_number, unique_name};
use crate::validate::syntax::{dns_label, qualified_name};

pub(super) fn check(
    spec: &Spec,
    old: Option<&Spec>,
    node_ports: &RangeInclusive<u16>,
    findings: &mut Findings,
) {
    let list = spec.child("ports");
    let ports = list.items(findings);
    if !list.is_given() && !spec.headless && !spec.is("ExternalName") {
        findings.require(&list, "a Service with a cluster IP needs at least one port, as - port: 80");
    }
    let mut names = BTreeSet::new();
    let (mut caught, mut caught_on_nodes) = (BTreeSet::new(), BTreeSet::new());
    let stored: BTreeSet<u16> = old.map(stored_node_ports).unwrap_or_default();
    for port in &ports {
        name(port, ports.len() > 1, &mut names, findings);
        let target = port.child("targetPort");
        number_or_name(&target, findings);
        findings.spelled(&port.child("appProtocol"), qualified_name);
        let protocol = protocol(&port.child("protocol"), findings);
        let number = service_number(&port.child("port"), &target, findings);
        if number.is_some_and(|number| !caught.insert((protocol, number))) {
            findings.repeated(port, "another port has the same protocol and number: each pair stands once");
        }
        if let Some(number) = node_port(port, spec, &stored, node_ports, findings)
            && !caught_on_nodes.insert((protocol, number))
        {
            findings.refuse(&port.child("nodePort"), "another port has the same protocol and nodePort");
        }
    }
}

fn name<'a>(port: &Field<'a>, required: bool, names: &mut BTreeSet<&'a str>, findings: &mut Findings) {
    let field = port.child("name");
    match field.nonempty(findings) {
        Some(text) => {
            findings.refuse_if(&field, dns_label(text));
            unique_name(&field, text, names, findings);
        }
        None if required => findings.require(&field, "with more than one port each needs a name, as http"),
        None => {}
    }
}

fn stored_node_ports(old: &Spec) -> BTreeSet<u16> {
    let numbers = old.child("ports").peek_items();
    let numbers = numbers.iter().filter_map(|port| port.child("nodePort").value().as_u64());
    numbers.filter_map(|number| u16::try_from(number).ok()).collect()
}

/// A port that is held already stays good, whatever the range is now.
fn node_port(
    port: &Field,
    spec: &Spec,
    stored: &BTreeSet<u16>,
    range: &RangeInclusive<u16>,
    findings: &mut Findings,
) -> Option<u16> {
    let field = port.child("nodePort");
    let number = optional_number(&field, findings)?;
    if spec.is("ClusterIP") {
        findings
            .forbid(&field, "counts only with type NodePort or LoadBalancer: set that, or leave this out");
    } else if !range.contains(&number) && !stored.contains(&number) {
        let (first, last) = (range.start(), range.end());
        findings.refuse(&field, format!("{number} is not within the cluster's range: {first} to {last}"));
    }
    Some(number)
}
