//! What all kinds share: names, namespaces, labels, annotations, owners, times.

use model::Timestamp;
use serde_json::Value;

use super::Change;
use super::field::{Field, Findings, quoted};
use super::syntax::{Rule, dns_label, label_value, qualified_name};

/// All annotations of an object together, keys and values.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// What is particular about the metadata of a kind.
pub(super) struct Naming {
    /// The spelling of its names.
    pub(super) rule: Rule,
    /// Whether its objects live in namespaces.
    pub(super) namespaced: bool,
    /// Whether the API server may make up the end of a name.
    pub(super) generated: bool,
}

/// Checks `metadata`, and on an update what may not change in it.
pub(super) fn check(change: &Change, naming: &Naming, findings: &mut Findings) {
    let meta = change.new.child("metadata").map(findings);
    name(&meta, naming, findings);
    namespace(&meta, naming, findings);
    labels(&meta.child("labels"), findings);
    annotations(&meta.child("annotations"), findings);
    finalizers(&meta.child("finalizers"), findings);
    owners(&meta.child("ownerReferences"), findings);
    for field in ["creationTimestamp", "deletionTimestamp"] {
        time(&meta.child(field), findings);
    }
    meta.child("uid").text(findings);
    meta.child("resourceVersion").text(findings);
    if let Some(old) = &change.old {
        identity(&old.child("metadata"), &meta, findings);
    }
}

fn name(meta: &Field, naming: &Naming, findings: &mut Findings) {
    let (name, prefix) = (meta.child("name"), meta.child("generateName"));
    let given = name.nonempty(findings);
    let generated = prefix.nonempty(findings).filter(|_| naming.generated);
    if let Some(text) = given {
        findings.refuse_if(&name, (naming.rule)(text));
    } else if generated.is_none() && !name.is_given() {
        let or = if naming.generated { ", or generateName to have its end made up" } else { "" };
        findings.require(&name, format!("an object needs a name{or}"));
    }
    if let Some(text) = generated {
        // What the server appends starts with a letter or digit, so a prefix may end in a dash.
        let cut = text.strip_suffix('-').filter(|cut| !cut.is_empty());
        let ended = cut.map_or(text.to_owned(), |cut| format!("{cut}a"));
        let good = (naming.rule)(&ended).is_none();
        findings.refuse_if(&prefix, (naming.rule)(text).filter(|_| !good));
    }
}

fn namespace(meta: &Field, naming: &Naming, findings: &mut Findings) {
    let field = meta.child("namespace");
    let Some(text) = field.nonempty(findings) else { return };
    if naming.namespaced {
        findings.refuse_if(&field, dns_label(text));
    } else {
        findings.refuse(&field, "objects of this kind belong to the cluster: leave the namespace out");
    }
}

/// Labels, or the pairs of a selector. API servers call the whole map by its name, so the sentence says which pair.
pub(super) fn labels(field: &Field, findings: &mut Findings) {
    for (key, value) in field.entries(findings) {
        findings.refuse_if(field, qualified_name(key));
        if let Some(text) = pair_value(&value, findings) {
            let reason = label_value(text).map(|reason| format!("of {}, {reason}", quoted(key)));
            findings.refuse_if(field, reason);
        }
    }
}

fn annotations(field: &Field, findings: &mut Findings) {
    let mut size = 0usize;
    for (key, value) in field.entries(findings) {
        // Annotations forgive capitals in the domain of their keys; labels do not.
        findings.refuse_if(field, qualified_name(&key.to_ascii_lowercase()));
        let text = pair_value(&value, findings).unwrap_or_default();
        size = size.saturating_add(key.len()).saturating_add(text.len());
    }
    if size > MAX_ANNOTATIONS {
        findings.too_long(field, format!("{size} bytes in all: at most {MAX_ANNOTATIONS} are kept"));
    }
}

/// YAML makes numbers and truth values of what looks like one; the API wants texts.
fn pair_value<'a>(value: &Field<'a>, findings: &mut Findings) -> Option<&'a str> {
    match value.value() {
        Value::String(text) => return Some(text),
        Value::Number(_) | Value::Bool(_) => {
            let reason = format!("only a text can stand here: write \"{}\", in quotes", value.value());
            findings.refuse(value, reason);
        }
        _ => findings.refuse(value, "only a text can stand here"),
    }
    None
}

fn finalizers(field: &Field, findings: &mut Findings) {
    for item in field.items(findings) {
        findings.spelled(&item, qualified_name);
    }
}

fn owners(field: &Field, findings: &mut Findings) {
    let mut controllers = 0;
    for owner in field.items(findings) {
        for name in ["apiVersion", "kind", "name", "uid"] {
            let part = owner.child(name);
            if part.text(findings).is_none_or(str::is_empty) {
                findings.require(&part, "an owner is named by apiVersion, kind, name and uid");
            }
        }
        owner.child("blockOwnerDeletion").flag(findings);
        let is_controller = owner.child("controller").flag(findings) == Some(true);
        controllers += usize::from(is_controller);
        if is_controller && controllers > 1 {
            findings.refuse(field, "only one owner of an object can be its controller");
        }
    }
}

/// A point in time, as the API writes it.
pub(super) fn time(field: &Field, findings: &mut Findings) {
    let Some(text) = field.text(findings) else { return };
    if Timestamp::parse(text).is_none() {
        findings.refuse(field, format!("{} is not a time, as 2026-11-15T10:00:00Z would be", quoted(text)));
    }
}

/// What makes an object this object. A field that the new version leaves out is taken from the old one.
fn identity(old: &Field, new: &Field, findings: &mut Findings) {
    for name in ["name", "namespace", "uid", "creationTimestamp"] {
        let (before, after) = (old.child(name), new.child(name));
        if before.is_set() && after.is_set() && before.value() != after.value() {
            let was = before.peek_text().map(quoted).unwrap_or_default();
            findings.refuse(&after, format!("cannot change: it is {was} for the life of the object"));
        }
    }
}

/// Refuses any change of a field that was given before; leaving it out is a change.
pub(super) fn fixed(old: &Field, new: &Field, findings: &mut Findings) {
    if old.is_given() && old.value() != new.value() {
        findings.refuse(new, format!("cannot change once set: keep {}", quoted(&old.value().to_string())));
    }
}

#[cfg(test)]
mod tests;
