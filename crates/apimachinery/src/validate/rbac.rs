//! Roles and bindings.

use super::Admission;
use super::meta::{self, Naming};
use super::syntax::{dns_subdomain, label_value, path_segment, qualified_name};
use crate::rbac::GROUP;
use model::field::{Field, FieldErrors, not_one_of};

/// Checks a Role or ClusterRole.
pub(super) fn role(admission: &Admission, namespaced: bool, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: path_segment, namespaced, generated: true }, errors);
    for rule in admission.new.child("rules").items(errors) {
        check_rule(&rule, namespaced, errors);
    }
    let aggregation = admission.new.child("aggregationRule");
    if !namespaced && aggregation.is_set() {
        let selectors = aggregation.map(errors).child("clusterRoleSelectors");
        if !selectors.is_nonempty() {
            errors.required(
                &selectors,
                "at least one clusterRoleSelector required if aggregationRule is non-nil",
            );
        }
        for selector in selectors.items(errors) {
            check_selector(&selector, errors);
        }
    }
}

fn check_rule(rule: &Field, namespaced: bool, errors: &mut FieldErrors) {
    let (verbs, urls) = (rule.child("verbs"), rule.child("nonResourceURLs"));
    if verbs.items(errors).is_empty() {
        errors.required(&verbs, "verbs must contain at least one value");
    }
    let [groups, resources, names] = ["apiGroups", "resources", "resourceNames"].map(|name| rule.child(name));
    if urls.is_nonempty() {
        if namespaced {
            errors.invalid(&urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if [groups, resources, names].iter().any(Field::is_nonempty) {
            errors.invalid(&urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if groups.items(errors).is_empty() {
        errors.required(&groups, "resource rules must supply at least one api group");
    }
    if resources.items(errors).is_empty() {
        errors.required(&resources, "resource rules must supply at least one resource");
    }
}

/// A label selector; one that cannot be used is also an error of the whole, as in kube-apiserver.
fn check_selector(selector: &Field, errors: &mut FieldErrors) {
    let labels = selector.child("matchLabels");
    let mut usable = true;
    for (key, value) in labels.entries(errors) {
        let text = value.as_str().unwrap_or_default();
        usable &= qualified_name(key).is_none() && label_value(text).is_none();
    }
    meta::labels(&labels, errors);
    for expression in selector.child("matchExpressions").items(errors) {
        let (key, operator, values) =
            (expression.child("key"), expression.child("operator"), expression.child("values"));
        let word = operator.as_str().unwrap_or_default();
        match word {
            "In" | "NotIn" if !values.is_nonempty() => {
                errors.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
                usable = false;
            }
            "Exists" | "DoesNotExist" if values.is_nonempty() => {
                errors
                    .forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
                usable = false;
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                errors.invalid(&operator, "not a valid selector operator");
                usable = false;
            }
        }
        let fault = qualified_name(key.as_str().unwrap_or_default());
        usable &= fault.is_none();
        errors.invalid_if(&key, fault);
        for value in values.items(errors) {
            let fault = label_value(value.as_str().unwrap_or_default());
            usable &= fault.is_none();
            errors.invalid_if(&value, fault);
        }
    }
    if !usable {
        errors.invalid(selector, "invalid label selector");
    }
}

/// Checks a RoleBinding or ClusterRoleBinding.
pub(super) fn binding(admission: &Admission, namespaced: bool, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: path_segment, namespaced, generated: true }, errors);
    let reference = admission.new.child("roleRef");
    check_reference(&reference, namespaced, errors);
    for subject in admission.new.child("subjects").items(errors) {
        check_subject(&subject, namespaced, errors);
    }
    if let Some(old) = &admission.old
        && !model::json::same(old.child("roleRef").value(), reference.value())
    {
        errors.invalid(&reference, "cannot change roleRef");
    }
}

fn check_reference(reference: &Field, namespaced: bool, errors: &mut FieldErrors) {
    let (group, kind, name) = (reference.child("apiGroup"), reference.child("kind"), reference.child("name"));
    let given = group.as_str().unwrap_or_default();
    if !matches!(given, "" | GROUP) {
        errors.not_supported(&group, not_one_of(given, &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let word = kind.as_str().unwrap_or_default();
    if !kinds.contains(&word) {
        errors.not_supported(&kind, not_one_of(word, kinds));
    }
    match name.as_nonempty_str() {
        Some(text) => errors.invalid_if(&name, path_segment(text)),
        None => errors.required(&name, ""),
    }
}

fn check_subject(subject: &Field, namespaced: bool, errors: &mut FieldErrors) {
    let [kind, group, name, namespace] =
        ["kind", "apiGroup", "name", "namespace"].map(|name| subject.child(name));
    if !name.is_nonempty() {
        errors.required(&name, "");
    }
    let given = group.as_str().unwrap_or_default();
    match kind.as_str().unwrap_or_default() {
        "ServiceAccount" => {
            if let Some(text) = name.as_nonempty_str() {
                errors.invalid_if(&name, dns_subdomain(text));
            }
            if !given.is_empty() {
                errors.not_supported(&group, not_one_of(given, &[""]));
            }
            if !namespaced && !namespace.is_nonempty() {
                errors.required(&namespace, "");
            }
        }
        // An absent group is defaulted.
        "User" | "Group" => {
            if !matches!(given, "" | GROUP) {
                errors.not_supported(&group, not_one_of(given, &[GROUP]));
            }
        }
        other => errors.not_supported(&kind, not_one_of(other, &["ServiceAccount", "User", "Group"])),
    }
}
