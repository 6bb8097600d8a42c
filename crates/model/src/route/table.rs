//! The routes of one proxy: a sidecar's outbounds, or a gateway's listeners.
//!
//! ```text
//! sidecar: original destination -> Outbound -> Routing
//! gateway: port -> Listener by SNI or host -> HttpRoutes by host
//! Routing::Http -> HttpRoutes: groups of entries, first hit -> HttpRule -> Action
//! ```
//!
//! Everything is behind `Arc`: a new table shares with the old one what did not change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::action::{Responder, RuleAction, WeightedBackends};
use crate::route::hostname::{HostMap, Hostname};
use crate::route::matcher::{MatchEntry, RouteGroup};
use crate::route::policy::{Certificate, GatewayProtocol};
use crate::route::request::RequestView;
use crate::route::rule::{MatchConditions, PathMatch, RouteMatch, RouteRule};

/// The routes of one proxy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    /// A sidecar's destinations.
    outbounds: BTreeMap<(ServiceKey, u16), Arc<Outbound>>,
    outbounds_by_address: BTreeMap<SocketAddr, Arc<Outbound>>,
    ports: BTreeMap<u16, Arc<GatewayPort>>,
}

impl RouteTable {
    /// Adds or replaces the outbound of a Service port.
    pub fn put_outbound(&mut self, outbound: Arc<Outbound>) {
        self.remove_outbound(&outbound.service, outbound.port);
        for address in &outbound.addresses {
            self.outbounds_by_address.insert(SocketAddr::new(*address, outbound.port), outbound.clone());
        }
        self.outbounds.insert((outbound.service.clone(), outbound.port), outbound);
    }

    pub fn remove_outbound(&mut self, service: &ServiceKey, port: u16) {
        let Some(old) = self.outbounds.remove(&(service.clone(), port)) else { return };
        for address in &old.addresses {
            let address = SocketAddr::new(*address, port);
            // Another Service may have taken over the address.
            if self.outbounds_by_address.get(&address).is_some_and(|held| Arc::ptr_eq(held, &old)) {
                self.outbounds_by_address.remove(&address);
            }
        }
    }

    /// Adds or replaces a gateway's port.
    pub fn put_port(&mut self, port: Arc<GatewayPort>) {
        self.ports.insert(port.number, port);
    }

    pub fn outbound(&self, service: &ServiceKey, port: u16) -> Option<&Arc<Outbound>> {
        self.outbounds.get(&(service.clone(), port))
    }

    /// The outbound for a connection's original destination. `None`: no Service, pass it through.
    pub fn outbound_at(&self, original: SocketAddr) -> Option<&Arc<Outbound>> {
        self.outbounds_by_address.get(&original)
    }

    /// Sorted by Service and port.
    pub fn outbounds(&self) -> impl Iterator<Item = &Arc<Outbound>> {
        self.outbounds.values()
    }

    /// A gateway's port for changes, which clones of the table do not see.
    pub fn port_mut(&mut self, number: u16) -> Option<&mut GatewayPort> {
        self.ports.get_mut(&number).map(Arc::make_mut)
    }

    pub fn port(&self, number: u16) -> Option<&Arc<GatewayPort>> {
        self.ports.get(&number)
    }

    /// Sorted by number.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<GatewayPort>> {
        self.ports.values()
    }

    /// Every backend of every route: the contents of the BackendTable.
    pub fn backends(&self) -> BTreeSet<BackendId> {
        let mut found = BTreeSet::new();
        let of_outbounds = self.outbounds.values().map(|outbound| &outbound.routing);
        let listeners = self.ports.values().flat_map(|port| port.listeners.iter());
        for routing in of_outbounds.chain(listeners.flat_map(|l| l.hosts.iter().map(|(_, r)| r))) {
            routing.add_backends(&mut found);
        }
        found
    }
}

/// The routes of a sidecar to one port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    pub service: ServiceKey,
    /// The Service's port.
    pub port: u16,
    pub protocol: AppProtocol,
    /// The Service's cluster IPs.
    pub addresses: Box<[IpAddr]>,
    pub routing: Routing,
}

/// How a connection is routed.
#[derive(Clone, Debug, PartialEq)]
pub enum Routing {
    /// Per request.
    Http(Arc<HttpRoutes>),
    /// As a whole; closed if there is no backend.
    Tcp(Arc<WeightedBackends>),
}

impl Routing {
    pub fn add_backends(&self, found: &mut BTreeSet<BackendId>) {
        match self {
            Self::Http(routes) => routes.rules().for_each(|rule| rule.add_backends(found)),
            Self::Tcp(split) => found.extend(split.backends().cloned()),
        }
    }
}

/// One port of a gateway. Listeners that share it differ in their host names.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayPort {
    pub number: u16,
    /// All listeners of a port have the same protocol.
    pub protocol: GatewayProtocol,
    pub listeners: Box<[Listener]>,
    /// The index of the listener for a host.
    listener_by_host: HostMap<usize>,
}

impl GatewayPort {
    /// Of two listeners with the same host name the first wins.
    pub fn new(number: u16, protocol: GatewayProtocol, listeners: Vec<Listener>) -> Self {
        let mut listener_by_host = HostMap::default();
        for (i, listener) in listeners.iter().enumerate() {
            if listener_by_host.at(&listener.hostname).is_none() {
                listener_by_host.insert(&listener.hostname, i);
            }
        }
        Self { number, protocol, listeners: listeners.into(), listener_by_host }
    }

    /// The listener for a host: the SNI with TLS, else the Host header. The most specific host name wins, even if only a
    /// less specific one has a route (semantics 1.6).
    pub fn listener(&self, host: &str) -> Option<&Listener> {
        self.listener_by_host.find(host).and_then(|at| self.listeners.get(*at))
    }
}

/// One listener of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    pub name: Name,
    pub hostname: Hostname,
    /// Only with TLS.
    pub certificate: Option<Certificate>,
    /// The routes of each host. Requests to other hosts get 404, TCP connections are closed.
    pub hosts: HostMap<Routing>,
}

impl Listener {
    pub fn routing(&self, host: &str) -> Option<&Routing> {
        self.hosts.find(host)
    }
}

/// The HTTP routes of one destination, or of one host at a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRoutes {
    /// Groups of rules in order of precedence: at a gateway, one for each host name that covers the host.
    pub groups: Box<[Arc<RouteGroup>]>,
}

impl HttpRoutes {
    /// The rule that a request matches. `None` is 404 at a gateway; in the mesh the last rule matches every request.
    pub fn find(&self, request: &RequestView<'_>) -> Option<MatchedRoute<'_>> {
        self.groups.iter().find_map(|group| {
            let entry = group.find(request)?;
            Some(MatchedRoute { rule: group.rules().get(entry.rule)?, entry })
        })
    }

    /// Every entry with its rule, in order of precedence.
    pub fn entries(&self) -> impl Iterator<Item = MatchedRoute<'_>> {
        self.groups.iter().flat_map(|group| {
            let rules = group.rules();
            group
                .entries()
                .iter()
                .filter_map(|entry| Some(MatchedRoute { rule: rules.get(entry.rule)?, entry }))
        })
    }

    pub fn rules(&self) -> impl Iterator<Item = &HttpRule> {
        self.groups.iter().flat_map(|group| group.rules()).map(|rule| &**rule)
    }
}

/// The rule and match that a request hit.
#[derive(Clone, Copy, Debug)]
pub struct MatchedRoute<'t> {
    pub rule: &'t HttpRule,
    pub entry: &'t MatchEntry,
}

/// One rule after merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// The merged rule; shared with the policy if only one has it.
    pub rule: Arc<RouteRule>,
    pub origin: RuleOrigin,
    pub action: RuleAction,
}

impl HttpRule {
    fn add_backends(&self, found: &mut BTreeSet<BackendId>) {
        found.extend(self.backends().cloned());
    }

    /// Every backend, mirrors last.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        let split = match &self.action.responder {
            Responder::Forward(split) => Some(split),
            Responder::Redirect(_) | Responder::Respond(_) => None,
        };
        let weighted = split.into_iter().flat_map(WeightedBackends::backends);
        weighted.chain(self.action.mirrors.iter().map(|mirror| &mirror.to))
    }

    /// Whether it is the catch-all rule of the mesh, which comes last (semantics 1.5).
    pub fn is_implied(&self) -> bool {
        self.origin.policy.is_none()
    }

    pub fn entry(&self, rule: usize, alternative: usize, on: &RouteMatch) -> MatchEntry {
        let mut headers = on.conditions.headers.to_vec();
        let mut names = BTreeSet::new();
        // Semantics 1.6: of two matchers for one header the first counts.
        headers.retain(|header| names.insert(header.name.clone()));
        let conditions = MatchConditions { headers: headers.into(), ..on.conditions.clone() };
        MatchEntry { rule, alternative, path: on.full_path(), conditions }
    }

    /// The last rule of every destination in the mesh: unmatched requests go to the original destination.
    pub fn catch_all(action: RuleAction) -> Self {
        let everything =
            RouteMatch { path: Some(PathMatch::Prefix(Name::new("/"))), ..RouteMatch::default() };
        let rule = RouteRule { matches: [everything].into(), filters: None, backends: None };
        Self { rule: Arc::new(rule), origin: RuleOrigin::default(), action }
    }
}

/// The policies that the parts of a rule come from; none for the catch-all rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOrigin {
    /// The policy of highest precedence that has the rule.
    pub policy: Option<ObjectRef>,
    /// Its field there, e.g. `spec.to[0].rules[2]`.
    pub field: String,
    /// Its index in that list of rules.
    pub index: usize,
    /// The policy that the filters come from.
    pub filters: Option<ObjectRef>,
    /// The policy that the backends come from.
    pub backends: Option<ObjectRef>,
}

/// A port of a Service, or of those of its pods that have all tags.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendId {
    pub service: ServiceKey,
    /// The Service's port.
    pub port: u16,
    pub tags: Labels,
}

/// `ns/name:80`, and `ns/name:80{version=v2}` for a subset.
impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.port)?;
        if self.tags.is_empty() {
            return Ok(());
        }
        let pairs: Vec<String> = self.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        write!(f, "{{{}}}", pairs.join(","))
    }
}

/// The application protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1, or HTTP/2 if negotiated.
    Http,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2,
    Grpc,
    #[default]
    Tcp,
}

impl AppProtocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }

    pub fn is_http(self) -> bool {
        self != Self::Tcp
    }

    /// By appProtocol, else by the prefix of the port's name, else TCP.
    pub fn of(app_protocol: Option<&str>, port_name: &str) -> Self {
        match app_protocol {
            Some("http" | "kubernetes.io/ws") => Self::Http,
            Some("http2" | "h2c" | "kubernetes.io/h2c") => Self::Http2,
            Some("grpc") => Self::Grpc,
            Some(_) => Self::Tcp,
            None => match port_name.split('-').next() {
                Some("http") => Self::Http,
                Some("http2") => Self::Http2,
                Some("grpc") => Self::Grpc,
                _ => Self::Tcp,
            },
        }
    }
}
