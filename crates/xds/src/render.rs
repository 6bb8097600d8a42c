//! From the tables of one proxy to everything that its Envoy is to have.
//!
//! ```text
//! Outbound  -> routes `ns/name:80`, and a listener for each address or port by which it is reached
//! port of a gateway -> a listener, and routes: one for the port, or with TLS one for each of its listeners
//! Backend   -> cluster and endpoints `ns/name:80{version=v2}`
//! ```
//!
//! What did not change since the last time is not rendered again: the tables share it, and so does the result.

mod action;
mod cluster;
mod endpoints;
mod listener;
mod pattern;
mod route;
mod routes;
mod secret;
#[cfg(test)]
mod tests;
mod tree;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use model::backend::{Backend, BackendTable};
use model::route::{Arrival, GatewayPort, Hostname, Outbound, RouteTable, Routing, WeightedBackends};
use model::{Name, Notice, ObjectKey, ObjectRef, ServiceKey};

use crate::resource::{Kind, Resource, ResourceSet};
use listener::{Arrives, Carry, Chain};
use routes::{Host, Serves};

pub use secret::KeyPair;

/// What one proxy is to do.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its routes.
    pub routes: Arc<RouteTable>,
    /// Its backends; then what would be chosen without those, and so on.
    pub tiers: Vec<Arc<BackendTable>>,
    /// Certificates by Secret.
    pub certificates: Arc<BTreeMap<ObjectKey, Arc<KeyPair>>>,
    /// Where it listens.
    pub entrance: Entrance,
    /// What policies may read of it.
    pub allowed: Arc<Allowed>,
}

/// Where a proxy listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// Beside a client.
    Sidecar {
        /// The port that connections to Services are redirected to.
        capture: Option<u16>,
        /// Ports for single destinations.
        outbounds: BTreeMap<SocketAddr, (ServiceKey, u16)>,
    },
    /// As a gateway.
    Gateway {
        /// Its name, for Notices.
        gateway: ObjectKey,
        /// The address that its ports are bound to.
        bind: IpAddr,
        /// Other places for some ports.
        places: BTreeMap<u16, SocketAddr>,
    },
}

/// What direct responses may read of the machine that an Envoy runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Files.
    pub files: BTreeSet<String>,
    /// Environment variables.
    pub environment: BTreeSet<String>,
}

/// What was rendered, and from what, for the next time.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The resources.
    pub resources: Arc<ResourceSet>,
    /// What Envoy cannot do.
    pub notices: Vec<Notice>,
    input: Input,
    notices_by_routes: BTreeMap<String, Vec<Notice>>,
}

/// What routes need to know of the place where they act.
struct Setting<'a> {
    /// Where requests arrive; `None` in the mesh.
    arrival: Option<Arrival>,
    allowed: &'a Allowed,
    /// Whom a Notice is about that no policy is to blame for.
    object: ObjectRef,
}

/// Renders everything; what is the same as before is taken from there.
pub fn render(input: Input, earlier: Option<&Rendered>) -> Rendered {
    let earlier = earlier
        .filter(|earlier| earlier.input.entrance == input.entrance && earlier.input.allowed == input.allowed);
    let mut work = Work {
        input: &input,
        earlier,
        set: ResourceSet::default(),
        notices: BTreeMap::new(),
        others: Vec::new(),
        entered: None,
    };
    match &input.entrance {
        Entrance::Sidecar { capture, outbounds } => work.sidecar(*capture, outbounds),
        Entrance::Gateway { gateway, bind, places } => {
            for port in input.routes.ports() {
                let at = places.get(&port.number).copied();
                work.port(gateway, port, at.unwrap_or(SocketAddr::new(*bind, port.number)));
            }
            work.check_places(gateway, places);
        }
    }
    work.backends();
    let Work { set, notices: notices_by_routes, mut others, .. } = work;
    others.extend(notices_by_routes.values().flatten().cloned());
    others.sort();
    others.dedup();
    Rendered { resources: Arc::new(set), notices: others, input, notices_by_routes }
}

struct Work<'a> {
    input: &'a Input,
    earlier: Option<&'a Rendered>,
    set: ResourceSet,
    /// By the routes that they came with.
    notices: BTreeMap<String, Vec<Notice>>,
    others: Vec<Notice>,
    /// The destinations that can be reached, where those are not all that there are routes for.
    entered: Option<RouteTable>,
}

impl Work<'_> {
    /// The resource of that name as it was, else a new one.
    fn put(&mut self, kind: Kind, name: &str, is_same: bool, render: impl FnOnce() -> Vec<u8>) {
        let old = self.earlier.filter(|_| is_same).and_then(|earlier| earlier.resources.find(kind, name));
        let resource = old.cloned().unwrap_or_else(|| Resource::new(name, render()));
        self.set.put(kind, resource);
    }

    fn put_routes(&mut self, name: &str, is_same: bool, setting: &Setting<'_>, hosts: &[Host<'_>]) {
        let mut notices = Vec::new();
        if let Some(earlier) = self.earlier.filter(|_| is_same) {
            notices = earlier.notices_by_routes.get(name).cloned().unwrap_or_default();
        }
        self.put(Kind::Routes, name, is_same, || routes::render(name, hosts, setting, &mut notices));
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
                let message = format!("there is no TCP port {port} of it, so nothing listens on {at}");
                self.others.push(Notice::new(ObjectRef::service(service), "OutboundNotFound", message));
            }
        }
        let (mut families, mut entered) = (BTreeSet::new(), RouteTable::default());
        for outbound in input.routes.outbounds() {
            let bound =
                places.get(&(&outbound.service, outbound.port)).map(Vec::as_slice).unwrap_or_default();
            let bound = bound.iter().map(|at| (*at, Arrives::Bound));
            let own = outbound.addresses.iter().filter(|_| capture.is_some());
            let own = own.map(|ip| (SocketAddr::new(*ip, outbound.port), Arrives::HandedOver));
            families.extend(outbound.addresses.iter().filter(|_| capture.is_some()).map(IpAddr::is_ipv6));
            let entrances: Vec<(SocketAddr, Arrives)> = bound.chain(own).collect();
            if !entrances.is_empty() {
                self.outbound(outbound, &entrances);
                entered.put_outbound(outbound.clone());
            }
        }
        match capture {
            Some(port) => self.capture(port, families.contains(&true)),
            None => self.entered = Some(entered),
        }
    }

    /// One destination: its routes, and a listener for each entrance to it.
    fn outbound(&mut self, outbound: &Arc<Outbound>, entrances: &[(SocketAddr, Arrives)]) {
        let name = format!("{}:{}", outbound.service, outbound.port);
        let before = self.earlier.and_then(|e| e.input.routes.outbound(&outbound.service, outbound.port));
        let is_same = before.is_some_and(|before| Arc::ptr_eq(before, outbound));
        if let Routing::Http(routes) = &outbound.routing {
            let object = ObjectRef::service(&outbound.service);
            let setting = Setting { arrival: None, allowed: &self.input.allowed.clone(), object };
            let hosts = [Host { name: Hostname::Any, serves: Serves::Routes(routes) }];
            self.put_routes(&name, is_same, &setting, &hosts);
        }
        for (at, arrives) in entrances {
            let listener = format!("outbound {name} at {at}");
            self.put(Kind::Listener, &listener, is_same, || {
                let carry = match &outbound.routing {
                    Routing::Http(_) => Carry::Http { routes: name.clone(), is_edge: false },
                    Routing::Tcp(split) => Carry::Tcp(split),
                };
                listener::render(&listener, *at, *arrives, &[Chain::plain(carry)])
            });
        }
    }

    fn capture(&mut self, port: u16, with_ipv6: bool) {
        let mut places: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        places.extend(with_ipv6.then_some(IpAddr::from(Ipv6Addr::LOCALHOST)));
        for ip in places {
            let at = SocketAddr::new(ip, port);
            let name = format!("outbound at {at}");
            let chain = Chain::plain(Carry::PassThrough);
            self.put(Kind::Listener, &name, true, || {
                listener::render(&name, at, Arrives::Captured, &[chain])
            });
        }
        self.put(Kind::Cluster, cluster::PASS_THROUGH, true, cluster::pass_through);
    }

    fn port(&mut self, gateway: &ObjectKey, port: &Arc<GatewayPort>, at: SocketAddr) {
        let before = self.earlier.and_then(|earlier| earlier.input.routes.port(port.number));
        let is_same = before.is_some_and(|before| Arc::ptr_eq(before, port));
        let object = ObjectRef::new("MeshGateway", &gateway.namespace, &gateway.name);
        let arrival = Arrival { scheme: port.protocol.scheme(), port: Some(port.number) };
        let allowed = self.input.allowed.clone();
        let setting = Setting { arrival: Some(arrival), allowed: &allowed, object };
        let name = format!("{gateway}:{}", port.number);
        let chains = if port.protocol.is_tls() {
            self.tls_chains(&name, port, is_same, &setting)
        } else {
            vec![Chain::plain(self.plain(&name, port, is_same, &setting))]
        };
        if chains.is_empty() {
            return;
        }
        // With TLS a certificate may have come or gone while the port stayed: a listener is cheap to render.
        self.put(Kind::Listener, &name, false, || listener::render(&name, at, Arrives::Bound, &chains));
    }

    /// A place for a port that the gateway does not have is a typing mistake, here or there.
    fn check_places(&mut self, gateway: &ObjectKey, places: &BTreeMap<u16, SocketAddr>) {
        let numbers: Vec<String> = self.input.routes.ports().map(|port| port.number.to_string()).collect();
        // Of a gateway that is not there others tell.
        if numbers.is_empty() {
            return;
        }
        for (number, at) in places.iter().filter(|(number, _)| self.input.routes.port(**number).is_none()) {
            let message = format!(
                "a bootstrap puts its port {number} at {at}, and spec.listeners has the ports {}: nothing listens there; print another bootstrap, or add a listener",
                numbers.join(", ")
            );
            let object = ObjectRef::new("MeshGateway", &gateway.namespace, &gateway.name);
            self.others.push(Notice::new(object, "PortNotFound", message));
        }
    }

    fn plain<'p>(
        &mut self,
        name: &str,
        port: &'p GatewayPort,
        is_same: bool,
        setting: &Setting<'_>,
    ) -> Carry<'p> {
        if port.protocol.is_http() {
            self.put_routes(name, is_same, setting, &routes::of_port(port));
            return Carry::Http { routes: name.to_owned(), is_edge: true };
        }
        Carry::Tcp(port.listeners.iter().find_map(split_of).unwrap_or(&EMPTY))
    }

    fn tls_chains<'p>(
        &mut self,
        name: &str,
        port: &'p GatewayPort,
        is_same: bool,
        setting: &Setting<'_>,
    ) -> Vec<Chain<'p>> {
        let mut chains = Vec::new();
        let mut hosts: Vec<&Hostname> = Vec::new();
        for listener in &port.listeners {
            let secret = listener.certificate.as_ref().map(|certificate| &certificate.secret);
            // What is carried on unread needs no certificate; requests cannot be read without one.
            if secret.is_none() && port.protocol.is_http() {
                continue;
            }
            if let Some(secret) = secret.filter(|secret| !self.input.certificates.contains_key(secret)) {
                self.others.push(no_certificate(setting, &listener.name, secret));
                continue;
            }
            // Of two listeners with one host the first has it.
            if hosts.contains(&&listener.hostname) {
                continue;
            }
            hosts.push(&listener.hostname);
            let certificate = secret.map(|secret| self.put_secret(secret));
            let carry = if port.protocol.is_http() {
                let routes = format!("{name}/{}", listener.name);
                self.put_routes(&routes, is_same, setting, &routes::of_tls(port, listener));
                Carry::Http { routes, is_edge: true }
            } else {
                Carry::Tcp(split_of(listener).unwrap_or(&EMPTY))
            };
            chains.push(Chain { carry, server_name: Some(listener.hostname.clone()), certificate });
        }
        chains
    }

    /// Puts a certificate in, and says by what name listeners ask for it.
    fn put_secret(&mut self, secret: &ObjectKey) -> String {
        let (input, name) = (self.input, secret.to_string());
        if let Some(pair) = input.certificates.get(secret) {
            let known = self.earlier.and_then(|earlier| earlier.input.certificates.get(secret));
            let is_same = known.is_some_and(|known| known == pair);
            self.put(Kind::Secret, &name, is_same, || secret::render(&name, pair));
        }
        name
    }

    fn backends(&mut self) {
        let input = self.input;
        let Some((chosen, further)) = input.tiers.split_first() else { return };
        // A sidecar with ports for some destinations needs nothing of the others.
        let wanted = self.entered.take().map(|entered| entered.backends());
        let is_wanted = |backend: &&Arc<Backend>| wanted.as_ref().is_none_or(|all| all.contains(&backend.id));
        for backend in chosen.backends().filter(is_wanted) {
            let name = backend.id.to_string();
            let tiers: Vec<&Arc<Backend>> = std::iter::once(backend)
                .chain(further.iter().filter_map(|t| t.backend(&backend.id)))
                .collect();
            let before = self.earlier.and_then(|e| e.input.tiers.first()?.backend(&backend.id));
            let same_protocol = before.is_some_and(|before| before.protocol == backend.protocol);
            self.put(Kind::Cluster, &name, same_protocol, || cluster::render(&name, backend.protocol));
            let is_same = self.earlier.is_some_and(|earlier| earlier.has_tiers(&tiers));
            self.put(Kind::Endpoints, &name, is_same, || {
                let tiers: Vec<&Backend> = tiers.iter().map(|tier| &***tier).collect();
                endpoints::render(&name, &tiers)
            });
        }
    }
}

impl Rendered {
    /// The routes that it was rendered from.
    pub fn routes(&self) -> &Arc<RouteTable> {
        &self.input.routes
    }

    /// Where the proxy listens that it was rendered for.
    pub fn entrance(&self) -> &Entrance {
        &self.input.entrance
    }

    /// Whether a backend's tiers are what they were.
    fn has_tiers(&self, tiers: &[&Arc<Backend>]) -> bool {
        let Some(first) = tiers.first() else { return false };
        let before: Vec<&Arc<Backend>> =
            self.input.tiers.iter().filter_map(|table| table.backend(&first.id)).collect();
        let same = |(a, b): (&&Arc<Backend>, &&Arc<Backend>)| Arc::ptr_eq(a, b) || a.endpoints == b.endpoints;
        before.len() == tiers.len() && before.iter().zip(tiers).all(same)
    }
}

static EMPTY: std::sync::LazyLock<WeightedBackends> = std::sync::LazyLock::new(WeightedBackends::default);

fn split_of(listener: &model::route::Listener) -> Option<&WeightedBackends> {
    listener.hosts.iter().find_map(|(_, routing)| match routing {
        Routing::Tcp(split) => Some(&**split),
        Routing::Http(_) => None,
    })
}

fn no_certificate(setting: &Setting<'_>, listener: &Name, secret: &ObjectKey) -> Notice {
    let message = format!(
        "spec.listeners[name={listener}].tls.certificateRef: there is no usable Secret {secret} of type kubernetes.io/tls, so nothing is served for this listener; create it"
    );
    Notice::new(setting.object.clone(), "NoCertificate", message)
}
