//! Pods: what we read of them (names, labels, node, addresses, ports, conditions).

use std::collections::BTreeSet;

use model::Family;

use super::Change;
use super::field::{Field, Findings, one_of};
use super::ip::{address, one_per_family};
use super::meta::{self, Naming};
use super::node::conditions;
use super::ports::{optional_number, protocol, required_number, unique_name};
use super::syntax::{dns_label, dns_subdomain, port_name};

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, findings);
    let spec = change.new.child("spec").map(findings);
    findings.spelled_if_given(&spec.child("nodeName"), dns_subdomain);
    findings.spelled_if_given(&spec.child("hostname"), dns_label);
    findings.spelled_if_given(&spec.child("subdomain"), dns_label);
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items(findings) {
            check_container(&container, findings);
        }
    }
    check_status(&change.new.child("status").map(findings), findings);
    if let Some(old) = &change.old {
        unchanged(&old.child("spec"), &spec, findings);
    }
}

fn check_container(container: &Field, findings: &mut Findings) {
    let name = container.child("name");
    if name.is_set() {
        findings.spelled(&name, dns_label);
    } else {
        findings.refuse(&name, "a container needs a name");
    }
    one_of(&container.child("restartPolicy"), &["Always", "OnFailure", "Never"], findings);
    let mut names = BTreeSet::new();
    for port in container.child("ports").items(findings) {
        required_number(&port.child("containerPort"), findings);
        optional_number(&port.child("hostPort"), findings);
        protocol(&port.child("protocol"), findings);
        let name = port.child("name");
        if let Some(text) = name.nonempty(findings) {
            findings.refuse_if(&name, port_name(text));
            unique_name(&name, text, &mut names, findings);
        }
    }
}

fn check_status(status: &Field, findings: &mut Findings) {
    one_of(&status.child("phase"), &["Pending", "Running", "Succeeded", "Failed", "Unknown"], findings);
    conditions(&status.child("conditions"), findings);
    let list = status.child("podIPs");
    let items: Vec<Field> = list.items(findings).into_iter().map(|item| item.child("ip")).collect();
    let mut families = Vec::new();
    for item in &items {
        if !item.is_set() {
            findings.refuse(item, "each entry holds one address, as - ip: 10.0.1.5");
        }
        families.extend(address(item, findings).map(Family::of));
    }
    one_per_family(&list, &families, "address", findings);
    let single = status.child("podIP");
    let Some(text) = single.nonempty(findings) else { return };
    match items.first() {
        Some(first) if first.peek_text() != Some(text) => {
            findings.refuse(&single, "the first of podIPs stands here too: make them equal");
        }
        Some(_) => {}
        None => {
            address(&single, findings);
        }
    }
}

/// Of a Pod's spec, what decides where its traffic goes is fixed; a node may be given once.
fn unchanged(old: &Field, new: &Field, findings: &mut Findings) {
    meta::fixed(&old.child("nodeName"), &new.child("nodeName"), findings);
    for name in ["hostname", "subdomain"] {
        let (before, after) = (old.child(name), new.child(name));
        if before.peek_nonempty() != after.peek_nonempty() {
            findings.refuse(&after, "cannot change: replace the Pod");
        }
    }
    for list in ["containers", "initContainers"] {
        let (before, after) = (old.child(list), new.child(list));
        if ports_of(&before) != ports_of(&after) {
            findings.refuse(&after, "the ports of a Pod's containers cannot change: replace the Pod");
        }
    }
}

/// The ports of each container, with what the API server fills in.
fn ports_of<'a>(list: &Field<'a>) -> Vec<Vec<(&'a str, &'a str, i64)>> {
    let port = |port: &Field<'a>| {
        let protocol = port.child("protocol").peek_nonempty().unwrap_or("TCP");
        let number = port.child("containerPort").value().as_i64().unwrap_or_default();
        (port.child("name").peek_text().unwrap_or_default(), protocol, number)
    };
    let ports = |container: &Field<'a>| container.child("ports").peek_items().iter().map(port).collect();
    list.peek_items().iter().map(ports).collect()
}

#[cfg(test)]
mod tests;
