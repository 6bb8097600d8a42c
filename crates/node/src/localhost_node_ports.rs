//! Node ports on 127.0.0.1 and ::1 by listeners of this process (KEP-6032): kernel rules cannot serve them without
//! `route_localnet`, which opens loopback to neighbours.
//!
//! ```text
//! after a sync -> plan: which ports, and where to connect -> listeners opened and closed
//! accept -> connect from this node, rules select the endpoint -> copy both ways, half-close
//! ```
//!
//! Connections outlive their listener, and share a bound between Services (`cluster::tcp_relay`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use cluster::admin_server::listen_single_family;
use cluster::tcp_relay::TcpRelay;
use model::{Family, Notice, ObjectRef, ServiceKey};
use nix::sys::resource::{Resource, getrlimit};
use plan::forward::LocalhostNodePort;
use tokio::sync::watch;

use super::metrics::{LocalhostMetrics, connection_result, family};

/// Most connections, whatever the descriptors of the process.
const MAX_CONNECTIONS: u64 = 4096;

/// The listeners of this node.
pub struct LocalhostNodePorts {
    ports_by_service: BTreeMap<ServiceKey, Vec<LocalhostNodePort>>,
    /// Where each connects to. Dropping the sender closes the listener.
    listeners: BTreeMap<SocketAddr, (ServiceKey, watch::Sender<SocketAddr>)>,
    has_failed_ports: bool,
    relay: TcpRelay,
    metrics: LocalhostMetrics,
}

impl LocalhostNodePorts {
    /// A connection has two descriptors: half of those of the process are for other uses.
    pub fn new(metrics: LocalhostMetrics) -> Self {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Self::with_limit((descriptors / 4).min(MAX_CONNECTIONS) as usize, metrics)
    }

    fn with_limit(max_connections: usize, metrics: LocalhostMetrics) -> Self {
        Self {
            ports_by_service: BTreeMap::new(),
            listeners: BTreeMap::new(),
            has_failed_ports: false,
            relay: TcpRelay::new(max_connections),
            metrics,
        }
    }

    /// Sets or removes the ports of a Service; whether anything changed.
    pub fn update(&mut self, service: &ServiceKey, ports: Vec<LocalhostNodePort>) -> bool {
        let before = match ports.is_empty() {
            true => self.ports_by_service.remove(service),
            false => self.ports_by_service.insert(service.clone(), ports),
        };
        before.as_deref().unwrap_or_default()
            != self.ports_by_service.get(service).map_or(&[][..], |ports| ports)
    }

    /// Opens and closes listeners until each port is served. A port that cannot be bound is a Notice, and the next call
    /// retries it.
    pub fn listen(&mut self) -> Vec<Notice> {
        let ports = self.ports_by_service.iter();
        let wanted: BTreeMap<SocketAddr, (&ServiceKey, SocketAddr)> =
            ports.flat_map(|(key, ports)| ports.iter().map(move |p| (p.listen, (key, p.connect)))).collect();
        self.listeners.retain(|at, (service, _)| wanted.get(at).is_some_and(|(key, _)| *key == service));
        let mut notices = Vec::new();
        for (at, (service, connect)) in wanted {
            if let Some((_, target)) = self.listeners.get(&at) {
                target.send_if_modified(|target| std::mem::replace(target, connect) != connect);
                continue;
            }
            match listen_single_family(at) {
                Ok(listener) => {
                    let (target, targets) = watch::channel(connect);
                    let (at_family, metrics) = (Family::of(at.ip()), self.metrics.clone());
                    let connected = move |is_connected| {
                        let result = if is_connected { "connected" } else { "failed" };
                        metrics.connections.get_or_create(&connection_result(at_family, result)).inc();
                    };
                    let relay = self.relay.clone();
                    tokio::spawn(relay.serve(listener, service.to_string(), targets, connected));
                    self.listeners.insert(at, (service.clone(), target));
                }
                Err(error) => {
                    self.metrics.failures.get_or_create(&family(Family::of(at.ip()))).inc();
                    notices.push(failed(service, at, &error));
                }
            }
        }
        self.has_failed_ports = !notices.is_empty();
        for at in [Family::V4, Family::V6] {
            let open = self.listeners.keys().filter(|address| Family::of(address.ip()) == at).count();
            self.metrics.listeners.get_or_create(&family(at)).set(i64::try_from(open).unwrap_or(i64::MAX));
        }
        notices
    }

    /// Whether a port could not be bound.
    pub fn has_failed_ports(&self) -> bool {
        self.has_failed_ports
    }
}

fn failed(service: &ServiceKey, at: SocketAddr, error: &io::Error) -> Notice {
    let message = format!(
        "spec.ports[].nodePort: node cannot listen on {at}: {error}; connections to {at} do not reach the Service until the port is free"
    );
    Notice::new(ObjectRef::service(service), "FailedToListenOnLocalhost", message)
}
