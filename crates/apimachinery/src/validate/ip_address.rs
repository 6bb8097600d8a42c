//! IPAddress: the allocation of one cluster IP (semantics E2).

use super::Admission;
use super::ip::canonical;
use super::meta::{self, Naming};
use super::syntax::{dns_subdomain, path_segment};
use model::field::{Field, FieldErrors, quoted};

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    let rule = |text: &str| canonical(text).err();
    meta::check(admission, &Naming { rule, namespaced: false, generated: false }, errors);
    let parent = admission.new.child("spec").map(errors).child("parentRef");
    if parent.is_set() {
        parent_ref(&parent.clone().map(errors), errors);
    } else {
        errors
            .required(&parent, "name the object that owns the address, e.g. resource: services and its name");
    }
    if let Some(old) = &admission.old {
        unchanged(&old.child("spec").child("parentRef"), &parent, errors);
    }
}

/// The parent is immutable: to move an address, delete the object and create another.
fn unchanged(old: &Field, new: &Field, errors: &mut FieldErrors) {
    for name in ["group", "resource", "namespace", "name"] {
        let (before, after) = (old.child(name), new.child(name));
        if before.as_nonempty_str() != after.as_nonempty_str() {
            let was = quoted(before.as_str().unwrap_or_default());
            errors.invalid(&after, format!("is immutable: keep {was}"));
        }
    }
}

fn parent_ref(parent: &Field, errors: &mut FieldErrors) {
    // The core group is the empty string.
    errors.check_format_if_set(&parent.child("group"), dns_subdomain);
    errors.check_format_if_set(&parent.child("namespace"), path_segment);
    for name in ["resource", "name"] {
        let field = parent.child(name);
        errors.check_format_if_set(&field, path_segment);
        if !field.is_nonempty() {
            errors.required(&field, "a parent reference needs resource and name");
        }
    }
}

#[cfg(test)]
mod tests;
