//! Pods: the fields that Zoneward reads (names, labels, node, addresses, ports, conditions).

use std::collections::BTreeSet;

use model::Family;

use super::Admission;
use super::ip::{address, one_per_family};
use super::meta::{self, Naming};
use super::node::conditions;
use super::ports::{optional_number, protocol, required_number, unique_name};
use super::syntax::one_of;
use super::syntax::{dns_label, dns_subdomain, port_name};
use model::field::{Field, FieldErrors, quoted};

const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];

const NAMING: Naming = Naming { rule: dns_subdomain, namespaced: true, generated: true };

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    meta::check(admission, &NAMING, errors);
    let spec = admission.new.child("spec").map(errors);
    let before = admission.old.as_ref().map(|old| old.child("spec"));
    // An unchanged spec is valid: most updates of a Pod change its status.
    if before.as_ref().is_none_or(|before| before.value() != spec.value()) {
        check_spec(&spec, errors);
    }
    check_status(&admission.new.child("status").map(errors), errors);
    match before {
        Some(before) => update::check(&before, &spec, errors),
        None if spec.child("ephemeralContainers").is_nonempty() => {
            let reason = "cannot be set on create";
            errors.forbidden(&spec.child("ephemeralContainers"), reason);
        }
        None => {}
    }
}

fn check_spec(spec: &Field, errors: &mut FieldErrors) {
    errors.check_format_if_set(&spec.child("nodeName"), dns_subdomain);
    errors.check_format_if_set(&spec.child("hostname"), dns_label);
    errors.check_format_if_set(&spec.child("subdomain"), dns_label);
    one_of(&spec.child("restartPolicy"), &["Always", "OnFailure", "Never"], errors);
    one_of(&spec.child("dnsPolicy"), &DNS_POLICIES, errors);
    deadline(&spec.child("activeDeadlineSeconds"), errors);
    let readable = !spec.is_set() || spec.value().is_object();
    if readable && !spec.child("containers").is_nonempty() {
        errors.required(&spec.child("containers"), "a Pod needs at least one container");
    }
    let mut names = BTreeSet::new();
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items(errors) {
            check_container(&container, &mut names, errors);
        }
    }
    for container in spec.child("ephemeralContainers").items(errors) {
        check_container(&container, &mut names, errors);
    }
}

fn deadline(field: &Field, errors: &mut FieldErrors) {
    let seconds = field.integer(errors);
    if seconds.is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        errors.invalid(field, format!("must be between 1 and {} seconds", i32::MAX));
    }
}

fn check_container<'a>(container: &Field<'a>, names: &mut BTreeSet<&'a str>, errors: &mut FieldErrors) {
    let (name, image) = (container.child("name"), container.child("image"));
    if let Some(text) = name.nonempty_string(errors) {
        errors.invalid_if(&name, dns_label(text));
        if !names.insert(text) {
            errors.duplicate(&name, format!("another container is named {}", quoted(text)));
        }
    } else if !name.is_nonempty() {
        errors.required(&name, "a container needs a name");
    }
    if image.string(errors).is_none_or(str::is_empty) && !image.is_nonempty() {
        errors.required(&image, "a container needs an image, e.g. registry.example/web:1");
    }
    one_of(&container.child("imagePullPolicy"), &["Always", "IfNotPresent", "Never"], errors);
    one_of(&container.child("restartPolicy"), &["Always", "OnFailure", "Never"], errors);
    let mut names = BTreeSet::new();
    for port in container.child("ports").items(errors) {
        required_number(&port.child("containerPort"), errors);
        optional_number(&port.child("hostPort"), errors);
        protocol(&port.child("protocol"), errors);
        let name = port.child("name");
        if let Some(text) = name.nonempty_string(errors) {
            errors.invalid_if(&name, port_name(text));
            unique_name(&name, text, &mut names, errors);
        }
    }
}

fn check_status(status: &Field, errors: &mut FieldErrors) {
    one_of(&status.child("phase"), &["Pending", "Running", "Succeeded", "Failed", "Unknown"], errors);
    conditions(&status.child("conditions"), errors);
    let list = status.child("podIPs");
    let items: Vec<Field> = list.items(errors).into_iter().map(|item| item.child("ip")).collect();
    let mut families = Vec::new();
    for item in &items {
        if !item.is_set() {
            errors.required(item, "an entry needs an address, e.g. - ip: 10.0.1.5");
        }
        families.extend(address(item, errors).map(Family::of));
    }
    one_per_family(&list, &families, "address", errors);
    let single = status.child("podIP");
    let Some(text) = single.nonempty_string(errors) else { return };
    match items.first() {
        Some(first) if first.as_str() != Some(text) => {
            errors.invalid(&single, "must equal the first entry of podIPs");
        }
        Some(_) => {}
        None => {
            address(&single, errors);
        }
    }
}

#[cfg(test)]
mod tests;
mod update;
