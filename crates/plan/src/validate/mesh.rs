//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway: what reading them finds wrong.
//!
//! There is one reading of these kinds. What it refuses here is what it would leave out in a cluster.

use model::Interner;
use model::parse::route::mesh_object;

use super::Change;
use super::field::Findings;
use super::meta::{self, Naming};
use super::syntax::dns_subdomain;

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, findings);
    for problem in mesh_object(change.new.value(), &mut Interner::default()).problems {
        findings.refuse_at(&problem.field, problem.text);
    }
}
