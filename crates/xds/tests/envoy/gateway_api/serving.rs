//! An Envoy for the Gateways and clients of a case.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use model::backend::ConsumerLocation;
use model::route::RouteTable;
use model::{Labels, ObjectKey, ServiceKey};
use plan::FeatureGates;
use plan::gateway_api::gateway_table;
use plan::routes::{MeshClient, sidecar};
use serde_json::Value;
use xds::render::{EnvoyListeners, PemKeyPair, RenderInput, render};
use xds::resource::{ResourceSet, ResourceType};

use super::world::{Pair, World, destination, key, text};
use crate::harness::{Control, bootstrap, envoy};
use crate::process::Envoy;
use toolbox::ports::free_port;

/// The status of a preflight request's answer.
pub const PREFLIGHT: u16 = 200;

/// Whether a Location without a new host has the default port of its scheme.
pub fn has_default_port() -> bool {
    true
}

/// The listeners of a case by the Gateway's port or the client's destination.
pub type Ports = BTreeMap<Listening, SocketAddr>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listening {
    Gateway(ObjectKey, u16),
    Client(ServiceKey, ServiceKey, u16),
}

pub fn listening(request: &Value) -> Listening {
    match request["gateway"].as_str() {
        Some(gateway) => {
            Listening::Gateway(key(gateway), u16::try_from(request["port"].as_u64().unwrap()).unwrap())
        }
        None => {
            let from = key(text(&request["from"]));
            let (service, port) = destination(request);
            Listening::Client(ServiceKey::new(&from.namespace, &from.name), service, port)
        }
    }
}

fn input(world: &World, routes: RouteTable, listeners: EnvoyListeners) -> RenderInput {
    let consumer = ConsumerLocation { node: "here".into(), zone: None };
    let backends = plan::backends::table(&world.snapshot, &routes, &consumer, FeatureGates::ALL);
    let pair = |(key, pair): (&ObjectKey, &Pair)| {
        let pair = PemKeyPair { chain: pair.chain.as_bytes().into(), key: pair.key.as_bytes().into() };
        (key.clone(), Arc::new(pair))
    };
    let authority = |(key, pair): (&ObjectKey, &Pair)| {
        let is_config_map = pair.config_map_key.is_some();
        is_config_map.then(|| (key.clone(), Arc::<[u8]>::from(pair.chain.as_bytes())))
    };
    RenderInput {
        routes: Arc::new(routes),
        tiers: vec![Arc::new(backends)],
        certificates: Arc::new(world.pairs.iter().map(pair).collect()),
        authorities: Arc::new(world.pairs.iter().filter_map(authority).collect()),
        listeners,
        allowlist: Arc::default(),
        edge: Arc::default(),
        retries: model::route::RetryLimits::DEFAULT,
    }
}

/// What an Envoy gets for all Gateways and clients of the requests.
pub fn resources(world: &World, ports: &Ports) -> Arc<ResourceSet> {
    let mut inputs = Vec::new();
    for (listening, at) in ports {
        match listening {
            Listening::Gateway(key, _) => {
                let Some(gateway) = world.snapshot.gateway(key) else { continue };
                let own = ports.iter().filter_map(|(listening, at)| match listening {
                    Listening::Gateway(other, port) if other == key => Some((*port, *at)),
                    _ => None,
                });
                let listeners = EnvoyListeners::Gateway {
                    gateway: key.clone(),
                    bind: "127.0.0.1".parse().unwrap(),
                    port_overrides: own.collect(),
                };
                let (mut routes, _) = gateway_table(&world.snapshot, gateway);
                // Ports without a request are not bound: other tests may have them.
                let unused: Vec<u16> = routes.ports().map(|port| port.number).collect();
                for port in unused {
                    if !ports.contains_key(&Listening::Gateway(key.clone(), port)) {
                        routes.remove_port(port);
                    }
                }
                inputs.push(input(world, routes, listeners));
            }
            Listening::Client(client, service, port) => {
                let client = MeshClient::of_service(&world.snapshot, client, &Labels::EMPTY);
                let outbounds = [(*at, (service.clone(), *port))].into();
                let routes = sidecar(&world.snapshot, &client).0;
                inputs.push(input(world, routes, EnvoyListeners::Sidecar { capture: None, outbounds }));
            }
        }
    }
    let mut union = ResourceSet::default();
    for input in inputs {
        let rendered = render(input, None);
        for kind in ResourceType::ALL {
            rendered.resources.of(kind).values().for_each(|resource| union.put(kind, resource.clone()));
        }
    }
    Arc::new(union)
}

/// One Envoy, which gets a listener with the first request to it.
#[derive(Default)]
pub struct Proxies {
    ports: Ports,
    running: Option<(Control, Envoy)>,
}

impl Proxies {
    /// Where a request is sent to, and the Host without one.
    pub async fn address(&mut self, world: &World, request: &Value) -> (SocketAddr, String) {
        let wanted = listening(request);
        let host = match &wanted {
            Listening::Gateway(..) => "192.0.2.1".to_owned(),
            Listening::Client(_, service, _) => service.name.to_string(),
        };
        if let Some(at) = self.ports.get(&wanted) {
            return (*at, host);
        }
        let at = free_port();
        self.ports.insert(wanted, at);
        let (resources, running) = (resources(world, &self.ports), self.running.take());
        // The server has a runtime of its own, which cannot be started here.
        let started = std::thread::spawn(move || {
            let (control, proxy) = running.unwrap_or_else(|| {
                let control = Control::start(&resources);
                let proxy = envoy(&bootstrap(control.address));
                (control, proxy)
            });
            control.publish(&resources);
            proxy.wait_for(at);
            (control, proxy)
        });
        self.running = Some(started.join().unwrap());
        (at, host)
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let (control, proxy) = running;
            assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
            std::thread::spawn(move || drop((proxy, control))).join().unwrap();
        }
    }
}
