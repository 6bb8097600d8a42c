//! Pods: what we read of them (names, labels, node, addresses, ports, conditions).

use std::collections::BTreeSet;

use model::Family;

use super::Change;
use super::field::{Field, Findings, one_of, quoted};
use super::ip::{address, one_per_family};
use super::meta::{self, Naming};
use super::node::conditions;
use super::ports::{optional_number, protocol, required_number, unique_name};
use super::syntax::{dns_label, dns_subdomain, port_name};

const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, findings);
    let spec = change.new.child("spec").map(findings);
    let before = change.old.as_ref().map(|old| old.child("spec"));
    // What is as it was stored has passed already; most writes to a Pod are about its status.
    if before.as_ref().is_none_or(|before| before.value() != spec.value()) {
        check_spec(&spec, findings);
    }
    check_status(&change.new.child("status").map(findings), findings);
    if let Some(before) = before {
        update::check(&before, &spec, findings);
    }
}

fn check_spec(spec: &Field, findings: &mut Findings) {
    findings.spelled_if_given(&spec.child("nodeName"), dns_subdomain);
    findings.spelled_if_given(&spec.child("hostname"), dns_label);
    findings.spelled_if_given(&spec.child("subdomain"), dns_label);
    one_of(&spec.child("restartPolicy"), &["Always", "OnFailure", "Never"], findings);
    one_of(&spec.child("dnsPolicy"), &DNS_POLICIES, findings);
    deadline(&spec.child("activeDeadlineSeconds"), findings);
    let readable = !spec.is_set() || spec.value().is_object();
    if readable && !spec.child("containers").is_given() {
        findings.require(&spec.child("containers"), "a Pod runs at least one container");
    }
    let mut names = BTreeSet::new();
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items(findings) {
            check_container(&container, &mut names, findings);
        }
    }
}

fn deadline(field: &Field, findings: &mut Findings) {
    let seconds = field.integer(findings);
    if seconds.is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        findings.refuse(field, format!("from 1 to {} seconds", i32::MAX));
    }
}

fn check_container<'a>(container: &Field<'a>, names: &mut BTreeSet<&'a str>, findings: &mut Findings) {
    let (name, image) = (container.child("name"), container.child("image"));
    if let Some(text) = name.nonempty(findings) {
        findings.refuse_if(&name, dns_label(text));
        if !names.insert(text) {
            findings.repeated(&name, format!("another container is named {} too", quoted(text)));
        }
    } else if !name.is_given() {
        findings.require(&name, "a container needs a name");
    }
    if image.text(findings).is_none_or(str::is_empty) && !image.is_given() {
        findings.require(&image, "a container needs the image that it runs, as registry.example/web:1");
    }
    one_of(&container.child("imagePullPolicy"), &["Always", "IfNotPresent", "Never"], findings);
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
            findings.require(item, "each entry holds one address, as - ip: 10.0.1.5");
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

#[cfg(test)]
mod tests;
mod update;
