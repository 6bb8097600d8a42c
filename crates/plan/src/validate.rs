//! What a Kubernetes API server would say about an object before it takes it in.
//!
//! Works on the JSON itself, not on parsed nouns: a person who wrote `port: "80"` wants to read which field
//! is wrong, and everything that is wrong at once. `zoneward plan validate` and the admission of the embedded
//! API both ask here.
//!
//! ```text
//! JSON -> Field (path + value) -> meta, then one file per kind -> Findings -> Vec<Violation>
//! ```

mod disabled;
mod endpoint_slice;
mod fault;
mod field;
mod ip;
mod ip_address;
mod kinds;
mod mesh;
mod meta;
mod namespace;
mod node;
mod pod;
mod ports;
mod service;
mod service_cidr;
mod settings;
mod syntax;
#[cfg(test)]
mod table;

use std::fmt;
use std::ops::RangeInclusive;

use model::parse::route::{GROUP, KINDS, mesh_object};
use model::{Interner, ObjectRef};
use serde_json::Value;

pub use disabled::{drop_disabled, refuse_disabled};
pub use fault::Fault;
use field::{Field, Findings};

/// One field of one object that an API server would refuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The object.
    pub object: ObjectRef,
    /// The field's path, as `spec.ports[0].port`.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
    /// In which way it is wrong.
    pub fault: Fault,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.reason)
    }
}

/// What an API server is configured with and an object cannot say itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The ports that a Service may ask for on every node (`--service-node-port-range`).
    pub node_ports: RangeInclusive<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { node_ports: 30_000..=32_767 }
    }
}

impl Settings {
    /// Everything that stands against creating the object; of a kind that we do not know, nothing.
    pub fn validate(&self, object: &Value) -> Vec<Violation> {
        let Some(kind) = Kind::of(object) else { return Vec::new() };
        let mut findings = Findings::new(object);
        kind.check(&Change { new: Field::root(object), old: None, settings: self }, &mut findings);
        findings.into_violations()
    }

    /// Everything that stands against putting `new` in the place of `old`: also what may never change.
    pub fn validate_update(&self, old: &Value, new: &Value) -> Vec<Violation> {
        let Some(kind) = Kind::of(new) else { return Vec::new() };
        let mut findings = Findings::new(new);
        if Kind::of(old) != Some(kind) {
            let was = old["kind"].as_str().unwrap_or("object without a kind");
            let reason = format!("a stored {was} cannot become a {}: make a new object", kind.name());
            findings.refuse_at("kind", reason);
            return findings.into_violations();
        }
        let change = Change { new: Field::root(new), old: Some(Field::root(old)), settings: self };
        kind.check(&change, &mut findings);
        findings.into_violations()
    }
}

/// Everything that stands against creating the object, with the settings that API servers have by default.
pub fn validate(object: &Value) -> Vec<Violation> {
    Settings::default().validate(object)
}

/// Everything that stands against putting `new` in the place of `old`, with the default settings.
pub fn validate_update(old: &Value, new: &Value) -> Vec<Violation> {
    Settings::default().validate_update(old, new)
}

/// What an API server accepts although it has no effect: kinds that do not exist, annotations of ours that are misspelled, and
/// values of them that ask for nothing. For files before they are applied; admission does not ask here.
pub fn lint(object: &Value) -> Vec<Violation> {
    let mut findings = Findings::new(object);
    kinds::check(object, &mut findings);
    settings::check(object, &mut findings);
    findings.into_violations()
}

/// What is allowed and has no effect: rules of a route policy that no request can hit. Of an object that is not valid,
/// nothing.
pub fn without_effect(object: &Value) -> Vec<Violation> {
    let (group, _) = group_and_version(object);
    if group != GROUP || !object["kind"].as_str().is_some_and(|kind| KINDS.contains(&kind)) {
        return Vec::new();
    }
    let reading = mesh_object(object, &mut Interner::default());
    let notices = reading.object.as_ref().map(crate::routes::never_matching).unwrap_or_default();
    let warning = |notice: model::Notice| Violation {
        object: notice.object,
        field: notice.message.split(' ').next().unwrap_or_default().to_owned(),
        reason: notice.message,
        fault: Fault::Invalid,
    };
    notices.into_iter().map(warning).collect()
}

/// Whether the object is of a kind that is validated here.
pub fn is_known(object: &Value) -> bool {
    Kind::of(object).is_some()
}

/// An object that is to be stored, and the one that it replaces.
struct Change<'a> {
    new: Field<'a>,
    old: Option<Field<'a>>,
    settings: &'a Settings,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Service,
    EndpointSlice,
    Pod,
    Node,
    Namespace,
    ServiceCidr,
    IpAddress,
    HttpRoute,
    GatewayHttpRoute,
    TcpRoute,
    Gateway,
}

impl Kind {
    /// Group and kind decide; a version that is not served is a violation, not another kind.
    fn of(object: &Value) -> Option<Self> {
        let (group, _) = group_and_version(object);
        match (group, object["kind"].as_str()?) {
            ("", "Service") => Some(Self::Service),
            ("", "Pod") => Some(Self::Pod),
            ("", "Node") => Some(Self::Node),
            ("", "Namespace") => Some(Self::Namespace),
            ("discovery.k8s.io", "EndpointSlice") => Some(Self::EndpointSlice),
            ("networking.k8s.io", "ServiceCIDR") => Some(Self::ServiceCidr),
            ("networking.k8s.io", "IPAddress") => Some(Self::IpAddress),
            (GROUP, "MeshHTTPRoute") => Some(Self::HttpRoute),
            (GROUP, "MeshGatewayHTTPRoute") => Some(Self::GatewayHttpRoute),
            (GROUP, "MeshTCPRoute") => Some(Self::TcpRoute),
            (GROUP, "MeshGateway") => Some(Self::Gateway),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::ServiceCidr => "ServiceCIDR",
            Self::IpAddress => "IPAddress",
            Self::HttpRoute => "MeshHTTPRoute",
            Self::GatewayHttpRoute => "MeshGatewayHTTPRoute",
            Self::TcpRoute => "MeshTCPRoute",
            Self::Gateway => "MeshGateway",
        }
    }

    /// The versions that a current API server serves, the preferred one first.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Service | Self::Pod | Self::Node | Self::Namespace => &["v1"],
            Self::EndpointSlice => &["discovery.k8s.io/v1"],
            Self::ServiceCidr | Self::IpAddress => &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
            Self::HttpRoute | Self::GatewayHttpRoute | Self::TcpRoute | Self::Gateway => {
                &["zoneward.dev/v1alpha1"]
            }
        }
    }

    fn check(self, change: &Change, findings: &mut Findings) {
        let version = change.new.child("apiVersion");
        if !version.peek_text().is_some_and(|text| self.versions().contains(&text)) {
            findings.refuse(&version, format!("write {}", self.versions()[0]));
        }
        match self {
            Self::Service => service::check(change, findings),
            Self::EndpointSlice => endpoint_slice::check(change, findings),
            Self::Pod => pod::check(change, findings),
            Self::Node => node::check(change, findings),
            Self::Namespace => namespace::check(change, findings),
            Self::ServiceCidr => service_cidr::check(change, findings),
            Self::IpAddress => ip_address::check(change, findings),
            Self::HttpRoute | Self::GatewayHttpRoute | Self::TcpRoute | Self::Gateway => {
                mesh::check(change, findings)
            }
        }
    }
}

fn group_and_version(object: &Value) -> (&str, &str) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    api_version.split_once('/').unwrap_or(("", api_version))
}
