//! Kubernetes objects -> model types.
//!
//! ```text
//! JSON -> k8s-openapi type -> parse::<kind> -> Service | Slice | Node | Namespace | ServiceCidr | IpAddress
//! protobuf -> parse::message -> the same k8s-openapi types, of the kinds that a node reads
//! JSON -> PodFields -> parse::pod -> Pod
//! JSON of our own kinds -> parse::route -> HttpRoute | GatewayHttpRoute | TcpRoute | Gateway | LoadBalancingPolicy |
//!                                        RouteFilterObject
//! JSON of the Gateway API -> parse::gateway_api -> GatewayApiObject
//!                          \-> Notice: object, field, what is wrong and what to do; the object counts as absent
//! ```

pub mod gateway_api;
mod ip_address;
mod message;
mod node;
mod pod;
pub mod quantity;
pub mod route;
mod service;
mod slice;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::address::{Protocol, parse_ip};
use crate::field::FieldError;
use crate::gateway_api::{CertificateKind, GatewayApiObject};
use crate::label::Labels;
use crate::name::{Interner, Name, ObjectKey};
use crate::node::{Namespace, Node};
use crate::notice::{Notice, ObjectRef};
use crate::pod::Pod;
use crate::protobuf;
use crate::protobuf::wire::WireError;
use crate::route::{
    MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshLoadBalancing, MeshRouteFilter, MeshTcpRoute,
};
use crate::service::Service;
use crate::service_cidr::{IpAddress, ServiceCidr};
use crate::slice::Slice;

pub use ip_address::{ip_address, service_cidr};
use message::MessageDecoder;
pub use node::{namespace, node};
pub use pod::{PodFields, pod};
pub use service::service;
pub use slice::slice;

/// A parsed object of any kind in a [`crate::Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Service(Box<Service>),
    Slice(Box<Slice>),
    Pod(Box<Pod>),
    Node(Box<Node>),
    Namespace(Namespace),
    ServiceCidr(ServiceCidr),
    IpAddress(IpAddress),
    MeshHttpRoute(Box<MeshHttpRoute>),
    MeshGatewayHttpRoute(Box<MeshGatewayHttpRoute>),
    MeshTcpRoute(Box<MeshTcpRoute>),
    MeshGateway(Box<MeshGateway>),
    MeshLoadBalancing(Box<MeshLoadBalancing>),
    MeshRouteFilter(Box<MeshRouteFilter>),
    GatewayApi(Box<GatewayApiObject>),
}

/// A parsed value, or the first error.
pub type ParseResult<T> = Result<T, FieldError>;

/// The namespace of a namespaced object without `metadata.namespace`.
const DEFAULT_NAMESPACE: &str = "default";

/// Parses an object. An unknown kind gives neither an object nor a Notice.
pub fn object(value: &Value, interner: &mut Interner) -> (Option<Object>, Vec<Notice>) {
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let kind = value["kind"].as_str().unwrap_or_default();
    if group(api_version) == route::GROUP && route::KINDS.contains(&kind) {
        return mesh_object(value, interner);
    }
    if group(api_version) == crate::gateway_api::GROUP && gateway_api::KINDS.contains(&kind) {
        return match gateway_api::gateway_api_object(value) {
            Ok(object) => (Some(Object::GatewayApi(object.into())), Vec::new()),
            Err(errors) => {
                let about = object_ref(value);
                (None, errors.iter().map(|error| malformed(about.clone(), error)).collect())
            }
        };
    }
    let mut ignored = Vec::new();
    let Some(parsed) = by_kind(api_version, kind, &value, interner, &mut ignored) else {
        return (None, Vec::new());
    };
    let about = object_ref(value);
    let mut notices: Vec<Notice> =
        ignored.into_iter().map(|error| ignored_field(about.clone(), &error)).collect();
    match parsed {
        Ok(object) => (Some(object), notices),
        Err(error) => {
            notices.push(malformed(about, &error));
            (None, notices)
        }
    }
}

/// Parses an object from JSON text. Kind and version are arguments, because the items of a list response omit them.
pub fn text(
    api_version: &str,
    kind: &str,
    text: &str,
    interner: &mut Interner,
) -> (Option<Object>, Vec<Notice>) {
    let mut ignored = Vec::new();
    if let Some(Ok(object)) = by_kind(api_version, kind, &text, interner, &mut ignored)
        && ignored.is_empty()
    {
        return (Some(object), Vec::new());
    }
    // There is an error to report: parse again in the way that knows the object's name and the path of the field.
    let mut value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let error = FieldError::invalid("object", error.to_string());
            return (None, vec![malformed(ObjectRef::new(kind, "", "(no name)"), &error)]);
        }
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), api_version.into());
        fields.insert("kind".into(), kind.into());
    }
    object(&value, interner)
}

/// Parses an object from its message in protobuf. A kind without a decoder gives neither an object nor a Notice.
pub fn message(
    api_version: &str,
    kind: &str,
    bytes: &[u8],
    interner: &mut Interner,
) -> (Option<Object>, Vec<Notice>) {
    let mut ignored = Vec::new();
    let parsed = match by_message(api_version, kind, bytes, interner, &mut ignored) {
        Some(Ok(object)) if ignored.is_empty() => return (Some(object), Vec::new()),
        Some(parsed) => parsed,
        None => return (None, Vec::new()),
    };
    let about = message_ref(kind, bytes);
    let mut notices: Vec<Notice> =
        ignored.into_iter().map(|error| ignored_field(about.clone(), &error)).collect();
    match parsed {
        Ok(object) => (Some(object), notices),
        Err(error) => {
            notices.push(malformed(about, &error));
            (None, notices)
        }
    }
}

fn by_message(
    api_version: &str,
    kind: &str,
    bytes: &[u8],
    interner: &mut Interner,
    ignored: &mut Vec<FieldError>,
) -> Option<ParseResult<Object>> {
    let mut decoder = MessageDecoder::default();
    let undecodable =
        |error: WireError| FieldError::invalid("object", format!("malformed protobuf: {error}"));
    Some(match (group(api_version), kind) {
        ("", "Service") => decoder
            .service(bytes)
            .map_err(undecodable)
            .and_then(|o| service(&o, interner, ignored))
            .map(|o| Object::Service(o.into())),
        ("discovery.k8s.io", "EndpointSlice") => decoder
            .slice(bytes)
            .map_err(undecodable)
            .and_then(|o| slice(&o, interner))
            .map(|o| Object::Slice(o.into())),
        ("", "Node") => decoder
            .node(bytes)
            .map_err(undecodable)
            .and_then(|o| node(&o, interner))
            .map(|o| Object::Node(o.into())),
        _ => return None,
    })
}

/// Identifies the object of a message, malformed or not.
fn message_ref(kind: &str, bytes: &[u8]) -> ObjectRef {
    let head = protobuf::head(bytes).unwrap_or_default();
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let name = given(head.name).unwrap_or_else(|| "(no name)".to_owned());
    let namespace = given(head.namespace).unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    ObjectRef::new(kind, if kind == "Node" { "" } else { &namespace }, &name)
}

/// JSON as a value or as text.
trait JsonSource {
    fn typed<T: DeserializeOwned>(&self) -> ParseResult<T>;
}

impl JsonSource for &Value {
    fn typed<T: DeserializeOwned>(&self) -> ParseResult<T> {
        typed(self)
    }
}

impl JsonSource for &str {
    fn typed<T: DeserializeOwned>(&self) -> ParseResult<T> {
        serde_json::from_str(self).map_err(|error| FieldError::invalid("object", error.to_string()))
    }
}

fn by_kind(
    api_version: &str,
    kind: &str,
    from: &impl JsonSource,
    interner: &mut Interner,
    ignored: &mut Vec<FieldError>,
) -> Option<ParseResult<Object>> {
    Some(match (group(api_version), kind) {
        ("", "Service") => from
            .typed::<core::Service>()
            .and_then(|o| service(&o, interner, ignored))
            .map(|o| Object::Service(o.into())),
        ("discovery.k8s.io", "EndpointSlice") => from
            .typed::<discovery::EndpointSlice>()
            .and_then(|o| slice(&o, interner))
            .map(|o| Object::Slice(o.into())),
        ("", "Pod") => {
            from.typed::<PodFields>().and_then(|o| pod(&o, interner)).map(|o| Object::Pod(o.into()))
        }
        ("", "Node") => {
            from.typed::<core::Node>().and_then(|o| node(&o, interner)).map(|o| Object::Node(o.into()))
        }
        ("", "Namespace") => {
            from.typed::<core::Namespace>().map(|o| Object::Namespace(namespace(&o, interner)))
        }
        ("networking.k8s.io", "ServiceCIDR") => from
            .typed::<networking::ServiceCIDR>()
            .and_then(|o| service_cidr(&o, interner))
            .map(Object::ServiceCidr),
        ("networking.k8s.io", "IPAddress") => from
            .typed::<networking::IPAddress>()
            .and_then(|o| ip_address(&o, interner))
            .map(Object::IpAddress),
        ("", "Secret" | "ConfigMap") => {
            let of = if kind == "Secret" { CertificateKind::Secret } else { CertificateKind::ConfigMap };
            from.typed::<gateway_api::CertificateFields>().map(|fields| {
                let source = gateway_api::certificate_source(of, &fields);
                Object::GatewayApi(Box::new(GatewayApiObject::Certificate(source)))
            })
        }
        _ => return None,
    })
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn mesh_object(value: &Value, interner: &mut Interner) -> (Option<Object>, Vec<Notice>) {
    let reading = route::mesh_object(value, interner);
    let notices = notices_of(value, &reading);
    (reading.object, notices)
}

fn notices_of(value: &Value, reading: &route::ParsedPolicy) -> Vec<Notice> {
    let about = object_ref(value);
    let wrong = reading.errors.iter().map(|error| malformed(about.clone(), error));
    let ignored = reading.ignored.iter().map(|error| ignored_field(about.clone(), error));
    wrong.chain(ignored).collect()
}

/// Identifies the object in a JSON value, malformed or not.
pub fn object_ref(value: &Value) -> ObjectRef {
    let kind = value["kind"].as_str().unwrap_or("object");
    let metadata = &value["metadata"];
    let given = [&metadata["name"], &metadata["generateName"]].map(|name| name.as_str().unwrap_or_default());
    let name = given.into_iter().find(|name| !name.is_empty()).unwrap_or("(no name)");
    let namespaced = !matches!(kind, "Node" | "Namespace" | "ServiceCIDR" | "IPAddress" | "GatewayClass");
    let namespace = metadata["namespace"].as_str().filter(|n| !n.is_empty());
    ObjectRef::new(kind, if namespaced { namespace.unwrap_or(DEFAULT_NAMESPACE) } else { "" }, name)
}

const MALFORMED: &str = "Malformed";
const MALFORMED_ADVICE: &str = ". The object is ignored until this is fixed.";

/// The Notice for an object that cannot be used.
pub fn malformed(object: ObjectRef, error: &FieldError) -> Notice {
    Notice::new(object, MALFORMED, format!("{}: {}{MALFORMED_ADVICE}", error.field, error.message))
}

/// The field and the error of a Notice from [`malformed`], without its advice.
pub fn malformed_field(notice: &Notice) -> Option<&str> {
    notice.message.strip_suffix(MALFORMED_ADVICE).filter(|_| notice.reason == MALFORMED)
}

fn ignored_field(object: ObjectRef, error: &FieldError) -> Notice {
    let advice = "This entry is ignored; the rest of the object is used.";
    Notice::new(object, "IgnoredField", format!("{}: {}. {advice}", error.field, error.message))
}

fn typed<T: DeserializeOwned>(value: &Value) -> ParseResult<T> {
    strict(value).or_else(|error| {
        // `cpu: 4` without quotes and a condition without a time are legal, but the generated types expect both.
        let mut completed = value.clone();
        quote_quantities(&mut completed);
        complete_conditions(&mut completed);
        strict(&completed).map_err(|_| error)
    })
}

fn strict<T: DeserializeOwned>(value: &Value) -> ParseResult<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        FieldError::invalid(
            if path == "." { "object".to_owned() } else { path },
            error.into_inner().to_string(),
        )
    })
}

/// Gives conditions of a status without `lastTransitionTime`, or with null, the time zero: no decision reads it, and no
/// status may make an object unreadable.
fn complete_conditions(object: &mut Value) {
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        if condition.get("lastTransitionTime").is_none_or(Value::is_null) {
            condition.insert("lastTransitionTime".to_owned(), "1970-01-01T00:00:00Z".into());
        }
    }
}

/// Turns numbers into strings in the maps whose values are quantities.
fn quote_quantities(value: &mut Value) {
    const QUANTITIES: [&str; 5] = ["allocatable", "capacity", "limits", "overhead", "requests"];
    match value {
        Value::Object(fields) => {
            for (field, inner) in fields {
                match inner.as_object_mut().filter(|_| QUANTITIES.contains(&field.as_str())) {
                    Some(amounts) => amounts.values_mut().filter(|v| v.is_number()).for_each(quote),
                    None => quote_quantities(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quote_quantities),
        _ => {}
    }
}

fn quote(value: &mut Value) {
    *value = Value::String(value.to_string());
}

fn key(meta: &ObjectMeta, interner: &mut Interner) -> ObjectKey {
    ObjectKey { namespace: namespace_name(meta, interner), name: name(meta, interner) }
}

fn namespace_name(meta: &ObjectMeta, interner: &mut Interner) -> Name {
    interner.name(meta.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(DEFAULT_NAMESPACE))
}

fn name(meta: &ObjectMeta, interner: &mut Interner) -> Name {
    interner.name(meta.name.as_deref().unwrap_or_default())
}

fn labels(pairs: Option<&std::collections::BTreeMap<String, String>>, interner: &mut Interner) -> Labels {
    match pairs {
        Some(pairs) if !pairs.is_empty() => {
            interner.labels(pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())))
        }
        _ => Labels::EMPTY,
    }
}

/// Labels of an object whose label set is unique: the names are interned, the set is not.
fn own_labels(pairs: Option<&std::collections::BTreeMap<String, String>>, interner: &mut Interner) -> Labels {
    let pairs = pairs.into_iter().flatten();
    Labels::from_pairs(pairs.map(|(k, v)| (interner.name(k), interner.name(v))).collect())
}

/// The annotations in `keys`; the others are not kept.
fn annotations(meta: &ObjectMeta, keys: &[&str], interner: &mut Interner) -> Labels {
    let Some(all) = &meta.annotations else { return Labels::EMPTY };
    let known = keys.iter().filter_map(|key| all.get(*key).map(|value| (*key, value.as_str())));
    let known: Vec<_> = known.collect();
    if known.is_empty() { Labels::EMPTY } else { interner.labels(known) }
}

fn protocol(text: Option<&str>, field: impl FnOnce() -> String) -> ParseResult<Protocol> {
    match text {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(FieldError::invalid(field(), format!("{other:?} is not TCP, UDP or SCTP"))),
    }
}

fn port(number: i32, field: impl FnOnce() -> String) -> ParseResult<u16> {
    u16::try_from(number)
        .map_err(|_| FieldError::invalid(field(), format!("{number} is not a port (1 to 65535)")))
}

fn ip(text: &str, field: impl FnOnce() -> String) -> ParseResult<IpAddr> {
    parse_ip(text).ok_or_else(|| FieldError::invalid(field(), format!("{text:?} is not an IP address")))
}

fn cidr(text: &str, field: impl FnOnce() -> String) -> ParseResult<IpNet> {
    text.trim().parse().map_err(|_| {
        FieldError::invalid(field(), format!("{text:?} is not a CIDR, e.g. 10.96.0.0/16 or fd00::/112"))
    })
}
