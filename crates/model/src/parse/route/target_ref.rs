//! targetRef (the clients or gateway of a policy) and backendRef (the destination of requests).

use super::filters::filters;
use crate::field::{Field, FieldErrors, listed};
use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::route::{BackendRef, PolicyTarget, RouteFilter};

const MAX_TAGS: usize = 32;
/// Of the name of an object, and of a tag's value.
pub(super) const MAX_NAME_BYTES: usize = 253;

/// The kinds that a targetRef may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetRole {
    /// Clients in the mesh.
    Client,
    Gateway,
    Either,
}

impl TargetRole {
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Client => &["Mesh", "MeshSubset", "MeshService", "MeshServiceSubset"],
            Self::Gateway => &["MeshGateway"],
            Self::Either => &["Mesh", "MeshSubset", "MeshService", "MeshServiceSubset", "MeshGateway"],
        }
    }
}

/// `spec.targetRef`. In the mesh, a missing one selects all clients (semantics 1.3).
pub(super) fn target(at: &Field, role: TargetRole, errors: &mut FieldErrors) -> PolicyTarget {
    if !at.is_set() {
        if role == TargetRole::Gateway {
            errors.invalid(at, "is missing: name the gateway, e.g. {kind: MeshGateway, name: edge}");
        }
        return PolicyTarget::Mesh;
    }
    match kind(at, role.kinds(), errors) {
        Some("MeshSubset") => {
            forbid_members(at, &["name"], "MeshSubset", errors);
            PolicyTarget::Subset(tags(at, true, errors))
        }
        Some("MeshService") => {
            forbid_members(at, &["tags"], "MeshService", errors);
            PolicyTarget::Service(name(at, errors))
        }
        Some("MeshServiceSubset") => PolicyTarget::ServiceSubset(name(at, errors), tags(at, true, errors)),
        Some("MeshGateway") => PolicyTarget::Gateway(name(at, errors), tags(at, false, errors)),
        Some(_) => {
            everything(at, errors);
            PolicyTarget::Mesh
        }
        None => PolicyTarget::Mesh,
    }
}

/// `to[].targetRef`: a whole Service, by default in the namespace of the policy.
pub(super) fn destination(at: &Field, own: &Name, errors: &mut FieldErrors) -> ServiceKey {
    let unnamed = || ServiceKey::new(own, &Name::default());
    if !at.is_set() {
        errors.invalid(at, "is missing: name the destination, e.g. {kind: MeshService, name: backend}");
        return unnamed();
    }
    at.only(&["kind", "name", "namespace", "tags"], errors);
    if required_kind(at, &["MeshService"], errors).is_none() {
        return unnamed();
    }
    forbid_members(at, &["tags"], "MeshService", errors);
    let namespace = at.child("namespace");
    let namespace = if namespace.is_set() { namespace_name(&namespace, errors) } else { own.clone() };
    ServiceKey::new(&namespace, &name(at, errors))
}

fn namespace_name(field: &Field, errors: &mut FieldErrors) -> Name {
    let text = field.required_string(errors).unwrap_or_default();
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || text.len() > 63 || !text.bytes().all(is_plain) {
        errors.invalid(field, "is not a namespace name");
    }
    Name::new(text)
}

/// A targetRef of kind Mesh.
pub(super) fn everything(at: &Field, errors: &mut FieldErrors) {
    if at.is_set() && kind(at, &["Mesh"], errors).is_some() {
        forbid_members(at, &["name", "tags"], "Mesh", errors);
    }
}

fn kind<'a>(at: &Field<'a>, kinds: &[&str], errors: &mut FieldErrors) -> Option<&'a str> {
    at.only(&["kind", "name", "tags"], errors);
    required_kind(at, kinds, errors)
}

fn required_kind<'a>(at: &Field<'a>, kinds: &[&str], errors: &mut FieldErrors) -> Option<&'a str> {
    let field = at.child("kind");
    if at.is_map() && !field.is_set() {
        errors.invalid(&field, format!("is missing: use {}", listed(kinds)));
    }
    field.keyword(kinds, errors)
}

fn forbid_members(at: &Field, members: &[&str], kind: &str, errors: &mut FieldErrors) {
    for member in members.iter().map(|member| at.child(member)).filter(Field::is_set) {
        errors.invalid(&member, format!("is not allowed for kind {kind}"));
    }
}

fn name(at: &Field, errors: &mut FieldErrors) -> Name {
    let field = at.child("name");
    let text = field.required_string(errors).unwrap_or_default();
    let is_good =
        text.len() <= MAX_NAME_BYTES && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    if !is_good {
        errors.invalid(&field, "is not an object name");
    }
    Name::new(text)
}

pub(super) fn tags(at: &Field, needed: bool, errors: &mut FieldErrors) -> Labels {
    let field = at.child("tags");
    field.limit(MAX_TAGS, "tags", errors);
    for (_, value) in field.entries(errors) {
        value.limit_bytes(MAX_NAME_BYTES, errors);
    }
    let pairs = field.string_map(errors);
    if needed && pairs.is_empty() && (field.is_map() || !field.is_set()) {
        errors.invalid(
            &field,
            "needs at least one tag, e.g. {version: v2}; for all endpoints, use the kind without Subset",
        );
    }
    Labels::from_pairs(pairs)
}

/// What a backend gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BackendRole {
    /// A share of requests.
    OfRequests,
    /// A share of connections.
    OfConnections,
    /// Copies: it has no weight and no filters.
    Mirror,
}

/// An entry of `backendRefs`, or the backend of a mirror.
pub(super) fn backend(at: &Field, role: BackendRole, errors: &mut FieldErrors) -> Option<BackendRef> {
    let known: &[&str] = match role {
        BackendRole::OfRequests => &["kind", "name", "tags", "port", "weight", "filters"],
        BackendRole::OfConnections => &["kind", "name", "tags", "port", "weight"],
        BackendRole::Mirror => &["kind", "name", "tags", "port"],
    };
    at.only(known, errors);
    let field = at.child("kind");
    if at.is_map() && !field.is_set() {
        errors.invalid(&field, "is missing: use MeshService or MeshServiceSubset");
    }
    let kind = field.keyword(&["MeshService", "MeshServiceSubset"], errors);
    if kind == Some("MeshService") {
        forbid_members(at, &["tags"], "MeshService", errors);
    }
    let weight = at.child("weight").integer_within(0, i64::from(u32::MAX), errors);
    Some(BackendRef {
        name: name(at, errors),
        tags: (kind? == "MeshServiceSubset").then(|| tags(at, true, errors)),
        port: at.child("port").port(errors),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
        filters: backend_filters(&at.child("filters"), errors),
        object: None,
    })
}

/// Filters of one backend: what concerns the backend alone.
fn backend_filters(at: &Field, errors: &mut FieldErrors) -> Box<[RouteFilter]> {
    if !at.is_set() {
        return Box::default();
    }
    let filters = filters(at, errors);
    let is_allowed = |filter: &RouteFilter| {
        matches!(
            filter,
            RouteFilter::RequestHeaders(_) | RouteFilter::ResponseHeaders(_) | RouteFilter::Rewrite(_)
        )
    };
    if !filters.iter().all(is_allowed) {
        errors.invalid(
            at,
            "a backend has requestHeaderModifier, responseHeaderModifier and urlRewrite; other filters belong to the rule",
        );
    }
    if filters.iter().filter(|filter| matches!(filter, RouteFilter::Rewrite(_))).count() > 1 {
        errors.invalid(at, "at most one urlRewrite is allowed");
    }
    filters
}
