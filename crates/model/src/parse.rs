//! Kubernetes objects -> ours, once, at the edge.
//!
//! ```text
//! JSON -> k8s-openapi type -> parse::<kind> -> Service | Slice | Pod | Node | Namespace | ServiceCidr | IpAddress
//! JSON of our own kinds -> parse::route -> HttpRoute | GatewayHttpRoute | TcpRoute | Gateway
//!                          \-> Notice: the object and field, what is wrong, what to do; the object counts as absent
//! ```

mod ip_address;
mod lean;
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
use crate::label::Labels;
use crate::name::{Interner, Name, ObjectKey};
use crate::node::{Namespace, Node};
use crate::notice::{Notice, ObjectRef};
use crate::pod::Pod;
use crate::range::{IpAddress, ServiceCidr};
use crate::route::{Gateway, GatewayHttpRoute, HttpRoute, TcpRoute};
use crate::service::Service;
use crate::slice::Slice;

pub use ip_address::{ip_address, service_cidr};
pub use node::{namespace, node};
pub use pod::pod;
pub use service::service;
pub use slice::slice;

/// An object of a kind that we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// An EndpointSlice.
    Slice(Box<Slice>),
    /// A Pod.
    Pod(Box<Pod>),
    /// A Node.
    Node(Box<Node>),
    /// A Namespace.
    Namespace(Namespace),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidr),
    /// An IPAddress.
    IpAddress(IpAddress),
    /// A MeshHTTPRoute.
    HttpRoute(Box<HttpRoute>),
    /// A MeshGatewayHTTPRoute.
    GatewayHttpRoute(Box<GatewayHttpRoute>),
    /// A MeshTCPRoute.
    TcpRoute(Box<TcpRoute>),
    /// A MeshGateway.
    Gateway(Box<Gateway>),
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's path, as `spec.ports[0].protocol`.
    pub field: String,
    /// What is wrong with it, and what it may be.
    pub text: String,
}

impl Problem {
    fn new(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self { field: field.into(), text: text.into() }
    }
}

/// A parsed value, or the first field that made it impossible.
pub type Checked<T> = Result<T, Problem>;

/// The namespace of namespaced objects that name none.
const DEFAULT_NAMESPACE: &str = "default";

/// Reads an object of any kind. A kind that we do not know is no object and no Notice.
pub fn object(value: &Value, interner: &mut Interner) -> (Option<Object>, Vec<Notice>) {
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let kind = value["kind"].as_str().unwrap_or_default();
    if group(api_version) == route::GROUP && route::KINDS.contains(&kind) {
        return mesh_object(value, interner);
    }
    let mut remarks = Vec::new();
    let Some(parsed) = by_kind(api_version, kind, &value, interner, &mut remarks) else {
        return (None, Vec::new());
    };
    let about = object_ref(value);
    let mut notices: Vec<Notice> =
        remarks.into_iter().map(|problem| ignored_field(about.clone(), &problem)).collect();
    match parsed {
        Ok(object) => (Some(object), notices),
        Err(problem) => {
            notices.push(malformed(about, &problem));
            (None, notices)
        }
    }
}

/// Reads an object from the text that an API sent, whose kind is known by where it came from: items of lists do
/// not name theirs.
pub fn text(
    api_version: &str,
    kind: &str,
    text: &str,
    interner: &mut Interner,
) -> (Option<Object>, Vec<Notice>) {
    let mut remarks = Vec::new();
    if let Some(Ok(object)) = by_kind(api_version, kind, &text, interner, &mut remarks)
        && remarks.is_empty()
    {
        return (Some(object), Vec::new());
    }
    // Something is to be said about it: the slow way knows its name and how to say it.
    let mut value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let problem = Problem::new("object", error.to_string());
            return (None, vec![malformed(ObjectRef::new(kind, "", "(no name)"), &problem)]);
        }
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), api_version.into());
        fields.insert("kind".into(), kind.into());
    }
    object(&value, interner)
}

/// The same for one of [`route::KINDS`], of which something may be remembered from the version before; the last of the
/// result is to be remembered for the next.
pub fn mesh_text(
    api_version: &str,
    kind: &str,
    text: &str,
    before: Option<&route::Remembered>,
    interner: &mut Interner,
) -> (Option<Object>, Vec<Notice>, Option<route::Remembered>) {
    match route::mesh_text(api_version, kind, text, before, interner) {
        Ok((value, reading, remembered)) => {
            let notices = notices_of(&value, &reading);
            (reading.object, notices, remembered)
        }
        Err(error) => {
            let problem = Problem::new("object", error.to_string());
            (None, vec![malformed(ObjectRef::new(kind, "", "(no name)"), &problem)], None)
        }
    }
}

/// What an object can be read from.
trait Source {
    fn typed<T: DeserializeOwned>(&self) -> Checked<T>;

    /// A Pod; perhaps only the part of it that counts.
    fn pod(&self) -> Checked<core::Pod> {
        self.typed()
    }
}

impl Source for &Value {
    fn typed<T: DeserializeOwned>(&self) -> Checked<T> {
        typed(self)
    }
}

impl Source for &str {
    fn typed<T: DeserializeOwned>(&self) -> Checked<T> {
        serde_json::from_str(self).map_err(|error| Problem::new("object", error.to_string()))
    }

    fn pod(&self) -> Checked<core::Pod> {
        lean::pod(self).map_err(|error| Problem::new("object", error.to_string()))
    }
}

/// Reads an object of a kind that we know.
fn by_kind(
    api_version: &str,
    kind: &str,
    from: &impl Source,
    interner: &mut Interner,
    remarks: &mut Vec<Problem>,
) -> Option<Checked<Object>> {
    Some(match (group(api_version), kind) {
        ("", "Service") => from
            .typed::<core::Service>()
            .and_then(|o| service(&o, interner, remarks))
            .map(|o| Object::Service(o.into())),
        ("discovery.k8s.io", "EndpointSlice") => from
            .typed::<discovery::EndpointSlice>()
            .and_then(|o| slice(&o, interner))
            .map(|o| Object::Slice(o.into())),
        ("", "Pod") => from.pod().and_then(|o| pod(&o, interner)).map(|o| Object::Pod(o.into())),
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
        _ => return None,
    })
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Everything that is wrong with a policy is told at once; then it counts as absent.
fn mesh_object(value: &Value, interner: &mut Interner) -> (Option<Object>, Vec<Notice>) {
    let reading = route::mesh_object(value, interner);
    let notices = notices_of(value, &reading);
    (reading.object, notices)
}

fn notices_of(value: &Value, reading: &route::Reading) -> Vec<Notice> {
    let about = object_ref(value);
    let wrong = reading.problems.iter().map(|problem| malformed(about.clone(), problem));
    let ignored = reading.ignored.iter().map(|problem| ignored_field(about.clone(), problem));
    wrong.chain(ignored).collect()
}

/// Names the object that a piece of JSON holds, whatever its state.
pub fn object_ref(value: &Value) -> ObjectRef {
    let kind = value["kind"].as_str().unwrap_or("object");
    let metadata = &value["metadata"];
    let given = [&metadata["name"], &metadata["generateName"]].map(|name| name.as_str().unwrap_or_default());
    let name = given.into_iter().find(|name| !name.is_empty()).unwrap_or("(no name)");
    let namespaced = !matches!(kind, "Node" | "Namespace" | "ServiceCIDR" | "IPAddress");
    let namespace = metadata["namespace"].as_str().filter(|n| !n.is_empty());
    ObjectRef::new(kind, if namespaced { namespace.unwrap_or(DEFAULT_NAMESPACE) } else { "" }, name)
}

/// The Notice of an object that cannot be used.
pub fn malformed(object: ObjectRef, problem: &Problem) -> Notice {
    let advice = "The object counts as absent until this is put right.";
    Notice::new(object, "Malformed", format!("{}: {}. {advice}", problem.field, problem.text))
}

fn ignored_field(object: ObjectRef, problem: &Problem) -> Notice {
    let advice = "This entry is ignored; the rest of the object counts.";
    Notice::new(object, "IgnoredField", format!("{}: {}. {advice}", problem.field, problem.text))
}

fn typed<T: DeserializeOwned>(value: &Value) -> Checked<T> {
    strict(value).or_else(|problem| {
        // `cpu: 4` without quotes is legal, but the generated types want text.
        let mut quoted = value.clone();
        quote_quantities(&mut quoted);
        strict(&quoted).map_err(|_| problem)
    })
}

fn strict<T: DeserializeOwned>(value: &Value) -> Checked<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Problem::new(if path == "." { "object".to_owned() } else { path }, error.into_inner().to_string())
    })
}

/// Turns bare numbers into text in the maps whose values are quantities.
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

/// Labels of an object whose set no other object has: the names are shared, the set is not.
fn own_labels(pairs: Option<&std::collections::BTreeMap<String, String>>, interner: &mut Interner) -> Labels {
    let pairs = pairs.into_iter().flatten();
    Labels::from_pairs(pairs.map(|(k, v)| (interner.name(k), interner.name(v))).collect())
}

/// The annotations in `keys`; the others are not ours to hold.
fn annotations(meta: &ObjectMeta, keys: &[&str], interner: &mut Interner) -> Labels {
    let Some(all) = &meta.annotations else { return Labels::EMPTY };
    let known = keys.iter().filter_map(|key| all.get(*key).map(|value| (*key, value.as_str())));
    let known: Vec<_> = known.collect();
    if known.is_empty() { Labels::EMPTY } else { interner.labels(known) }
}

fn protocol(text: Option<&str>, field: impl FnOnce() -> String) -> Checked<Protocol> {
    match text {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(Problem::new(field(), format!("{other:?} is not TCP, UDP or SCTP"))),
    }
}

fn port(number: i32, field: impl FnOnce() -> String) -> Checked<u16> {
    u16::try_from(number).map_err(|_| Problem::new(field(), format!("{number} is not a port (1 to 65535)")))
}

fn ip(text: &str, field: impl FnOnce() -> String) -> Checked<IpAddr> {
    parse_ip(text).ok_or_else(|| Problem::new(field(), format!("{text:?} is not an IP address")))
}

fn cidr(text: &str, field: impl FnOnce() -> String) -> Checked<IpNet> {
    text.trim().parse().map_err(|_| {
        Problem::new(field(), format!("{text:?} is not a CIDR, as 10.96.0.0/16 or fd00::/112 would be"))
    })
}
