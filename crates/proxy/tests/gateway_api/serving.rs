//! The embedded proxies of a case: one per Gateway, and one per client of the mesh.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use model::backend::ConsumerLocation;
use model::route::RouteTable;
use model::{Labels, ObjectKey, ServiceKey};
use plan::FeatureGates;
use plan::gateway_api::gateway_table;
use plan::routes::{MeshClient, sidecar};
use proxy::{CertificateAuthorities, ListenerKind, Proxy, ProxyOptions, ProxyTables, ServerCertificate};
use serde_json::Value;
use tokio::net::{TcpListener, UdpSocket};

use super::world::{World, destination, key, text};

/// The tables of a route table: endpoints by the plan, and the certificates that it needs.
pub fn proxy_tables(world: &World, routes: RouteTable) -> ProxyTables {
    let consumer = ConsumerLocation { node: "here".into(), zone: None };
    let backends = plan::backends::table(&world.snapshot, &routes, &consumer, FeatureGates::ALL);
    let certificate = |key: ObjectKey| {
        let pair = world.pairs.get(&key)?;
        let parsed = ServerCertificate::parse(pair.chain.as_bytes(), pair.key.as_bytes()).expect("a pair");
        Some((key, Arc::new(parsed)))
    };
    let authorities = |key: ObjectKey| {
        let parsed = CertificateAuthorities::parse(world.pairs.get(&key)?.chain.as_bytes()).expect("PEM");
        Some((key, Arc::new(parsed)))
    };
    ProxyTables {
        certificates: Arc::new(routes.secrets().into_iter().filter_map(certificate).collect()),
        authorities: Arc::new(routes.authorities().into_iter().filter_map(authorities).collect()),
        routes: Arc::new(routes),
        backends: Arc::new(backends),
    }
}

/// The status of a preflight request's answer.
pub const PREFLIGHT: u16 = 204;

/// Whether a Location without a new host has the default port of its scheme.
pub fn has_default_port() -> bool {
    false
}

/// What a request is sent to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Gateway(ObjectKey),
    Client(ServiceKey),
}

#[derive(Default)]
pub struct Proxies {
    proxies: BTreeMap<Target, Proxy>,
    bound: BTreeMap<(Target, String), SocketAddr>,
}

impl Proxies {
    fn table(world: &World, target: &Target) -> RouteTable {
        match target {
            Target::Gateway(gateway) => {
                let gateway = world.snapshot.gateway(gateway).expect("the Gateway");
                gateway_table(&world.snapshot, gateway).0
            }
            Target::Client(service) => {
                let client = MeshClient::of_service(&world.snapshot, service, &Labels::EMPTY);
                sidecar(&world.snapshot, &client).0
            }
        }
    }

    /// Swaps in the tables of a changed world.
    pub fn update(&self, world: &World) {
        for (target, proxy) in &self.proxies {
            proxy.swap(proxy_tables(world, Self::table(world, target)));
        }
    }

    /// Where a request is sent to, and the Host without one.
    pub async fn address(&mut self, world: &World, request: &Value) -> (SocketAddr, String) {
        let (target, listener, host) = match request["gateway"].as_str() {
            Some(gateway) => {
                let port = u16::try_from(request["port"].as_u64().expect("a port")).expect("a port");
                (Target::Gateway(key(gateway)), ListenerKind::Gateway { port }, "192.0.2.1".to_owned())
            }
            None => {
                let from = key(text(&request["from"]));
                let (service, port) = destination(request);
                let host = service.name.to_string();
                let client = ServiceKey::new(&from.namespace, &from.name);
                (Target::Client(client), ListenerKind::Outbound { service, port }, host)
            }
        };
        let proxy = self.proxies.entry(target.clone()).or_insert_with(|| {
            Proxy::new(ProxyOptions::default(), proxy_tables(world, Self::table(world, &target)))
        });
        let proxy = proxy.clone();
        let is_udp = request["scheme"] == "udp";
        let id = (target, format!("{listener:?} {is_udp}"));
        if let Some(bound) = self.bound.get(&id) {
            return (*bound, host);
        }
        let at = match (is_udp, &listener) {
            (true, ListenerKind::Gateway { port }) => {
                let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback has ports");
                let (at, port) = (socket.local_addr().expect("bound"), *port);
                tokio::spawn(async move { proxy.serve_udp(socket, port, std::future::pending()).await });
                at
            }
            _ => {
                let socket = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
                let at = socket.local_addr().expect("bound");
                tokio::spawn(async move { proxy.serve(socket, listener, std::future::pending()).await });
                at
            }
        };
        self.bound.insert(id, at);
        (at, host)
    }
}
