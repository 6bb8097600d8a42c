//! The policies as objects: MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway.
//!
//! The mesh is the whole API. A policy changes requests to Services of its own namespace, from anywhere, or requests of
//! its own namespace's clients; the names in it are of its own namespace, unless a destination says another. Its rules
//! are shared with the tables made of them, and with its next version where they are the same there.

use std::sync::Arc;

use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::host::Hostname;
use crate::route::redirect::Scheme;
use crate::route::rule::{BackendRef, Rule};

/// A MeshHTTPRoute: requests from some clients to some Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRoute {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Whose requests.
    pub target: PolicyTarget,
    /// To whom, and what then.
    pub to: Box<[ToHttp]>,
}

/// The rules for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToHttp {
    /// The Service; in the policy's namespace unless it says another.
    pub service: ServiceKey,
    /// The rules.
    pub rules: Box<[Arc<Rule>]>,
}

/// A MeshGatewayHTTPRoute: requests that arrive at a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayHttpRoute {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The gateway, with the tags of its listeners.
    pub target: PolicyTarget,
    /// For these hosts; empty: for all that the listener has.
    pub hostnames: Box<[Hostname]>,
    /// The rules.
    pub rules: Box<[Arc<Rule>]>,
}

/// A MeshTCPRoute: connections from some clients to some Services, or through a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpRoute {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Whose connections.
    pub target: PolicyTarget,
    /// To whom, and where they go instead.
    pub to: Box<[ToTcp]>,
}

/// The backends for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToTcp {
    /// The Service; `None` behind a gateway, where everything that arrives is meant.
    pub service: Option<ServiceKey>,
    /// The backends; at least one.
    pub backends: Box<[BackendRef]>,
}

/// A MeshGateway: where requests come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its listeners.
    pub listeners: Box<[GatewayListener]>,
}

/// One listener of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayListener {
    /// Its name, unique in the gateway.
    pub name: Name,
    /// The port.
    pub port: u16,
    /// What is spoken.
    pub protocol: GatewayProtocol,
    /// The hosts that it is for.
    pub hostname: Hostname,
    /// What routes can select it by.
    pub tags: Labels,
    /// Where there is TLS.
    pub certificate: Option<Certificate>,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayProtocol {
    /// HTTP in the clear.
    Http,
    /// HTTP by TLS that ends here.
    Https,
    /// Bytes.
    Tcp,
    /// Bytes by TLS that ends here, or is carried on unread where the listener has no certificate.
    Tls,
}

impl GatewayProtocol {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }

    /// Whether requests are routed one by one.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// Whether clients speak TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// How clients of it write addresses.
    pub fn scheme(self) -> Scheme {
        if self.is_tls() { Scheme::Https } else { Scheme::Http }
    }
}

/// A certificate and its key: a Secret of type kubernetes.io/tls in the gateway's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The Secret.
    pub secret: ObjectKey,
}

/// Whom a policy is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyTarget {
    /// Every client of the mesh.
    Mesh,
    /// Every client of the mesh that carries all of these tags.
    Subset(Labels),
    /// The pods of a Service of the policy's namespace.
    Service(Name),
    /// Those pods of a Service of the policy's namespace that carry all of these tags.
    ServiceSubset(Name, Labels),
    /// The listeners of a gateway that carry all of these tags.
    Gateway(Name, Labels),
}

impl HttpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshHTTPRoute", &self.key.namespace, &self.key.name)
    }
}

impl GatewayHttpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        Self::object_at(&self.key.namespace, &self.key.name)
    }

    /// The same, of one that is not at hand.
    pub fn object_at(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::new("MeshGatewayHTTPRoute", namespace, name)
    }
}

impl TcpRoute {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshTCPRoute", &self.key.namespace, &self.key.name)
    }
}

impl Gateway {
    /// The gateway's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new("MeshGateway", &self.key.namespace, &self.key.name)
    }
}
