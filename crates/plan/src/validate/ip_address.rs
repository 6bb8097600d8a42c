//! IPAddresses: the lock on one cluster IP (semantics E2).

use super::Change;
use super::field::{Field, Findings, quoted};
use super::ip::canonical;
use super::meta::{self, Naming};
use super::syntax::{dns_subdomain, path_segment};

pub(super) fn check(change: &Change, findings: &mut Findings) {
    let rule = |text: &str| canonical(text).err();
    meta::check(change, &Naming { rule, namespaced: false, generated: false }, findings);
    let parent = change.new.child("spec").map(findings).child("parentRef");
    if parent.is_set() {
        parent_ref(&parent.clone().map(findings), findings);
    } else {
        findings
            .require(&parent, "name the object that the address is for, as resource: services and its name");
    }
    if let Some(old) = &change.old {
        unchanged(&old.child("spec").child("parentRef"), &parent, findings);
    }
}

/// An address belongs to one object for life: it is deleted and made again for another.
fn unchanged(old: &Field, new: &Field, findings: &mut Findings) {
    for name in ["group", "resource", "namespace", "name"] {
        let (before, after) = (old.child(name), new.child(name));
        if before.peek_nonempty() != after.peek_nonempty() {
            let was = quoted(before.peek_text().unwrap_or_default());
            findings.refuse(&after, format!("an address cannot change hands: keep {was}"));
        }
    }
}

fn parent_ref(parent: &Field, findings: &mut Findings) {
    // The core group, which Services are in, is the empty text.
    findings.spelled_if_given(&parent.child("group"), dns_subdomain);
    findings.spelled_if_given(&parent.child("namespace"), path_segment);
    for name in ["resource", "name"] {
        let field = parent.child(name);
        findings.spelled_if_given(&field, path_segment);
        if !field.is_given() {
            findings.require(&field, "a parent is named by its resource and its name");
        }
    }
}

#[cfg(test)]
mod tests;
