//! Nodes: the fields that Zoneward reads (names, labels, addresses, pod CIDRs, CPU, taints, conditions).

use ipnet::IpNet;
use model::Family;
use model::parse::quantity::millis;
use serde_json::Value;

use super::Admission;
use super::ip::{address, canonical_cidr, one_per_family};
use super::meta::{self, Naming};
use super::syntax::one_of;
use super::syntax::{dns_subdomain, label_value, qualified_name};
use model::field::{Field, FieldErrors, quoted};

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: dns_subdomain, namespaced: false, generated: true }, errors);
    let spec = admission.new.child("spec").map(errors);
    let status = admission.new.child("status").map(errors);
    pod_cidrs(&spec, errors);
    for taint in spec.child("taints").items(errors) {
        check_taint(&taint, errors);
    }
    for list in ["allocatable", "capacity"] {
        cpu(&status.child(list).map(errors).child("cpu"), errors);
    }
    for entry in status.child("addresses").items(errors) {
        node_address(&entry, errors);
    }
    conditions(&status.child("conditions"), errors);
    if let Some(old) = &admission.old {
        let old = old.child("spec");
        for name in ["podCIDRs", "podCIDR", "providerID"] {
            meta::immutable_once_set(&old.child(name), &spec.child(name), errors);
        }
    }
}

fn pod_cidrs(spec: &Field, errors: &mut FieldErrors) {
    let list = spec.child("podCIDRs");
    let items = list.items(errors);
    let read: Vec<IpNet> = items.iter().filter_map(|item| range(item, errors)).collect();
    let families: Vec<Family> = read.iter().map(|range| Family::of(range.addr())).collect();
    one_per_family(&list, &families, "range", errors);
    let single = spec.child("podCIDR");
    let Some(text) = single.nonempty_string(errors) else { return };
    match items.first() {
        Some(first) if first.as_str() != Some(text) => {
            errors.invalid(&single, "must equal the first entry of podCIDRs");
        }
        Some(_) => {}
        None => errors.invalid_if(&single, canonical_cidr(text).err()),
    }
}

fn range(field: &Field, errors: &mut FieldErrors) -> Option<IpNet> {
    let read = canonical_cidr(field.string(errors)?);
    read.map_err(|reason| errors.invalid(field, reason)).ok()
}

fn check_taint(taint: &Field, errors: &mut FieldErrors) {
    let (key, value, effect) = (taint.child("key"), taint.child("value"), taint.child("effect"));
    if key.is_set() {
        errors.check_format(&key, qualified_name);
    } else {
        errors.required(&key, "a taint needs a key");
    }
    errors.check_format(&value, label_value);
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if one_of(&effect, &effects, errors).is_none() && !effect.is_nonempty() {
        errors.required(&effect, "a taint needs an effect: NoSchedule, PreferNoSchedule or NoExecute");
    }
}

/// The expected traffic share of a zone is computed from this (seed 001).
fn cpu(field: &Field, errors: &mut FieldErrors) {
    let text = match field.value() {
        Value::Null => return,
        Value::String(text) => text.clone(),
        // An unquoted 4 is a number in YAML, and the API accepts it.
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    if millis(&text).is_none() {
        errors.invalid(field, format!("{} is not a CPU quantity, e.g. 4 or 3920m", quoted(&text)));
    }
}

fn node_address(entry: &Field, errors: &mut FieldErrors) {
    let (kind, value) = (entry.child("type"), entry.child("address"));
    let kinds = ["Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"];
    match one_of(&kind, &kinds, errors) {
        Some("InternalIP" | "ExternalIP") if value.is_set() => {
            address(&value, errors);
        }
        Some("InternalIP" | "ExternalIP") => {
            errors.required(&value, "an entry of this type needs an IP address");
        }
        Some(_) => {
            value.string(errors);
        }
        None if !kind.is_nonempty() => errors.required(&kind, "an address needs a type, e.g. InternalIP"),
        None => {}
    }
}

/// Conditions of Nodes and Pods.
pub(super) fn conditions(list: &Field, errors: &mut FieldErrors) {
    for condition in list.items(errors) {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        if kind.string(errors).is_none_or(str::is_empty) {
            errors.required(&kind, "a condition needs a type, e.g. Ready");
        }
        let statuses = ["True", "False", "Unknown"];
        if one_of(&status, &statuses, errors).is_none() && !status.is_nonempty() {
            errors.required(
                &status,
                "a condition needs a status: \"True\", \"False\" or \"Unknown\", in quotes",
            );
        }
        meta::time(&condition.child("lastTransitionTime"), errors);
    }
}

#[cfg(test)]
mod tests;
