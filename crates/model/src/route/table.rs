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
use crate::route::action::{Action, End, Split};
use crate::route::host::{HostMap, Hostname};
use crate::route::matcher::{Entry, RouteGroup};
use crate::route::policy::{Certificate, GatewayProtocol};
use crate::route::request::Request;
use crate::route::rule::{Conditions, Match, PathMatch, Rule};

/// The routes of one proxy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    /// Where a sidecar's client may go, by Service and port.
    outbounds: BTreeMap<(ServiceKey, u16), Arc<Outbound>>,
    /// The same, by virtual address.
    outbounds_by_address: BTreeMap<SocketAddr, Arc<Outbound>>,
    /// A gateway's ports.
    ports: BTreeMap<u16, Arc<GatewayPort>>,
}

impl RouteTable {
    /// Puts an outbound in, or in the place of the one for the same Service and port.
    pub fn put_outbound(&mut self, outbound: Arc<Outbound>) {
        self.remove_outbound(&outbound.service, outbound.port);
        for address in &outbound.addresses {
            self.outbounds_by_address.insert(SocketAddr::new(*address, outbound.port), outbound.clone());
        }
        self.outbounds.insert((outbound.service.clone(), outbound.port), outbound);
    }

    /// Takes an outbound out.
    pub fn remove_outbound(&mut self, service: &ServiceKey, port: u16) {
        let Some(old) = self.outbounds.remove(&(service.clone(), port)) else { return };
        for address in &old.addresses {
            let address = SocketAddr::new(*address, port);
            // Another Service may have the address by now.
            if self.outbounds_by_address.get(&address).is_some_and(|held| Arc::ptr_eq(held, &old)) {
                self.outbounds_by_address.remove(&address);
            }
        }
    }

    /// Puts a gateway's port in, or in the place of the one with the same number.
    pub fn put_port(&mut self, port: Arc<GatewayPort>) {
        self.ports.insert(port.number, port);
    }

    /// The outbound for a Service's port.
    pub fn outbound(&self, service: &ServiceKey, port: u16) -> Option<&Arc<Outbound>> {
        self.outbounds.get(&(service.clone(), port))
    }

    /// The outbound for the address that a client meant. `None`: no Service of ours, pass it through.
    pub fn outbound_at(&self, original: SocketAddr) -> Option<&Arc<Outbound>> {
        self.outbounds_by_address.get(&original)
    }

    /// Every outbound, by Service and port.
    pub fn outbounds(&self) -> impl Iterator<Item = &Arc<Outbound>> {
        self.outbounds.values()
    }

    /// A gateway's port, to be changed; who holds another clone of the table sees nothing of it.
    pub fn port_mut(&mut self, number: u16) -> Option<&mut GatewayPort> {
        self.ports.get_mut(&number).map(Arc::make_mut)
    }

    /// A gateway's port.
    pub fn port(&self, number: u16) -> Option<&Arc<GatewayPort>> {
        self.ports.get(&number)
    }

    /// Every port of a gateway, by number.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<GatewayPort>> {
        self.ports.values()
    }

    /// Every backend that some route leads to: what a BackendTable has to hold.
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

/// Where requests and connections to one port of one Service go.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    /// The Service.
    pub service: ServiceKey,
    /// The port, on the Service's addresses.
    pub port: u16,
    /// What is spoken.
    pub protocol: AppProtocol,
    /// The Service's virtual addresses.
    pub addresses: Box<[IpAddr]>,
    /// Where it goes.
    pub routing: Routing,
}

/// What is done with a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Routing {
    /// Its requests are routed one by one.
    Http(Arc<HttpRoutes>),
    /// It is carried whole. Without a leg it is closed.
    Tcp(Arc<Split>),
}

impl Routing {
    /// Adds every backend that it leads to.
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
    /// The number.
    pub number: u16,
    /// What is spoken; the same for all listeners of a port.
    pub protocol: GatewayProtocol,
    /// The listeners.
    pub listeners: Box<[Listener]>,
    /// Which of them has a host.
    listener_by_host: HostMap<usize>,
}

impl GatewayPort {
    /// A port with these listeners; of two with the same host name the first has it.
    pub fn new(number: u16, protocol: GatewayProtocol, listeners: Vec<Listener>) -> Self {
        let mut listener_by_host = HostMap::default();
        for (i, listener) in listeners.iter().enumerate() {
            if listener_by_host.at(&listener.hostname).is_none() {
                listener_by_host.insert(&listener.hostname, i);
            }
        }
        Self { number, protocol, listeners: listeners.into(), listener_by_host }
    }

    /// The listener for a host: by SNI where there is TLS, else by the Host header. The narrowest one has it, even
    /// where a wider one would have had a route (semantics 1.6).
    pub fn listener(&self, host: &str) -> Option<&Listener> {
        self.listener_by_host.find(host).and_then(|at| self.listeners.get(*at))
    }
}

/// One listener of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Its name.
    pub name: Name,
    /// The hosts that it is for.
    pub hostname: Hostname,
    /// Its certificate, where there is TLS.
    pub certificate: Option<Certificate>,
    /// What is done for each host; nothing for a host is 404, or for TCP the end of the connection.
    pub hosts: HostMap<Routing>,
}

impl Listener {
    /// What is done for a host.
    pub fn routing(&self, host: &str) -> Option<&Routing> {
        self.hosts.find(host)
    }
}

/// The HTTP routes of one destination, or of one host at a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRoutes {
    /// Rules in groups, all of a group before the next: at a gateway one for each host name that covers the host.
    pub groups: Box<[Arc<RouteGroup>]>,
}

impl HttpRoutes {
    /// The rule that a request hits. `None` at a gateway is 404; in the mesh the last rule takes everything.
    pub fn find(&self, request: &Request<'_>) -> Option<Hit<'_>> {
        self.groups.iter().find_map(|group| {
            let entry = group.find(request)?;
            Some(Hit { rule: group.rules().get(entry.rule)?, entry })
        })
    }

    /// Every entry with its rule, in the order in which they are asked.
    pub fn entries(&self) -> impl Iterator<Item = Hit<'_>> {
        self.groups.iter().flat_map(|group| {
            let rules = group.rules();
            group.entries().iter().filter_map(|entry| Some(Hit { rule: rules.get(entry.rule)?, entry }))
        })
    }

    /// Every rule.
    pub fn rules(&self) -> impl Iterator<Item = &HttpRule> {
        self.groups.iter().flat_map(|group| group.rules()).map(|rule| &**rule)
    }
}

/// An alternative of a rule, as what a request hit.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'t> {
    /// The rule.
    pub rule: &'t HttpRule,
    /// The alternative of the rule, with the path that matched.
    pub entry: &'t Entry,
}

/// One rule after merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// What the policies say, merged; what one policy alone says is that policy's own rule.
    pub rule: Arc<Rule>,
    /// Where each part comes from.
    pub origin: RuleOrigin,
    /// What is done.
    pub action: Action,
}

impl HttpRule {
    fn add_backends(&self, found: &mut BTreeSet<BackendId>) {
        found.extend(self.backends().cloned());
    }

    /// Every backend that it leads to, those of copies last.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        let split = match &self.action.end {
            End::Forward(split) => Some(split),
            End::Redirect(_) | End::Respond(_) => None,
        };
        let legs = split.into_iter().flat_map(Split::backends);
        legs.chain(self.action.mirrors.iter().map(|mirror| &mirror.to))
    }

    /// Whether no policy wrote it: it is asked behind all others (semantics 1.5).
    pub fn is_implied(&self) -> bool {
        self.origin.policy.is_none()
    }

    /// An entry of it.
    pub fn entry(&self, rule: usize, alternative: usize, on: &Match) -> Entry {
        let mut headers = on.conditions.headers.to_vec();
        let mut names = BTreeSet::new();
        // Semantics 1.6: of two matchers for one header the first counts.
        headers.retain(|header| names.insert(header.name.clone()));
        let conditions = Conditions { headers: headers.into(), ..on.conditions.clone() };
        Entry { rule, alternative, path: on.full_path(), conditions }
    }

    /// The rule at the end of every destination in the mesh: what no rule matches goes where it was going.
    pub fn catch_all(action: Action) -> Self {
        let everything = Match { path: Some(PathMatch::Prefix(Name::new("/"))), ..Match::default() };
        let rule = Rule { matches: [everything].into(), filters: None, backends: None };
        Self { rule: Arc::new(rule), origin: RuleOrigin::default(), action }
    }
}

/// Which policy each part of a rule comes from; none for the rule that stands behind all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOrigin {
    /// The policy of highest precedence that has the rule.
    pub policy: Option<ObjectRef>,
    /// Where it stands there, as `spec.to[0].rules[2]`.
    pub field: String,
    /// Its place in that list of rules.
    pub place: usize,
    /// The policy that the filters come from.
    pub filters: Option<ObjectRef>,
    /// The policy that the backends come from.
    pub backends: Option<ObjectRef>,
}

/// A port of a Service, or of those of its pods that carry all of the tags.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendId {
    /// The Service.
    pub service: ServiceKey,
    /// The port, on the Service's addresses.
    pub port: u16,
    /// What the pods carry.
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

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1, or HTTP/2 where both sides want it.
    Http,
    /// HTTP/2 without TLS, known beforehand.
    Http2,
    /// gRPC, which is HTTP/2.
    Grpc,
    /// Bytes.
    #[default]
    Tcp,
}

impl AppProtocol {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }

    /// Whether requests can be told apart.
    pub fn is_http(self) -> bool {
        self != Self::Tcp
    }

    /// By the port's appProtocol, else by how its name begins, else TCP.
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
