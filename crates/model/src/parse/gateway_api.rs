//! Objects of the Gateway API -> model types, with the defaults of its schemas.
//!
//! The API server validates objects by the published schemas and rules; here, only fields of a wrong type make an object
//! malformed. Values that are valid but not supported are kept, so that the status can name them.

mod certificates;
mod filters;
mod gateway;
mod matches;
mod route;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::FieldError;
use crate::field::{Field, FieldErrors};
use crate::gateway_api::{
    BackendTlsPolicy, GROUP, GatewayApiObject, GatewayClass, GrantFrom, GrantTo, ObjectIdentity,
    ObjectReference, ParentReference, ReferenceGrant, RouteKind, TlsPolicyTarget,
};
use crate::name::{Name, ObjectKey};
use crate::time::Timestamp;

pub use certificates::{CertificateFields, certificate_source};

/// The kinds of the group that are parsed; those after the first are namespaced.
pub const KINDS: [&str; 10] = [
    "GatewayClass",
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
    "ReferenceGrant",
    "BackendTLSPolicy",
];

/// Parses an object of one of [`KINDS`], or gives all errors.
pub fn gateway_api_object(value: &Value) -> Result<GatewayApiObject, Vec<FieldError>> {
    let mut errors = FieldErrors::default();
    let root = Field::root(value);
    let spec = root.child("spec").map(&mut errors);
    let kind = value["kind"].as_str().unwrap_or_default();
    let identity = identity(value, kind != "GatewayClass");
    let object = match kind {
        "GatewayClass" => GatewayApiObject::Class(GatewayClass {
            identity,
            controller: name(&spec.child("controllerName"), &mut errors),
            has_parameters: spec.child("parametersRef").is_set(),
        }),
        "Gateway" => GatewayApiObject::Gateway(gateway::gateway(identity, &spec, &mut errors)),
        "ListenerSet" => GatewayApiObject::ListenerSet(gateway::listener_set(identity, &spec, &mut errors)),
        "ReferenceGrant" => GatewayApiObject::Grant(grant(identity, &spec, &mut errors)),
        "BackendTLSPolicy" => GatewayApiObject::TlsPolicy(tls_policy(identity, &spec, &mut errors)),
        kind => {
            let kind = RouteKind::parse(kind).unwrap_or(RouteKind::Http);
            GatewayApiObject::Route(route::route(kind, identity, &spec, &mut errors))
        }
    };
    let (errors, _) = errors.into_parts();
    if errors.is_empty() { Ok(object) } else { Err(errors) }
}

fn identity(value: &Value, is_namespaced: bool) -> ObjectIdentity {
    let metadata = &value["metadata"];
    let namespace = metadata["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let namespace = if is_namespaced { namespace.unwrap_or(super::DEFAULT_NAMESPACE) } else { "" };
    let name = metadata["name"].as_str().unwrap_or_default();
    ObjectIdentity {
        key: ObjectKey { namespace: Name::new(namespace), name: Name::new(name) },
        generation: metadata["generation"].as_i64().unwrap_or_default(),
        created: metadata["creationTimestamp"].as_str().and_then(Timestamp::parse),
        added: 0,
    }
}

fn name(at: &Field, errors: &mut FieldErrors) -> Name {
    Name::new(at.required_string(errors).unwrap_or_default())
}

fn optional_name(at: &Field, errors: &mut FieldErrors) -> Option<Name> {
    at.nonempty_string(errors).map(Name::new)
}

/// A reference with the defaults of its field.
fn reference(
    at: &Field,
    group: &str,
    kind: &str,
    namespace: &Name,
    errors: &mut FieldErrors,
) -> ObjectReference {
    ObjectReference {
        group: at.child("group").string(errors).map_or_else(|| Name::new(group), Name::new),
        kind: optional_name(&at.child("kind"), errors).unwrap_or_else(|| Name::new(kind)),
        namespace: optional_name(&at.child("namespace"), errors).unwrap_or_else(|| namespace.clone()),
        name: name(&at.child("name"), errors),
    }
}

fn parent(at: &Field, namespace: &Name, errors: &mut FieldErrors) -> ParentReference {
    ParentReference {
        object: reference(at, GROUP, "Gateway", namespace, errors),
        has_namespace: at.child("namespace").is_set(),
        section: optional_name(&at.child("sectionName"), errors),
        port: at.child("port").port(errors),
    }
}

fn grant(identity: ObjectIdentity, spec: &Field, errors: &mut FieldErrors) -> ReferenceGrant {
    let from = spec.child("from").items(errors);
    let to = spec.child("to").items(errors);
    ReferenceGrant {
        identity,
        from: from
            .iter()
            .map(|entry| GrantFrom {
                group: Name::new(entry.child("group").string(errors).unwrap_or_default()),
                kind: name(&entry.child("kind"), errors),
                namespace: name(&entry.child("namespace"), errors),
            })
            .collect(),
        to: to
            .iter()
            .map(|entry| GrantTo {
                group: Name::new(entry.child("group").string(errors).unwrap_or_default()),
                kind: name(&entry.child("kind"), errors),
                name: optional_name(&entry.child("name"), errors),
            })
            .collect(),
    }
}

fn tls_policy(identity: ObjectIdentity, spec: &Field, errors: &mut FieldErrors) -> BackendTlsPolicy {
    let namespace = identity.key.namespace.clone();
    let validation = spec.child("validation").map(errors);
    let targets = spec.child("targetRefs").items(errors);
    let authorities = validation.child("caCertificateRefs").items(errors);
    let names = validation.child("subjectAltNames").items(errors);
    let names = names.iter().filter_map(|entry| {
        let field = if entry.child("uri").is_set() { "uri" } else { "hostname" };
        optional_name(&entry.child(field), errors)
    });
    BackendTlsPolicy {
        alternative_names: names.collect(),
        identity,
        targets: targets
            .iter()
            .map(|target| TlsPolicyTarget {
                group: Name::new(target.child("group").string(errors).unwrap_or_default()),
                kind: name(&target.child("kind"), errors),
                name: name(&target.child("name"), errors),
                section: optional_name(&target.child("sectionName"), errors),
            })
            .collect(),
        hostname: name(&validation.child("hostname"), errors),
        authorities: authorities
            .iter()
            .map(|entry| reference(entry, "", "ConfigMap", &namespace, errors))
            .collect(),
        trusts_system: validation.child("wellKnownCACertificates").string(errors) == Some("System"),
    }
}
