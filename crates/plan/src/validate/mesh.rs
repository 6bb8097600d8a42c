//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway: what reading them finds wrong.
//!
//! There is one reading of these kinds. What it refuses here is what it would leave out in a cluster.

use model::json::same;
use model::parse::route::mesh_problems;

use super::Change;
use super::field::Findings;
use super::meta::{self, Naming};
use super::syntax::dns_subdomain;

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, findings);
    // As API servers have it for kinds like these, what is stored stays: an object that was let through before has to
    // be able to take the status that says what is wrong with it. It is the same for each rule: one of a thousand that
    // changes costs one.
    let (old, new) = (change.old.as_ref().map(|old| old.value()), change.new.value());
    if old.is_some_and(|old| same(&old["spec"], &new["spec"])) {
        return;
    }
    for problem in mesh_problems(new, old) {
        findings.refuse_at(&problem.field, problem.text);
    }
}
