//! Renders the tables of one proxy as the resources of its Envoy.
//!
//! ```text
//! Outbound       -> route configuration `ns/name:80`, and a listener for each of its addresses or ports
//! gateway's port -> a listener, and a route configuration; with TLS one for each of its listeners
//! Backend        -> cluster and endpoints `ns/name:80{version=v2}`
//! ```
//!
//! Unchanged parts, which tables share by pointer, are taken from the earlier result.

mod cluster;
mod edge;
mod endpoints;
mod listener;
mod matcher_tree;
mod protobuf;
mod regex;
mod route;
mod route_action;
mod route_configuration;
#[cfg(test)]
mod tests;
mod tls;
mod traffic_filters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{Secret, TlsCertificate, secret};
use model::backend::{Backend, BackendTable};
use model::route::{
    AppProtocol, Arrival, BackendId, EdgeSettings, GatewayPort, Hostname, LoadBalancing, Outbound,
    RetryLimits, RouteTable, Routing, WeightedBackends,
};
use model::{Name, Notice, ObjectKey, ObjectRef, Protocol, ServiceKey};
use prost::Message;

use crate::resource::{ResourceSet, ResourceType, XdsResource};
use listener::{Binding, ChainAction, FilterChainSpec, ListenerEdge};
use route_configuration::{HostAction, HostSpec};

#[derive(Clone, Debug)]
pub struct RenderInput {
    pub routes: Arc<RouteTable>,
    /// The backends, then their failover tiers in priority order.
    pub tiers: Vec<Arc<BackendTable>>,
    /// By Secret.
    pub certificates: Arc<BTreeMap<ObjectKey, Arc<PemKeyPair>>>,
    /// Certificate authorities as PEM, by ConfigMap.
    pub authorities: Arc<BTreeMap<ObjectKey, Arc<[u8]>>>,
    pub listeners: EnvoyListeners,
    pub allowlist: Arc<DirectResponseAllowlist>,
    pub edge: Arc<EdgeSettings>,
    pub retries: RetryLimits,
}

/// The addresses that an Envoy listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvoyListeners {
    Sidecar {
        /// The port that connections to Services are redirected to.
        capture: Option<u16>,
        /// Listeners of single destinations.
        outbounds: BTreeMap<SocketAddr, (ServiceKey, u16)>,
    },
    Gateway {
        /// For Notices.
        gateway: ObjectKey,
        bind: IpAddr,
        /// Addresses of ports that are not bound at `bind`.
        port_overrides: BTreeMap<u16, SocketAddr>,
    },
}

/// What direct responses may read on Envoy's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectResponseAllowlist {
    pub files: BTreeSet<String>,
    pub environment: BTreeSet<String>,
}

/// A certificate chain, server certificate first, and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct PemKeyPair {
    pub chain: Box<[u8]>,
    pub key: Box<[u8]>,
}

/// Never shows the key.
impl fmt::Debug for PemKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PemKeyPair({} bytes of chain)", self.chain.len())
    }
}

/// The resources, with their input for the next rendering.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub resources: Arc<ResourceSet>,
    /// About what Envoy does not support.
    pub notices: Vec<Notice>,
    input: RenderInput,
    notices_by_routes: BTreeMap<String, Vec<Notice>>,
}

/// The context of a route configuration.
struct RouteContext<'a> {
    /// `None` in the mesh.
    arrival: Option<Arrival>,
    allowlist: &'a DirectResponseAllowlist,
    /// The object of Notices that no policy caused.
    object: ObjectRef,
    routes: &'a RouteTable,
    retries: RetryLimits,
    /// The policy for the destination; `None` at a gateway, too.
    destination: Option<&'a LoadBalancing>,
}

pub fn render(input: RenderInput, earlier: Option<&Rendered>) -> Rendered {
    let earlier = earlier.filter(|earlier| {
        earlier.input.listeners == input.listeners
            && earlier.input.allowlist == input.allowlist
            && earlier.input.edge == input.edge
            && earlier.input.retries == input.retries
    });
    let mut renderer = Renderer {
        input: &input,
        earlier,
        set: ResourceSet::default(),
        notices: BTreeMap::new(),
        others: Vec::new(),
        reachable: None,
        rebalanced: rebalanced(&input.routes, earlier),
    };
    match &input.listeners {
        EnvoyListeners::Sidecar { capture, outbounds } => renderer.sidecar(*capture, outbounds),
        EnvoyListeners::Gateway { gateway, bind, port_overrides } => {
            for port in input.routes.ports() {
                let at = port_overrides.get(&port.number).copied();
                renderer.port(gateway, port, at.unwrap_or(SocketAddr::new(*bind, port.number)));
            }
            renderer.check_overrides(gateway, port_overrides);
            renderer.check_udp(gateway);
        }
    }
    renderer.backends();
    let Renderer { set, notices: notices_by_routes, mut others, .. } = renderer;
    others.extend(notices_by_routes.values().flatten().cloned());
    others.sort();
    others.dedup();
    Rendered { resources: Arc::new(set), notices: others, input, notices_by_routes }
}

struct Renderer<'a> {
    input: &'a RenderInput,
    earlier: Option<&'a Rendered>,
    set: ResourceSet,
    /// By route configuration.
    notices: BTreeMap<String, Vec<Notice>>,
    others: Vec<Notice>,
    /// The destinations with a listener; `None`: all.
    reachable: Option<RouteTable>,
    /// The Services with other load balancing than before.
    rebalanced: BTreeSet<ServiceKey>,
}

impl Renderer<'_> {
    /// Reuses the earlier resource if it is unchanged.
    fn put(&mut self, kind: ResourceType, name: &str, is_same: bool, render: impl FnOnce() -> Vec<u8>) {
        let old = self.earlier.filter(|_| is_same).and_then(|earlier| earlier.resources.find(kind, name));
        let resource = old.cloned().unwrap_or_else(|| XdsResource::new(name, render()));
        self.set.put(kind, resource);
    }

    fn put_routes(&mut self, name: &str, is_same: bool, context: &RouteContext<'_>, hosts: &[HostSpec<'_>]) {
        let mut notices = Vec::new();
        if let Some(earlier) = self.earlier.filter(|_| is_same) {
            notices = earlier.notices_by_routes.get(name).cloned().unwrap_or_default();
        }
        self.put(ResourceType::Routes, name, is_same, || {
            route_configuration::render(name, hosts, context, &mut notices)
        });
        if !notices.is_empty() {
            self.notices.insert(name.to_owned(), notices);
        }
    }

    fn sidecar(&mut self, capture: Option<u16>, outbounds: &BTreeMap<SocketAddr, (ServiceKey, u16)>) {
        let input = self.input;
        let mut places: BTreeMap<(&ServiceKey, u16), Vec<SocketAddr>> = BTreeMap::new();
        for (at, (service, port)) in outbounds {
            places.entry((service, *port)).or_default().push(*at);
            if input.routes.outbound(service, *port).is_none() {
                let message = format!("no TCP port {port}, so nothing listens on {at}");
                self.others.push(Notice::new(ObjectRef::service(service), "OutboundNotFound", message));
            }
        }
        let (mut families, mut reachable) = (BTreeSet::new(), RouteTable::default());
        for outbound in input.routes.outbounds() {
            let bound =
                places.get(&(&outbound.service, outbound.port)).map(Vec::as_slice).unwrap_or_default();
            let bound = bound.iter().map(|at| (*at, Binding::Bound));
            let own = outbound.addresses.iter().filter(|_| capture.is_some());
            let own = own.map(|ip| (SocketAddr::new(*ip, outbound.port), Binding::HandedOff));
            families.extend(outbound.addresses.iter().filter(|_| capture.is_some()).map(IpAddr::is_ipv6));
            let listeners: Vec<(SocketAddr, Binding)> = bound.chain(own).collect();
            if !listeners.is_empty() {
                self.outbound(outbound, &listeners);
                reachable.put_outbound(outbound.clone());
            }
        }
        match capture {
            Some(port) => self.capture(port, families.contains(&true)),
            None => self.reachable = Some(reachable),
        }
    }

    /// Whether a backend has other load balancing than before.
    fn leads_to_rebalanced(&self, routing: &Routing) -> bool {
        if self.rebalanced.is_empty() {
            return false;
        }
        let mut backends = BTreeSet::new();
        routing.add_backends(&mut backends);
        backends.iter().any(|id| self.rebalanced.contains(&id.service))
    }

    /// One destination: its routes, and a listener for each address.
    fn outbound(&mut self, outbound: &Arc<Outbound>, listeners: &[(SocketAddr, Binding)]) {
        let name = format!("{}:{}", outbound.service, outbound.port);
        let before = self.earlier.and_then(|e| e.input.routes.outbound(&outbound.service, outbound.port));
        let is_same = before.is_some_and(|before| Arc::ptr_eq(before, outbound))
            && !self.rebalanced.contains(&outbound.service)
            && !self.leads_to_rebalanced(&outbound.routing);
        let input = self.input;
        let policy = input.routes.load_balancing(&outbound.service).map(|policy| &policy.settings);
        if let Routing::Http(routes) = &outbound.routing {
            let object = ObjectRef::service(&outbound.service);
            let context = RouteContext {
                arrival: None,
                allowlist: &input.allowlist,
                object,
                routes: &input.routes,
                retries: input.retries,
                destination: policy,
            };
            let hosts = [HostSpec { name: Hostname::Any, action: HostAction::Routes(routes) }];
            self.put_routes(&name, is_same, &context, &hosts);
        }
        let edge = ListenerEdge {
            settings: &input.edge,
            is_gateway: false,
            routes: &input.routes,
            retries: input.retries,
            destination: policy,
        };
        for (at, binding) in listeners {
            let listener = format!("outbound {name} at {at}");
            self.put(ResourceType::Listener, &listener, is_same, || {
                let action = match &outbound.routing {
                    Routing::Http(_) => ChainAction::Http(name.clone()),
                    Routing::Tcp(split) => ChainAction::Tcp(split),
                };
                listener::render(&listener, *at, *binding, edge, &[FilterChainSpec::plain(action)])
            });
        }
    }

    fn capture(&mut self, port: u16, with_ipv6: bool) {
        let mut places: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        places.extend(with_ipv6.then_some(IpAddr::from(Ipv6Addr::LOCALHOST)));
        for ip in places {
            let at = SocketAddr::new(ip, port);
            let name = format!("outbound at {at}");
            let chain = FilterChainSpec::plain(ChainAction::PassThrough);
            let input = self.input;
            let edge = ListenerEdge {
                settings: &input.edge,
                is_gateway: false,
                routes: &input.routes,
                retries: input.retries,
                destination: None,
            };
            self.put(ResourceType::Listener, &name, true, || {
                listener::render(&name, at, Binding::Captured, edge, &[chain])
            });
        }
        self.put(ResourceType::Cluster, cluster::PASS_THROUGH, true, cluster::pass_through);
    }

    fn port(&mut self, gateway: &ObjectKey, port: &Arc<GatewayPort>, at: SocketAddr) {
        let before = self.earlier.and_then(|earlier| earlier.input.routes.port(port.number));
        let mut hosts = port.listeners.iter().flat_map(|listener| listener.hosts.iter().map(|(_, r)| r));
        let is_same = before.is_some_and(|before| Arc::ptr_eq(before, port))
            && !hosts.any(|routing| self.leads_to_rebalanced(routing));
        let object = ObjectRef::new("MeshGateway", &gateway.namespace, &gateway.name);
        let arrival = Arrival { scheme: port.protocol.scheme(), port: Some(port.number) };
        let input = self.input;
        let context = RouteContext {
            arrival: Some(arrival),
            allowlist: &input.allowlist,
            object,
            routes: &input.routes,
            retries: input.retries,
            destination: None,
        };
        let name = format!("{gateway}:{}", port.number);
        let chains = if port.protocol.is_tls() {
            self.tls_chains(&name, port, is_same, &context)
        } else {
            vec![FilterChainSpec::plain(self.plain(&name, port, is_same, &context))]
        };
        if chains.is_empty() {
            return;
        }
        // A certificate may appear or vanish while the port is unchanged, and listeners are cheap to render.
        let edge = ListenerEdge {
            settings: &input.edge,
            is_gateway: true,
            routes: &input.routes,
            retries: input.retries,
            destination: None,
        };
        self.put(ResourceType::Listener, &name, false, || {
            listener::render(&name, at, Binding::Bound, edge, &chains)
        });
    }

    /// An override of a port that the gateway does not have is a mistake.
    fn check_overrides(&mut self, gateway: &ObjectKey, overrides: &BTreeMap<u16, SocketAddr>) {
        let numbers: Vec<String> = self.input.routes.ports().map(|port| port.number.to_string()).collect();
        // Another Notice reports a missing gateway.
        if numbers.is_empty() {
            return;
        }
        for (number, at) in overrides.iter().filter(|(number, _)| self.input.routes.port(**number).is_none())
        {
            let message = format!(
                "a bootstrap binds its port {number} to {at}, but spec.listeners has only the ports {}; print another bootstrap, or add a listener",
                numbers.join(", ")
            );
            let object = ObjectRef::new("MeshGateway", &gateway.namespace, &gateway.name);
            self.others.push(Notice::new(object, "PortNotFound", message));
        }
    }

    /// Envoys do not forward datagrams.
    fn check_udp(&mut self, gateway: &ObjectKey) {
        for (port, _) in self.input.routes.udp_ports() {
            let message = format!(
                "UDP port {port} is not served by Envoys: use the embedded proxy, whose UDPRoutes choose an endpoint per client"
            );
            let object = ObjectRef::new("Gateway", &gateway.namespace, &gateway.name);
            self.others.push(Notice::new(object, "NotForEnvoy", message));
        }
    }

    fn plain<'p>(
        &mut self,
        name: &str,
        port: &'p GatewayPort,
        is_same: bool,
        context: &RouteContext<'_>,
    ) -> ChainAction<'p> {
        if port.protocol.is_http() {
            self.put_routes(name, is_same, context, &route_configuration::of_port(port));
            return ChainAction::Http(name.to_owned());
        }
        ChainAction::Tcp(port.listeners.iter().find_map(split_of).unwrap_or(&EMPTY))
    }

    fn tls_chains<'p>(
        &mut self,
        name: &str,
        port: &'p GatewayPort,
        is_same: bool,
        context: &RouteContext<'_>,
    ) -> Vec<FilterChainSpec<'p>> {
        let mut chains = Vec::new();
        let mut hosts: Vec<&Hostname> = Vec::new();
        for listener in &port.listeners {
            let is_terminated = !listener.certificates.is_empty();
            // Only TLS passthrough works without a certificate. HTTPS and TLS may share a port.
            let is_http = listener.protocol.is_http();
            if !is_terminated && is_http {
                continue;
            }
            let mut secrets = Vec::new();
            for certificate in &listener.certificates {
                match self.input.certificates.contains_key(&certificate.secret) {
                    true => secrets.push(&certificate.secret),
                    false => self.others.push(no_certificate(context, &listener.name, &certificate.secret)),
                }
            }
            if secrets.is_empty() && is_terminated {
                continue;
            }
            // The first of two listeners with one host serves it.
            if hosts.contains(&&listener.hostname) {
                continue;
            }
            hosts.push(&listener.hostname);
            let clients = match &listener.clients {
                None => None,
                Some(clients) => match tls::client_validation(clients, &self.input.authorities) {
                    Some(validation) => Some(validation),
                    None => {
                        self.others.push(no_authority(context, &listener.name));
                        continue;
                    }
                },
            };
            let certificates: Vec<String> =
                secrets.into_iter().map(|secret| self.add_secret(secret)).collect();
            let chain = |action, server_name: &Hostname| FilterChainSpec {
                action,
                server_name: Some(server_name.clone()),
                certificates: certificates.clone(),
                clients: clients.clone(),
            };
            if is_http {
                let routes = format!("{name}/{}", listener.name);
                self.put_routes(&routes, is_same, context, &route_configuration::of_tls(port, listener));
                chains.push(chain(ChainAction::Http(routes), &listener.hostname));
                continue;
            }
            // Each host of a route has a chain; connections to the listener's other hosts are closed.
            let mut has_own = false;
            for (host, routing) in listener.hosts.iter() {
                let Routing::Tcp(split) = routing else { continue };
                let host = if host == Hostname::Any { listener.hostname.clone() } else { host };
                has_own |= host == listener.hostname;
                chains.push(chain(ChainAction::Tcp(split), &host));
            }
            if !has_own {
                chains.push(chain(ChainAction::Tcp(&EMPTY), &listener.hostname));
            }
        }
        chains
    }

    /// Adds a certificate, and returns the name that listeners refer to.
    fn add_secret(&mut self, secret: &ObjectKey) -> String {
        let (input, name) = (self.input, secret.to_string());
        if let Some(pair) = input.certificates.get(secret) {
            let known = self.earlier.and_then(|earlier| earlier.input.certificates.get(secret));
            let is_same = known.is_some_and(|known| known == pair);
            self.put(ResourceType::Secret, &name, is_same, || render_secret(&name, pair));
        }
        name
    }

    fn backends(&mut self) {
        let input = self.input;
        let Some((chosen, further)) = input.tiers.split_first() else { return };
        // A sidecar without capture needs the backends of its listeners only.
        let wanted = self.reachable.take().map(|reachable| reachable.backends());
        let is_wanted = |backend: &&Arc<Backend>| {
            let is_tcp = backend.id.protocol == Protocol::Tcp;
            is_tcp && wanted.as_ref().is_none_or(|all| all.contains(&backend.id))
        };
        let by_http2 = grpc_backends(&input.routes);
        for backend in chosen.backends().filter(is_wanted) {
            let tls = match input.routes.backend_tls(&backend.id) {
                None => None,
                // Without a usable authority there is no cluster: requests get an error, and never go without TLS.
                Some(tls) => match tls::upstream_context(tls, &input.authorities, &input.certificates) {
                    Some(context) => Some(context),
                    None => continue,
                },
            };
            let tiers: Vec<&Arc<Backend>> = std::iter::once(backend)
                .chain(further.iter().filter_map(|t| t.backend(&backend.id)))
                .collect();
            let before = self.earlier.and_then(|e| e.input.tiers.first()?.backend(&backend.id));
            let had_tls = self.earlier.is_some_and(|e| e.input.routes.backend_tls(&backend.id).is_some());
            // Certificates may change while the backend is unchanged, so clusters with TLS are rendered again.
            let same_cluster = before.is_some_and(|before| {
                before.protocol == backend.protocol
                    && before.proxy_protocol == backend.proxy_protocol
                    && before.is_warmed == backend.is_warmed
            }) && tls.is_none()
                && !had_tls
                && !self.rebalanced.contains(&backend.id.service);
            let policy = input.routes.load_balancing(&backend.id.service).map(|policy| &policy.settings);
            let same_endpoints = self.earlier.is_some_and(|earlier| earlier.has_same_tiers(&tiers));
            let tiers: Vec<&Backend> = tiers.iter().map(|tier| &***tier).collect();
            let mut put = |name: &str, protocol: AppProtocol| {
                self.put(ResourceType::Cluster, name, same_cluster, || {
                    cluster::render(name, protocol, backend, tls.as_ref(), policy)
                });
                self.put(ResourceType::Endpoints, name, same_endpoints, || endpoints::render(name, &tiers));
            };
            put(&backend.id.to_string(), backend.protocol);
            if by_http2.contains(&backend.id) {
                put(&route_action::grpc_cluster(&backend.id), AppProtocol::Grpc);
            }
        }
    }
}

impl Rendered {
    pub fn routes(&self) -> &Arc<RouteTable> {
        &self.input.routes
    }

    pub fn listeners(&self) -> &EnvoyListeners {
        &self.input.listeners
    }

    /// Whether the tiers of a backend are unchanged.
    fn has_same_tiers(&self, tiers: &[&Arc<Backend>]) -> bool {
        let Some(first) = tiers.first() else { return false };
        let before: Vec<&Arc<Backend>> =
            self.input.tiers.iter().filter_map(|table| table.backend(&first.id)).collect();
        let same = |(a, b): (&&Arc<Backend>, &&Arc<Backend>)| Arc::ptr_eq(a, b) || a.endpoints == b.endpoints;
        before.len() == tiers.len() && before.iter().zip(tiers).all(same)
    }
}

/// The Services with other load balancing than before.
fn rebalanced(routes: &RouteTable, earlier: Option<&Rendered>) -> BTreeSet<ServiceKey> {
    let Some(earlier) = earlier else { return BTreeSet::new() };
    let (now, before) = (routes.all_load_balancing(), earlier.input.routes.all_load_balancing());
    let services = now.keys().chain(before.keys());
    services.filter(|service| now.get(*service) != before.get(*service)).cloned().collect()
}

static EMPTY: std::sync::LazyLock<WeightedBackends> = std::sync::LazyLock::new(WeightedBackends::default);

fn split_of(listener: &model::route::Listener) -> Option<&WeightedBackends> {
    listener.hosts.iter().find_map(|(_, routing)| match routing {
        Routing::Tcp(split) => Some(&**split),
        Routing::Http(_) => None,
    })
}

/// The backends of GRPCRoutes, which have a cluster with HTTP/2 beside the one of their declared protocol.
fn grpc_backends(routes: &RouteTable) -> BTreeSet<BackendId> {
    let listeners = routes.ports().flat_map(|port| port.listeners.iter());
    let of_hosts = listeners.flat_map(|listener| listener.hosts.iter().map(|(_, routing)| routing));
    let of_outbounds = routes.outbounds().map(|outbound| &outbound.routing);
    let mut found = BTreeSet::new();
    for routing in of_hosts.chain(of_outbounds) {
        let Routing::Http(routes) = routing else { continue };
        for rule in routes.rules().filter(|rule| rule.action.is_grpc) {
            found.extend(rule.backends().cloned());
        }
    }
    found
}

fn no_authority(context: &RouteContext<'_>, listener: &Name) -> Notice {
    let message = format!(
        "listener {listener}: no usable certificate authority of clients, so this listener is not served; put PEM certificates into ca.crt of its ConfigMap"
    );
    Notice::new(context.object.clone(), "NoCertificateAuthority", message)
}

fn no_certificate(context: &RouteContext<'_>, listener: &Name, secret: &ObjectKey) -> Notice {
    let message = format!(
        "spec.listeners[name={listener}].tls: no usable Secret {secret} of type kubernetes.io/tls, so this listener is not served with it; create it"
    );
    Notice::new(context.object.clone(), "NoCertificate", message)
}

fn render_secret(name: &str, pair: &PemKeyPair) -> Vec<u8> {
    let inline = |bytes: &[u8]| protobuf::source(Specifier::InlineBytes(bytes.to_vec()));
    let certificate = TlsCertificate {
        certificate_chain: inline(&pair.chain),
        private_key: inline(&pair.key),
        ..TlsCertificate::default()
    };
    Secret { name: name.to_owned(), r#type: Some(secret::Type::TlsCertificate(certificate)) }.encode_to_vec()
}
