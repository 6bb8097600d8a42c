//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute, MeshGateway, MeshLoadBalancing and MeshRouteFilter -> model
//! types, with all errors at once.
//!
//! ```text
//! JSON -> Field (path + value) -> target_ref, matches, filters, gateway -> policy in its normal form
//!                              \-> FieldErrors: a policy with an error is ignored as a whole
//! ```
//!
//! Short forms are expanded here, so that rules are compared in one form. This is the only grammar: its errors are the
//! violations of `plan validate` and of the embedded API. The schemas in `deploy/crds` refuse nothing that it accepts, so
//! it has their bounds. Another API server accepts more; the condition `Accepted` says so.

mod filters;
mod gateway;
mod load_balancing;
mod matches;
mod rules;
mod syntax;
mod target_ref;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::{DEFAULT_NAMESPACE, FieldError, Object};
use crate::field::{Field, FieldErrors};
use crate::label::Labels;
use crate::name::{Interner, Name, ObjectKey};
use crate::route::{
    DirectResponse, ExtensionEffect, MeshGatewayHttpRoute, MeshHttpRoute, MeshRouteFilter, MeshTcpRoute,
    RouteFilter, ToHttp, ToTcp,
};
use target_ref::TargetRole;

/// The API group of these kinds.
pub const GROUP: &str = "zoneward.dev";

/// The kinds.
pub const KINDS: [&str; 6] = [
    "MeshHTTPRoute",
    "MeshGatewayHTTPRoute",
    "MeshTCPRoute",
    "MeshGateway",
    "MeshLoadBalancing",
    "MeshRouteFilter",
];

const MAX_DESTINATIONS: usize = 16;
const MAX_HOSTNAMES: usize = 64;

/// The result of parsing an object of one of [`KINDS`].
#[derive(Debug)]
pub struct ParsedPolicy {
    /// `None` if there are errors.
    pub object: Option<Object>,
    pub errors: Vec<FieldError>,
    /// Entries without effect.
    pub ignored: Vec<FieldError>,
}

/// Parses an object of one of [`KINDS`].
pub fn mesh_object(value: &Value, interner: &mut Interner) -> ParsedPolicy {
    read(value, None, interner)
}

/// The errors of an object of one of [`KINDS`]. HTTP rules that are equal in `old` are skipped: they were checked when
/// `old` was stored.
pub fn mesh_errors(value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    read(value, old, &mut Interner::default()).errors
}

fn read(value: &Value, old: Option<&Value>, interner: &mut Interner) -> ParsedPolicy {
    let mut errors = FieldErrors::default();
    let metadata = &value["metadata"];
    let namespace = metadata["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(DEFAULT_NAMESPACE);
    let key = ObjectKey {
        namespace: interner.name(namespace),
        name: interner.name(metadata["name"].as_str().unwrap_or_default()),
    };
    let root = Field::root_with_old(value, old);
    let spec = root.child("spec");
    if !spec.is_set() {
        errors.invalid(&spec, "is missing");
    }
    let object = match value["kind"].as_str() {
        Some("MeshHTTPRoute") => Object::MeshHttpRoute(http_route(key, &spec, &mut errors).into()),
        Some("MeshGatewayHTTPRoute") => {
            Object::MeshGatewayHttpRoute(gateway_http_route(key, &spec, &mut errors).into())
        }
        Some("MeshTCPRoute") => Object::MeshTcpRoute(tcp_route(key, &spec, &mut errors).into()),
        Some("MeshLoadBalancing") => {
            Object::MeshLoadBalancing(load_balancing::policy(key, metadata, &spec, &mut errors).into())
        }
        Some(MeshRouteFilter::KIND) => Object::MeshRouteFilter(route_filter(key, &spec, &mut errors).into()),
        _ => Object::MeshGateway(gateway::gateway(key, &spec, &mut errors).into()),
    };
    let (errors, ignored) = errors.into_parts();
    ParsedPolicy { object: errors.is_empty().then_some(object), errors, ignored }
}

/// The entries of `to`.
fn destinations<'a>(spec: &Field<'a>, errors: &mut FieldErrors) -> Vec<Field<'a>> {
    let to = spec.child("to");
    to.limit(MAX_DESTINATIONS, "destinations", errors);
    to.required_items("destinations", errors)
}

fn http_route(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> MeshHttpRoute {
    spec.only(&["targetRef", "to"], errors);
    let target = target_ref::target(&spec.child("targetRef"), TargetRole::Client, errors);
    let to = destinations(spec, errors);
    let to = to.iter().map(|entry| to_http(entry, &key.namespace, errors)).collect();
    MeshHttpRoute { key, target, to }
}

fn to_http(entry: &Field, namespace: &Name, errors: &mut FieldErrors) -> ToHttp {
    entry.only(&["targetRef", "rules", "default"], errors);
    let service = target_ref::destination(&entry.child("targetRef"), namespace, errors);
    let default = entry.child("default");
    if default.is_set() {
        errors.invalid(&default, syntax::DEFAULT_BELONGS_IN_RULES);
        return ToHttp { service, rules: Box::default() };
    }
    let rules = entry.child("rules");
    if service.namespace != *namespace {
        for rule in rules.as_items() {
            let over = rule.child("override");
            if over.is_set() {
                errors.invalid(
                    &over,
                    "is for the owner of a Service: this one is of another namespace; use default or merge",
                );
            }
        }
    }
    ToHttp { service, rules: rules::rules(&rules, rules::RuleScope::Mesh, errors) }
}

fn gateway_http_route(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> MeshGatewayHttpRoute {
    spec.only(&["targetRef", "hostnames", "rules"], errors);
    let target = target_ref::target(&spec.child("targetRef"), TargetRole::Gateway, errors);
    let hostnames = spec.child("hostnames");
    hostnames.limit(MAX_HOSTNAMES, "host names", errors);
    let hostnames = hostnames.items(errors);
    let hostnames = hostnames.iter().filter_map(|host| syntax::hostname(host, errors)).collect();
    let rules = rules::rules(&spec.child("rules"), rules::RuleScope::Gateway, errors);
    MeshGatewayHttpRoute { key, target, hostnames, rules }
}

fn route_filter(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> MeshRouteFilter {
    spec.only(&["directResponse", "subset"], errors);
    let (response, subset) = (spec.child("directResponse"), spec.child("subset"));
    if spec.is_map() && response.is_set() == subset.is_set() {
        errors.invalid(spec, "set exactly one of directResponse, subset");
    }
    let effect = if response.is_set() {
        match filters::direct_response(&response, errors) {
            Some(RouteFilter::Respond { status, body }) => {
                ExtensionEffect::Respond(DirectResponse { status, body })
            }
            // Its errors are reported.
            _ => ExtensionEffect::Subset(Labels::EMPTY),
        }
    } else {
        subset.only(&["tags"], errors);
        ExtensionEffect::Subset(target_ref::tags(&subset, subset.is_set(), errors))
    };
    MeshRouteFilter { key, effect }
}

fn tcp_route(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> MeshTcpRoute {
    spec.only(&["targetRef", "to"], errors);
    let target = target_ref::target(&spec.child("targetRef"), TargetRole::Either, errors);
    let to = destinations(spec, errors);
    let at_gateway = matches!(target, crate::route::PolicyTarget::Gateway(..));
    let to = to.iter().map(|entry| to_tcp(entry, &key.namespace, at_gateway, errors)).collect();
    MeshTcpRoute { key, target, to }
}

fn to_tcp(entry: &Field, namespace: &Name, at_gateway: bool, errors: &mut FieldErrors) -> ToTcp {
    entry.only(&["targetRef", "rules"], errors);
    let target = entry.child("targetRef");
    let service = if at_gateway {
        target_ref::everything(&target, errors);
        None
    } else {
        Some(target_ref::destination(&target, namespace, errors))
    };
    ToTcp { service, backends: rules::tcp_rules(&entry.child("rules"), errors) }
}
