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

use crate::address::Protocol;
use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::action::{Responder, RuleAction, WeightedBackends};
use crate::route::hostname::{HostMap, Hostname};
use crate::route::load_balancing::EffectiveLoadBalancing;
use crate::route::matcher::{MatchEntry, RouteGroup};
use crate::route::policy::{Certificate, MeshGatewayProtocol};
use crate::route::request::RequestView;
use crate::route::rule::{MatchConditions, PathMatch, RouteMatch, RouteRule};
use crate::route::tls::{BackendTls, ClientAuthentication};

/// The routes of one proxy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    /// A sidecar's destinations.
    outbounds: BTreeMap<(ServiceKey, u16), Arc<Outbound>>,
    outbounds_by_address: BTreeMap<SocketAddr, Arc<Outbound>>,
    ports: BTreeMap<u16, Arc<GatewayPort>>,
    /// The UDP ports of a gateway, which may have the numbers of TCP ports.
    udp_ports: BTreeMap<u16, Arc<WeightedBackends>>,
    /// The backends that a gateway connects to by TLS.
    backend_tls: BTreeMap<BackendId, Arc<BackendTls>>,
    load_balancing: BTreeMap<ServiceKey, Arc<EffectiveLoadBalancing>>,
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

    pub fn remove_port(&mut self, number: u16) {
        self.ports.remove(&number);
    }

    /// Adds or replaces a gateway's UDP port.
    pub fn put_udp_port(&mut self, number: u16, split: Arc<WeightedBackends>) {
        self.udp_ports.insert(number, split);
    }

    /// Where the datagrams of a gateway's port go.
    pub fn udp_port(&self, number: u16) -> Option<&Arc<WeightedBackends>> {
        self.udp_ports.get(&number)
    }

    /// Sorted by number.
    pub fn udp_ports(&self) -> impl Iterator<Item = (u16, &Arc<WeightedBackends>)> {
        self.udp_ports.iter().map(|(number, split)| (*number, split))
    }

    /// Sets how a gateway connects to a backend by TLS.
    pub fn put_backend_tls(&mut self, id: BackendId, tls: Arc<BackendTls>) {
        self.backend_tls.insert(id, tls);
    }

    /// TLS to a backend; `None`: without TLS.
    pub fn backend_tls(&self, id: &BackendId) -> Option<&Arc<BackendTls>> {
        self.backend_tls.get(id)
    }

    /// Sets how requests to Services are balanced, in place of all that was set before.
    pub fn set_load_balancing(&mut self, all: BTreeMap<ServiceKey, Arc<EffectiveLoadBalancing>>) {
        self.load_balancing = all;
    }

    /// How requests to a Service are balanced; `None`: by the proxy's settings.
    pub fn load_balancing(&self, service: &ServiceKey) -> Option<&Arc<EffectiveLoadBalancing>> {
        // Most meshes have no policy.
        if self.load_balancing.is_empty() { None } else { self.load_balancing.get(service) }
    }

    /// By Service.
    pub fn all_load_balancing(&self) -> &BTreeMap<ServiceKey, Arc<EffectiveLoadBalancing>> {
        &self.load_balancing
    }

    /// Sorted by backend.
    pub fn all_backend_tls(&self) -> impl Iterator<Item = (&BackendId, &Arc<BackendTls>)> {
        self.backend_tls.iter()
    }

    /// The Secrets with certificates that a proxy needs: of listeners, and as a client of backends.
    pub fn secrets(&self) -> BTreeSet<ObjectKey> {
        let listeners = self.ports.values().flat_map(|port| port.listeners.iter());
        let of_listeners = listeners.flat_map(|listener| listener.certificates.iter().map(|own| &own.secret));
        let of_backends = self.backend_tls.values().filter_map(|tls| tls.client_certificate.as_ref());
        of_listeners.chain(of_backends).cloned().collect()
    }

    /// The ConfigMaps with certificate authorities that a proxy needs: of clients, and of backends.
    pub fn authorities(&self) -> BTreeSet<ObjectKey> {
        let listeners = self.ports.values().flat_map(|port| port.listeners.iter());
        let of_clients = listeners.filter_map(|listener| Some(&*listener.clients.as_ref()?.authorities));
        let of_backends = self.backend_tls.values().map(|tls| &*tls.authorities);
        of_clients.chain(of_backends).flatten().cloned().collect()
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
        found.extend(self.udp_ports.values().flat_map(|split| split.backends()).cloned());
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
    /// All listeners of a port have the same protocol; where HTTPS and TLS share it, TLS.
    pub protocol: MeshGatewayProtocol,
    pub listeners: Box<[Listener]>,
    /// The index of the listener for a host.
    listener_by_host: HostMap<usize>,
}

impl GatewayPort {
    /// Of two listeners with the same host name the first wins.
    pub fn new(number: u16, protocol: MeshGatewayProtocol, listeners: Vec<Listener>) -> Self {
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

    /// The listener of a request. With TLS, the SNI chooses it, and a Host of another listener is misdirected: that
    /// listener may have another certificate or validate clients.
    pub fn choose(&self, sni: Option<&str>, host: &str) -> ListenerChoice<'_> {
        let by_host = self.listener(host);
        // Nearly always the Host is the SNI.
        let Some(sni) = sni.filter(|sni| *sni != host) else {
            let otherwise = if sni.is_some() { ListenerChoice::NoCertificate } else { ListenerChoice::None };
            return by_host.map_or(otherwise, ListenerChoice::Found);
        };
        match (self.listener(sni), by_host) {
            (None, _) => ListenerChoice::NoCertificate,
            (Some(own), Some(other)) if std::ptr::eq(own, other) => ListenerChoice::Found(own),
            (Some(_), Some(_)) => ListenerChoice::Misdirected,
            (Some(_), None) => ListenerChoice::None,
        }
    }
}

/// The listener of a request.
#[derive(Clone, Copy, Debug)]
pub enum ListenerChoice<'t> {
    Found(&'t Listener),
    /// The Host belongs to another listener than the SNI: status 421.
    Misdirected,
    /// No listener has the SNI: the handshake fails.
    NoCertificate,
    /// No listener has the host: status 404.
    None,
}

/// One listener of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    pub name: Name,
    pub hostname: Hostname,
    /// That of the port, but HTTPS and TLS may share one.
    pub protocol: MeshGatewayProtocol,
    /// Only with TLS. Of several, the server name chooses one, then the keys that the client supports, then their order.
    pub certificates: Box<[Certificate]>,
    /// How client certificates are validated; `None`: clients have none.
    pub clients: Option<Arc<ClientAuthentication>>,
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
        let rule = RouteRule { matches: [everything].into(), ..RouteRule::default() };
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
    /// The policy that overrides the filters, and cannot be overridden itself.
    pub filters_override: Option<ObjectRef>,
    /// The policy that overrides the backends.
    pub backends_override: Option<ObjectRef>,
    /// The policy of each filter that is added by `merge`.
    pub merged: Box<[ObjectRef]>,
}

/// A port of a Service, or of those of its pods that have all tags.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendId {
    pub service: ServiceKey,
    /// The Service's port.
    pub port: u16,
    /// TCP and UDP ports may have the same number.
    pub protocol: Protocol,
    pub tags: Labels,
}

/// `ns/name:80`, `ns/name:53/UDP`, and `ns/name:80{version=v2}` for a subset.
impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.port)?;
        if self.protocol != Protocol::Tcp {
            write!(f, "/{}", self.protocol.as_str())?;
        }
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
