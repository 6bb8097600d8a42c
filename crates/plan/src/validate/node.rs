//! Nodes: what we read of them (names, labels, addresses, ranges, CPU, taints, conditions).

use ipnet::IpNet;
use model::Family;
use model::parse::quantity::millis;
use serde_json::Value;

use super::Change;
use super::field::{Field, Findings, one_of, quoted};
use super::ip::{address, canonical_cidr, one_per_family};
use super::meta::{self, Naming};
use super::syntax::{dns_subdomain, label_value, qualified_name};

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: false, generated: true }, findings);
    let spec = change.new.child("spec").map(findings);
    let status = change.new.child("status").map(findings);
    pod_cidrs(&spec, findings);
    for taint in spec.child("taints").items(findings) {
        check_taint(&taint, findings);
    }
    for list in ["allocatable", "capacity"] {
        cpu(&status.child(list).map(findings).child("cpu"), findings);
    }
    for entry in status.child("addresses").items(findings) {
        node_address(&entry, findings);
    }
    conditions(&status.child("conditions"), findings);
    if let Some(old) = &change.old {
        let old = old.child("spec");
        for name in ["podCIDRs", "podCIDR", "providerID"] {
            meta::fixed(&old.child(name), &spec.child(name), findings);
        }
    }
}

fn pod_cidrs(spec: &Field, findings: &mut Findings) {
    let list = spec.child("podCIDRs");
    let items = list.items(findings);
    let read: Vec<IpNet> = items.iter().filter_map(|item| range(item, findings)).collect();
    let families: Vec<Family> = read.iter().map(|range| Family::of(range.addr())).collect();
    one_per_family(&list, &families, "range", findings);
    let single = spec.child("podCIDR");
    let Some(text) = single.nonempty(findings) else { return };
    match items.first() {
        Some(first) if first.peek_text() != Some(text) => {
            findings.refuse(&single, "the first of podCIDRs stands here too: make them equal");
        }
        Some(_) => {}
        None => findings.refuse_if(&single, canonical_cidr(text).err()),
    }
}

fn range(field: &Field, findings: &mut Findings) -> Option<IpNet> {
    let read = canonical_cidr(field.text(findings)?);
    read.map_err(|reason| findings.refuse(field, reason)).ok()
}

fn check_taint(taint: &Field, findings: &mut Findings) {
    let (key, value, effect) = (taint.child("key"), taint.child("value"), taint.child("effect"));
    if key.is_set() {
        findings.spelled(&key, qualified_name);
    } else {
        findings.require(&key, "a taint needs its key");
    }
    findings.spelled(&value, label_value);
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if one_of(&effect, &effects, findings).is_none() && !effect.is_given() {
        findings.require(&effect, "a taint needs its effect: NoSchedule, PreferNoSchedule or NoExecute");
    }
}

/// The share of traffic that a zone is expected to send comes from this (seed 001), so it has to be readable.
fn cpu(field: &Field, findings: &mut Findings) {
    let text = match field.value() {
        Value::Null => return,
        Value::String(text) => text.clone(),
        // YAML reads a bare 4 as a number, and the API takes it.
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    if millis(&text).is_none() {
        findings.refuse(field, format!("{} is not an amount of CPU, as 4 or 3920m would be", quoted(&text)));
    }
}

fn node_address(entry: &Field, findings: &mut Findings) {
    let (kind, value) = (entry.child("type"), entry.child("address"));
    let kinds = ["Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"];
    match one_of(&kind, &kinds, findings) {
        Some("InternalIP" | "ExternalIP") if value.is_set() => {
            address(&value, findings);
        }
        Some("InternalIP" | "ExternalIP") => {
            findings.require(&value, "an entry of this type needs its IP address");
        }
        Some(_) => {
            value.text(findings);
        }
        None if !kind.is_given() => findings.require(&kind, "say what the address is, as InternalIP"),
        None => {}
    }
}

/// Conditions of Nodes and Pods: a type and one of three answers.
pub(super) fn conditions(list: &Field, findings: &mut Findings) {
    for condition in list.items(findings) {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        if kind.text(findings).is_none_or(str::is_empty) {
            findings.require(&kind, "a condition needs its type, as Ready");
        }
        let answers = ["True", "False", "Unknown"];
        if one_of(&status, &answers, findings).is_none() && !status.is_given() {
            findings.require(
                &status,
                "a condition needs its status: \"True\", \"False\" or \"Unknown\", in quotes",
            );
        }
        meta::time(&condition.child("lastTransitionTime"), findings);
    }
}

#[cfg(test)]
mod tests;
