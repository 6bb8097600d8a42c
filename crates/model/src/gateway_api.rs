//! Objects of the Gateway API (gateway.networking.k8s.io), with the defaults of its schemas applied.
//!
//! ```text
//! GatewayClass <- Gateway <- ListenerSet
//!                 listeners       <- Route (HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute) -> Services
//! ReferenceGrant: references to other namespaces; BackendTlsPolicy: TLS to Services; CertificateSource: Secrets, ConfigMaps
//! ```
//!
//! Routes share the rules of [`crate::route`], so that both APIs meet in one route table.

use std::sync::Arc;

use crate::name::{Name, ObjectKey, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::{Hostname, RouteFilter, RouteRule};
use crate::time::Timestamp;

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The controller that statuses are written by, and that GatewayClasses name.
pub const CONTROLLER: &str = "zoneward.dev/gateway";

/// The fields of an object's metadata that decide precedence and statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// The namespace is empty for cluster-scoped kinds.
    pub key: ObjectKey,
    pub generation: i64,
    /// `None` for objects of a file, which are created in its order.
    pub created: Option<Timestamp>,
    /// The snapshot's revision that added the object.
    pub added: u64,
}

impl ObjectIdentity {
    /// The order of precedence: older first, then by namespace and name.
    pub fn age_order(&self) -> (bool, Option<Timestamp>, u64, String) {
        let added = if self.created.is_none() { self.added } else { 0 };
        (self.created.is_none(), self.created, added, self.key.to_string())
    }
}

/// A kind of the Gateway API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GatewayApiKind {
    Class,
    Gateway,
    ListenerSet,
    Route(RouteKind),
    Grant,
    TlsPolicy,
}

impl GatewayApiKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Class => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::ListenerSet => "ListenerSet",
            Self::Route(kind) => kind.as_str(),
            Self::Grant => "ReferenceGrant",
            Self::TlsPolicy => "BackendTLSPolicy",
        }
    }
}

/// An object of the Gateway API, or one that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayApiObject {
    Class(GatewayClass),
    Gateway(Gateway),
    ListenerSet(ListenerSet),
    Route(Route),
    Grant(ReferenceGrant),
    TlsPolicy(BackendTlsPolicy),
    Certificate(CertificateSource),
}

impl GatewayApiObject {
    /// Kind and key; `None` for a [`CertificateSource`].
    pub fn kind_and_key(&self) -> Option<(GatewayApiKind, &ObjectKey)> {
        let (kind, identity) = match self {
            Self::Class(o) => (GatewayApiKind::Class, &o.identity),
            Self::Gateway(o) => (GatewayApiKind::Gateway, &o.identity),
            Self::ListenerSet(o) => (GatewayApiKind::ListenerSet, &o.identity),
            Self::Route(o) => (GatewayApiKind::Route(o.kind), &o.identity),
            Self::Grant(o) => (GatewayApiKind::Grant, &o.identity),
            Self::TlsPolicy(o) => (GatewayApiKind::TlsPolicy, &o.identity),
            Self::Certificate(_) => return None,
        };
        Some((kind, &identity.key))
    }
}

/// A GatewayClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayClass {
    pub identity: ObjectIdentity,
    pub controller: Name,
    /// `spec.parametersRef` is set.
    pub has_parameters: bool,
}

/// A Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    pub identity: ObjectIdentity,
    pub class: Name,
    pub listeners: Box<[GatewayListener]>,
    pub addresses: Box<[GatewayAddress]>,
    /// The namespaces of ListenerSets; none by default.
    pub listener_sets_from: NamespaceScope,
    /// `tls.frontend.default`.
    pub client_validation: Option<ClientValidation>,
    /// `tls.frontend.perPort`.
    pub client_validation_by_port: Box<[(u16, Option<ClientValidation>)]>,
    /// `tls.backend.clientCertificateRef`: the client certificate to backends.
    pub client_certificate: Option<ObjectReference>,
    /// `infrastructure.parametersRef` is set.
    pub has_parameters: bool,
}

/// An address that a Gateway asks for, or has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayAddress {
    /// `IPAddress`, `Hostname` or one of an implementation.
    pub kind: Name,
    pub value: Name,
}

/// A ListenerSet: listeners that are added to a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSet {
    pub identity: ObjectIdentity,
    pub parent: ParentReference,
    pub listeners: Box<[GatewayListener]>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayListener {
    pub name: Name,
    pub hostname: Hostname,
    pub port: u16,
    pub protocol: Name,
    pub tls: Option<ListenerTls>,
    pub routes_from: NamespaceScope,
    /// The kinds of routes as group and kind; empty: all of the protocol.
    pub route_kinds: Box<[(Name, Name)]>,
}

/// `tls` of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Otherwise TLS is passed through.
    pub terminates: bool,
    pub certificates: Box<[ObjectReference]>,
}

/// The namespaces of routes or ListenerSets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceScope {
    All,
    Same,
    None,
    Selector(NamespaceSelector),
}

/// A label selector of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceSelector {
    pub requirements: Box<[LabelRequirement]>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    pub key: Name,
    pub operator: LabelOperator,
    pub values: Box<[Name]>,
}

/// The operator of a [`LabelRequirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl NamespaceSelector {
    /// Whether labels meet all requirements; `label` gives the value of a key.
    pub fn selects<'l>(&self, label: impl Fn(&str) -> Option<&'l Name>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = label(&requirement.key);
            let is_listed = value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator {
                LabelOperator::In => is_listed,
                LabelOperator::NotIn => !is_listed,
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        })
    }
}

/// How the client certificates of a listener are validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientValidation {
    pub authorities: Box<[ObjectReference]>,
    /// `AllowInsecureFallback`: clients without a valid certificate are let through.
    pub allows_insecure: bool,
}

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectReference {
    pub group: Name,
    pub kind: Name,
    /// With the default of the referring object applied.
    pub namespace: Name,
    pub name: Name,
}

impl ObjectReference {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

/// A reference of a route to a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentReference {
    pub object: ObjectReference,
    /// Whether the namespace is written, not the default.
    pub has_namespace: bool,
    /// A listener's name, or the name of a Service's port.
    pub section: Option<Name>,
    pub port: Option<u16>,
}

impl ParentReference {
    pub fn kind(&self) -> ParentKind {
        match (self.object.group.as_str(), self.object.kind.as_str()) {
            (GROUP, "Gateway") => ParentKind::Gateway,
            (GROUP, "ListenerSet") => ParentKind::ListenerSet,
            ("", "Service") => ParentKind::Service,
            _ => ParentKind::Other,
        }
    }
}

/// The kind of a route's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParentKind {
    Gateway,
    ListenerSet,
    /// Mesh: requests to the Service.
    Service,
    Other,
}

/// The kind of a [`Route`], in order of precedence on one port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    Grpc,
    Http,
    Tls,
    Tcp,
    Udp,
}

impl RouteKind {
    pub const ALL: [Self; 5] = [Self::Grpc, Self::Http, Self::Tls, Self::Tcp, Self::Udp];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Grpc => "GRPCRoute",
            Self::Http => "HTTPRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }

    pub fn parse(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.as_str() == kind)
    }

    /// Whether it routes requests instead of connections.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Grpc | Self::Http)
    }
}

/// A route of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub identity: ObjectIdentity,
    pub kind: RouteKind,
    pub parents: Box<[ParentReference]>,
    /// Empty: all hosts of the listener.
    pub hostnames: Box<[Hostname]>,
    pub rules: Box<[GatewayApiRule]>,
}

impl Route {
    /// The Services that requests may go to, mirrors included, each perhaps more than once.
    pub fn backend_services(&self) -> impl Iterator<Item = ServiceKey> {
        let rules = self.rules.iter().map(|rule| &rule.rule);
        let backends = rules.clone().flat_map(|rule| rule.backends.iter().flatten());
        let mirrors =
            rules.flat_map(|rule| rule.filters.iter().flatten()).filter_map(|filter| match filter {
                RouteFilter::Mirror { backend, .. } => Some(backend),
                _ => None,
            });
        backends.chain(mirrors).map(|backend| {
            let own = &self.identity.key.namespace;
            ServiceKey::new(backend.object.as_ref().map_or(own, |object| &object.namespace), &backend.name)
        })
    }

    /// Whether one of its filters refers to the MeshRouteFilter of this name in its namespace.
    pub fn refers_to_filter(&self, name: &Name) -> bool {
        let rules = self.rules.iter().map(|rule| &rule.rule);
        let backends = rules.clone().flat_map(|rule| rule.backends.iter().flatten());
        let of_backends = backends.flat_map(|backend| backend.filters.iter());
        let mut all = rules.flat_map(|rule| rule.filters.iter().flatten()).chain(of_backends);
        all.any(|filter| match filter {
            RouteFilter::Extension(filter) => filter.is_own() && filter.name == *name,
            _ => false,
        })
    }

    pub fn object(&self) -> ObjectRef {
        let ObjectKey { namespace, name } = &self.identity.key;
        ObjectRef::new(self.kind.as_str(), namespace, name)
    }
}

/// A rule of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayApiRule {
    /// Without matches for TLSRoute, TCPRoute and UDPRoute.
    pub rule: Arc<RouteRule>,
    /// Why the rule is dropped: the field and the value that is not supported.
    pub unsupported: Option<Name>,
}

/// A ReferenceGrant: references from other namespaces into its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceGrant {
    pub identity: ObjectIdentity,
    pub from: Box<[GrantFrom]>,
    pub to: Box<[GrantTo]>,
}

/// The referring objects of a ReferenceGrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantFrom {
    pub group: Name,
    pub kind: Name,
    pub namespace: Name,
}

/// The objects of a ReferenceGrant that may be referred to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantTo {
    pub group: Name,
    pub kind: Name,
    /// `None`: all of the kind.
    pub name: Option<Name>,
}

impl ReferenceGrant {
    /// Whether it permits references from objects of a kind and namespace to an object in its own namespace.
    pub fn permits(&self, kind: &str, namespace: &str, to: &ObjectReference) -> bool {
        let is_from =
            |from: &GrantFrom| from.group == GROUP && from.kind == kind && from.namespace == namespace;
        let is_to = |entry: &GrantTo| {
            entry.group == to.group
                && entry.kind == to.kind
                && entry.name.as_ref().is_none_or(|name| *name == to.name)
        };
        self.identity.key.namespace == to.namespace
            && self.from.iter().any(is_from)
            && self.to.iter().any(is_to)
    }
}

/// A BackendTLSPolicy: TLS from gateways to Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTlsPolicy {
    pub identity: ObjectIdentity,
    pub targets: Box<[TlsPolicyTarget]>,
    /// SNI, and the name in the certificate unless there are `alternative_names`.
    pub hostname: Name,
    pub alternative_names: Box<[Name]>,
    /// In the policy's namespace.
    pub authorities: Box<[ObjectReference]>,
    /// `wellKnownCACertificates: System`.
    pub trusts_system: bool,
}

/// A target of a BackendTLSPolicy, in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicyTarget {
    pub group: Name,
    pub kind: Name,
    pub name: Name,
    /// The name of a Service's port; `None`: all ports.
    pub section: Option<Name>,
}

/// A Secret or ConfigMap as the source of certificates. Its data is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSource {
    pub kind: CertificateKind,
    pub key: ObjectKey,
    /// Why it cannot be used.
    pub problem: Option<Name>,
}

/// The kind of a [`CertificateSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateKind {
    /// A certificate with its key, of type kubernetes.io/tls.
    Secret,
    /// Certificate authorities in `ca.crt`.
    ConfigMap,
}
