//! Metadata of all kinds: names, namespaces, labels, annotations, owners, times.

use model::Timestamp;
use serde_json::Value;

use super::Admission;
use super::syntax::{dns_label, label_value, qualified_name};
use model::field::{Field, FieldErrors, FormatRule, quoted};

/// Total size of the annotations of an object, keys and values, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// How objects of a kind are named.
pub(super) struct Naming {
    pub(super) rule: FormatRule,
    pub(super) namespaced: bool,
    /// Whether `generateName` is allowed.
    pub(super) generated: bool,
}

/// Checks `metadata`, and on an update its immutable fields.
pub(super) fn check(admission: &Admission, naming: &Naming, errors: &mut FieldErrors) {
    let meta = admission.new.child("metadata").map(errors);
    name(&meta, naming, errors);
    namespace(&meta, naming, errors);
    labels(&meta.child("labels"), errors);
    annotations(&meta.child("annotations"), errors);
    finalizers(&meta.child("finalizers"), errors);
    owners(&meta.child("ownerReferences"), errors);
    for field in ["creationTimestamp", "deletionTimestamp"] {
        time(&meta.child(field), errors);
    }
    meta.child("uid").string(errors);
    meta.child("resourceVersion").string(errors);
    if let Some(old) = &admission.old {
        identity(&old.child("metadata"), &meta, errors);
    }
}

fn name(meta: &Field, naming: &Naming, errors: &mut FieldErrors) {
    let (name, prefix) = (meta.child("name"), meta.child("generateName"));
    let given = name.nonempty_string(errors);
    let generated = prefix.nonempty_string(errors).filter(|_| naming.generated);
    if let Some(text) = given {
        errors.invalid_if(&name, (naming.rule)(text));
    } else if generated.is_none() && !name.is_nonempty() {
        let or = if naming.generated { " or a generateName" } else { "" };
        errors.required(&name, format!("an object needs a name{or}"));
    }
    if let Some(text) = generated {
        // The generated suffix starts with a letter or digit, so a prefix may end with a dash.
        let cut = text.strip_suffix('-').filter(|cut| !cut.is_empty());
        let ended = cut.map_or(text.to_owned(), |cut| format!("{cut}a"));
        let good = (naming.rule)(&ended).is_none();
        errors.invalid_if(&prefix, (naming.rule)(text).filter(|_| !good));
    }
}

fn namespace(meta: &Field, naming: &Naming, errors: &mut FieldErrors) {
    let field = meta.child("namespace");
    let Some(text) = field.nonempty_string(errors) else { return };
    if naming.namespaced {
        errors.invalid_if(&field, dns_label(text));
    } else {
        errors.invalid(&field, "objects of this kind are cluster-scoped: remove the namespace");
    }
}

/// Labels or a selector. As in Kubernetes, the path is that of the whole map, so the message names the key.
pub(super) fn labels(field: &Field, errors: &mut FieldErrors) {
    for (key, value) in field.entries(errors) {
        errors.invalid_if(field, qualified_name(key));
        if let Some(text) = pair_value(&value, errors) {
            let reason = label_value(text).map(|reason| format!("{}: {reason}", quoted(key)));
            errors.invalid_if(field, reason);
        }
    }
}

fn annotations(field: &Field, errors: &mut FieldErrors) {
    let mut size = 0usize;
    for (key, value) in field.entries(errors) {
        // Unlike label keys, annotation keys may have upper-case letters in their domain.
        errors.invalid_if(field, qualified_name(&key.to_ascii_lowercase()));
        let text = pair_value(&value, errors).unwrap_or_default();
        size = size.saturating_add(key.len()).saturating_add(text.len());
    }
    if size > MAX_ANNOTATIONS {
        errors.too_long(field, format!("{size} bytes in total: at most {MAX_ANNOTATIONS} are allowed"));
    }
}

/// Unquoted YAML values may be numbers or booleans; the API requires strings.
fn pair_value<'a>(value: &Field<'a>, errors: &mut FieldErrors) -> Option<&'a str> {
    match value.value() {
        Value::String(text) => return Some(text),
        Value::Number(_) | Value::Bool(_) => {
            let reason = format!("expected a string: write \"{}\", in quotes", value.value());
            errors.invalid(value, reason);
        }
        _ => errors.invalid(value, "expected a string"),
    }
    None
}

fn finalizers(field: &Field, errors: &mut FieldErrors) {
    for item in field.items(errors) {
        errors.check_format(&item, qualified_name);
    }
}

fn owners(field: &Field, errors: &mut FieldErrors) {
    let mut controllers = 0;
    for owner in field.items(errors) {
        for name in ["apiVersion", "kind", "name", "uid"] {
            let part = owner.child(name);
            if part.string(errors).is_none_or(str::is_empty) {
                errors.required(&part, "an owner reference needs apiVersion, kind, name and uid");
            }
        }
        owner.child("blockOwnerDeletion").boolean(errors);
        let is_controller = owner.child("controller").boolean(errors) == Some(true);
        controllers += usize::from(is_controller);
        if is_controller && controllers > 1 {
            errors.invalid(field, "only one owner reference can have controller: true");
        }
    }
}

/// An RFC 3339 timestamp.
pub(super) fn time(field: &Field, errors: &mut FieldErrors) {
    let Some(text) = field.string(errors) else { return };
    if Timestamp::parse(text).is_none() {
        errors.invalid(field, format!("{} is not a timestamp, e.g. 2026-11-15T10:00:00Z", quoted(text)));
    }
}

/// Immutable metadata. A field that is absent in the new version keeps its value.
fn identity(old: &Field, new: &Field, errors: &mut FieldErrors) {
    for name in ["name", "namespace", "uid", "creationTimestamp"] {
        let (before, after) = (old.child(name), new.child(name));
        if before.is_set() && after.is_set() && before.value() != after.value() {
            let was = before.as_str().map(quoted).unwrap_or_default();
            errors.invalid(&after, format!("is immutable: keep {was}"));
        }
    }
}

/// A field that is immutable once set; removing it is a change.
pub(super) fn immutable_once_set(old: &Field, new: &Field, errors: &mut FieldErrors) {
    if old.is_nonempty() && old.value() != new.value() {
        errors.invalid(new, format!("is immutable once set: keep {}", quoted(&old.value().to_string())));
    }
}

#[cfg(test)]
mod tests;
