//! Health-check node ports: for each Service of type LoadBalancer under externalTrafficPolicy Local, a port on which
//! its load balancer asks whether this node has endpoints, and how many.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use model::{Family, Notice, ObjectRef, ServiceKey};
use plan::forward::HealthCheck;
use serde_json::json;
use tokio::sync::watch;

use cluster::admin_server::{self, AdminPage, AdminRoutes};

/// Evaluated at each request.
pub type IsHealthy = Arc<dyn Fn() -> bool + Send + Sync>;

/// One server per Service and address.
pub struct HealthCheckServers {
    is_healthy: IsHealthy,
    /// Shared with the servers.
    checks: Arc<Mutex<BTreeMap<ServiceKey, HealthCheck>>>,
    /// Dropping the sender stops the server.
    servers: BTreeMap<(ServiceKey, SocketAddr), watch::Sender<bool>>,
    has_failed_ports: bool,
}

impl HealthCheckServers {
    pub fn new(is_healthy: IsHealthy) -> Self {
        Self { is_healthy, checks: Arc::default(), servers: BTreeMap::new(), has_failed_ports: false }
    }

    /// Sets or removes the checks of some Services; whether one of them needs another server. The number of endpoints
    /// changes the answers alone.
    pub fn update(&mut self, checks: Vec<(ServiceKey, Option<HealthCheck>)>) -> bool {
        let mut held = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let server = |check: &HealthCheck| (check.port, check.v4.is_some(), check.v6.is_some());
        let mut is_changed = false;
        for (key, check) in checks {
            is_changed |= held.get(&key).map(server) != check.as_ref().map(server);
            match check {
                Some(check) => drop(held.insert(key, check)),
                None => drop(held.remove(&key)),
            }
        }
        is_changed
    }

    /// Starts and stops servers until each check is answered on these addresses. A port that cannot be bound is a Notice,
    /// and the next call retries it.
    pub fn listen(&mut self, addresses: &[IpAddr]) -> Vec<Notice> {
        let wanted = self.checks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_wanted = |key: &ServiceKey, at: &SocketAddr| {
            let answers = |check: &HealthCheck| check.port == at.port() && has_family(check, at.ip());
            wanted.get(key).is_some_and(answers) && addresses.contains(&at.ip())
        };
        self.servers.retain(|(key, at), _| is_wanted(key, at));
        let mut notices = Vec::new();
        for (key, check) in &wanted {
            for address in addresses.iter().filter(|address| has_family(check, **address)) {
                let at = SocketAddr::new(*address, check.port);
                if !self.servers.contains_key(&(key.clone(), at)) {
                    match admin_server::listen_single_family(at) {
                        Ok(listener) => {
                            let (stop, stopped) = watch::channel(false);
                            tokio::spawn(admin_server::serve(
                                listener,
                                self.routes(key, Family::of(*address)),
                                stopped,
                            ));
                            self.servers.insert((key.clone(), at), stop);
                        }
                        Err(error) => notices.push(failed(key, at, &error)),
                    }
                }
            }
        }
        self.has_failed_ports = !notices.is_empty();
        notices
    }

    /// Whether a port could not be bound.
    pub fn has_failed_ports(&self) -> bool {
        self.has_failed_ports
    }

    /// Every path has the same response.
    fn routes(&self, key: &ServiceKey, family: Family) -> AdminRoutes {
        let (key, checks, is_healthy) = (key.clone(), self.checks.clone(), self.is_healthy.clone());
        AdminRoutes::default().fallback(move |_| {
            let checks = checks.lock().unwrap_or_else(PoisonError::into_inner);
            let local = checks.get(&key).and_then(|check| check.local(family)).unwrap_or(0);
            drop(checks);
            answer(&key, local, is_healthy())
        })
    }
}

fn has_family(check: &HealthCheck, address: IpAddr) -> bool {
    check.local(Family::of(address)).is_some()
}

// Semantics D8: the proxy's health counts, the node's eligibility does not (pitfall 27).
fn answer(key: &ServiceKey, local: usize, is_healthy: bool) -> AdminPage {
    let body = json!({
        "service": {"namespace": key.namespace.as_str(), "name": key.name.as_str()},
        "localEndpoints": local,
        "serviceProxyHealthy": is_healthy,
    });
    let is_up = local > 0 && is_healthy;
    let status = if is_up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    AdminPage::json(status, &body).with_header("x-load-balancing-endpoint-weight", local.to_string())
}

fn failed(key: &ServiceKey, at: SocketAddr, error: &std::io::Error) -> Notice {
    let message = format!(
        "spec.healthCheckNodePort: node cannot listen on {at}: {error}; the load balancer treats this node as one without endpoints until the port is free"
    );
    Notice::new(ObjectRef::service(key), "FailedToStartServiceHealthcheck", message)
}
