//! The policies that route: MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway.
//!
//! The mesh is the whole API. A policy applies to requests to Services of its namespace (producer) and to requests of
//! clients in its namespace (consumer); names refer to its namespace unless a destination has another. Rules are shared
//! with route tables, and with the next version of the policy where they did not change.

use std::sync::Arc;

use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::hostname::Hostname;
use crate::route::redirect::Scheme;
use crate::route::rule::{BackendRef, RouteRule};

/// A MeshHTTPRoute: requests from some clients to some Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshHttpRoute {
    pub key: ObjectKey,
    /// The clients (`spec.targetRef`).
    pub target: PolicyTarget,
    /// The destinations (`spec.to`).
    pub to: Box<[ToHttp]>,
}

/// The rules for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToHttp {
    pub service: ServiceKey,
    pub rules: Box<[Arc<RouteRule>]>,
}

/// A MeshGatewayHTTPRoute: requests that arrive at a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshGatewayHttpRoute {
    pub key: ObjectKey,
    /// The gateway, with the tags of its listeners.
    pub target: PolicyTarget,
    /// Empty: all hosts of the listener.
    pub hostnames: Box<[Hostname]>,
    pub rules: Box<[Arc<RouteRule>]>,
}

/// A MeshTCPRoute: connections from some clients to some Services, or through a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTcpRoute {
    pub key: ObjectKey,
    /// The clients, or a gateway.
    pub target: PolicyTarget,
    pub to: Box<[ToTcp]>,
}

/// The backends for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToTcp {
    /// `None` at a gateway: every connection.
    pub service: Option<ServiceKey>,
    /// At least one.
    pub backends: Box<[BackendRef]>,
}

/// A MeshGateway: listeners for requests from outside the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshGateway {
    pub key: ObjectKey,
    pub listeners: Box<[MeshGatewayListener]>,
}

/// One listener of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshGatewayListener {
    /// Unique in the gateway.
    pub name: Name,
    pub port: u16,
    pub protocol: MeshGatewayProtocol,
    pub hostname: Hostname,
    /// The tags that routes select it by.
    pub tags: Labels,
    /// Only with TLS; none passes it through.
    pub certificates: Box<[Certificate]>,
    /// They are in the list `tls.certificateRefs`, not in `tls.certificateRef`.
    pub has_certificate_refs: bool,
}

impl MeshGatewayListener {
    /// The field of a certificate, in the listener.
    pub fn certificate_field(&self, at: usize) -> String {
        match self.has_certificate_refs {
            true => format!("tls.certificateRefs[{at}]"),
            false => "tls.certificateRef".to_owned(),
        }
    }
}

/// The protocol of a gateway's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshGatewayProtocol {
    Http,
    /// Terminates TLS.
    Https,
    Tcp,
    /// Terminates TLS, or passes it through if the listener has no certificate.
    Tls,
}

impl MeshGatewayProtocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }

    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    pub fn scheme(self) -> Scheme {
        if self.is_tls() { Scheme::Https } else { Scheme::Http }
    }
}

/// A certificate and its key: a Secret of type kubernetes.io/tls in the gateway's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub secret: ObjectKey,
}

/// The clients or listeners that a policy applies to (`spec.targetRef`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyTarget {
    /// Every client.
    Mesh,
    /// Clients with all of these tags.
    Subset(Labels),
    /// The pods of a Service in the policy's namespace.
    Service(Name),
    /// The pods of a Service in the policy's namespace that have all of these tags.
    ServiceSubset(Name, Labels),
    /// The listeners of a gateway that have all of these tags.
    Gateway(Name, Labels),
}

impl MeshHttpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshHTTPRoute", &self.key.namespace, &self.key.name)
    }
}

impl MeshGatewayHttpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        Self::object_at(&self.key.namespace, &self.key.name)
    }

    /// The same, of one that is not at hand.
    pub fn object_at(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::new("MeshGatewayHTTPRoute", namespace, name)
    }
}

impl MeshTcpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshTCPRoute", &self.key.namespace, &self.key.name)
    }
}

impl MeshGateway {
    /// The gateway's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshGateway", &self.key.namespace, &self.key.name)
    }
}
