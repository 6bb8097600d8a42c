//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway -> ours, with everything that is wrong at once.
//!
//! ```text
//! JSON -> At (path + value) -> target, matches, filters, gateway -> policy in its normal form
//!                           \-> Problem for each field that is wrong: an invalid policy is ignored as a whole
//! ```
//!
//! Short forms of the seed's examples are spelled out here, so that rules are compared in one form. The same
//! reading answers `plan validate` and an API server's admission.

mod at;
mod filters;
mod gateway;
mod matches;
mod rules;
mod target;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::sync::Arc;

use serde_json::Value;

use super::{DEFAULT_NAMESPACE, Object, Problem};
use crate::name::{Interner, Name, ObjectKey};
use crate::route::{GatewayHttpRoute, HttpRoute, RouteRule, TcpRoute, ToHttp, ToTcp};
use at::{At, Problems};
use target::Role;

pub use text::{Remembered, mesh_text};

/// The API group of these kinds.
pub const GROUP: &str = "zoneward.dev";

/// The kinds.
pub const KINDS: [&str; 4] = ["MeshHTTPRoute", "MeshGatewayHTTPRoute", "MeshTCPRoute", "MeshGateway"];

/// What was read of an object.
#[derive(Debug)]
pub struct Reading {
    /// The object, if nothing is wrong with it.
    pub object: Option<Object>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Entries that do not count and do no harm.
    pub ignored: Vec<Problem>,
}

/// Reads an object of one of [`KINDS`].
pub fn mesh_object(value: &Value, interner: &mut Interner) -> Reading {
    read(value, None, &[], interner)
}

/// Everything that is wrong with an object of one of [`KINDS`], but for its HTTP rules that stand in `before` as they
/// stand in it: those were found to be right when that was stored.
pub fn mesh_problems(value: &Value, before: Option<&Value>) -> Vec<Problem> {
    read(value, before, &[], &mut Interner::default()).problems
}

/// Rules that are known already, for each list of rules by their places in it.
type Known = Vec<Option<Arc<RouteRule>>>;

fn read(value: &Value, before: Option<&Value>, known: &[Known], interner: &mut Interner) -> Reading {
    let mut problems = Problems::default();
    let metadata = &value["metadata"];
    let namespace = metadata["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(DEFAULT_NAMESPACE);
    let key = ObjectKey {
        namespace: interner.name(namespace),
        name: interner.name(metadata["name"].as_str().unwrap_or_default()),
    };
    let root = At::root(value, before);
    let spec = root.child("spec");
    if !spec.is_set() {
        problems.add(&spec, "it is missing: a policy says everything in its spec");
    }
    let object = match value["kind"].as_str() {
        Some("MeshHTTPRoute") => Object::HttpRoute(http_route(key, &spec, known, &mut problems).into()),
        Some("MeshGatewayHTTPRoute") => {
            Object::GatewayHttpRoute(gateway_http_route(key, &spec, known, &mut problems).into())
        }
        Some("MeshTCPRoute") => Object::TcpRoute(tcp_route(key, &spec, &mut problems).into()),
        _ => Object::Gateway(gateway::gateway(key, &spec, &mut problems).into()),
    };
    let Problems { found, ignored } = problems;
    Reading { object: found.is_empty().then_some(object), problems: found, ignored }
}

fn http_route(key: ObjectKey, spec: &At, known: &[Known], problems: &mut Problems) -> HttpRoute {
    spec.only(&["targetRef", "to"], problems);
    let target = target::target(&spec.child("targetRef"), Role::Client, problems);
    let to = spec.child("to").items_or_one(problems, "destinations");
    let to = to
        .iter()
        .enumerate()
        .map(|(i, entry)| to_http(entry, &key.namespace, list(known, i), problems))
        .collect();
    HttpRoute { key, target, to }
}

fn list(known: &[Known], at: usize) -> &[Option<Arc<RouteRule>>] {
    known.get(at).map_or(&[], Vec::as_slice)
}

fn to_http(
    entry: &At,
    namespace: &Name,
    known: &[Option<Arc<RouteRule>>],
    problems: &mut Problems,
) -> ToHttp {
    entry.only(&["targetRef", "rules", "default"], problems);
    let service = target::destination(&entry.child("targetRef"), namespace, problems);
    let default = entry.child("default");
    if default.is_set() {
        problems.add(&default, words::DEFAULT_BELONGS_INTO_RULES);
        return ToHttp { service, rules: Box::default() };
    }
    ToHttp { service, rules: rules::rules(&entry.child("rules"), rules::Place::Mesh, known, problems) }
}

fn gateway_http_route(
    key: ObjectKey,
    spec: &At,
    known: &[Known],
    problems: &mut Problems,
) -> GatewayHttpRoute {
    spec.only(&["targetRef", "hostnames", "rules"], problems);
    let target = target::target(&spec.child("targetRef"), Role::Gateway, problems);
    let hostnames = spec.child("hostnames").items(problems);
    let hostnames = hostnames.iter().filter_map(|host| words::hostname(host, problems)).collect();
    let rules = rules::rules(&spec.child("rules"), rules::Place::Gateway, list(known, 0), problems);
    GatewayHttpRoute { key, target, hostnames, rules }
}

fn tcp_route(key: ObjectKey, spec: &At, problems: &mut Problems) -> TcpRoute {
    spec.only(&["targetRef", "to"], problems);
    let target = target::target(&spec.child("targetRef"), Role::Either, problems);
    let to = spec.child("to").items_or_one(problems, "destinations");
    let at_gateway = matches!(target, crate::route::PolicyTarget::Gateway(..));
    let to = to.iter().map(|entry| to_tcp(entry, &key.namespace, at_gateway, problems)).collect();
    TcpRoute { key, target, to }
}

fn to_tcp(entry: &At, namespace: &Name, at_gateway: bool, problems: &mut Problems) -> ToTcp {
    entry.only(&["targetRef", "rules"], problems);
    let target = entry.child("targetRef");
    let service = if at_gateway {
        target::everything(&target, problems);
        None
    } else {
        Some(target::destination(&target, namespace, problems))
    };
    ToTcp { service, backends: rules::tcp_rules(&entry.child("rules"), problems) }
}
