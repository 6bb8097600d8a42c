//! Health-check node ports: for each Service of type LoadBalancer under externalTrafficPolicy Local, a port on which
//! its load balancer asks whether this node has endpoints, and how many.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use model::{Notice, ObjectRef, ServiceKey};
use serde_json::json;
use tokio::task::AbortHandle;

use super::forward::HealthCheck;
use super::serve::{self, Answer, Handler};

/// Whether the rules keep up, asked at each request.
pub type IsHealthy = Arc<dyn Fn() -> bool + Send + Sync>;

/// The servers that run.
pub struct Checks {
    is_healthy: IsHealthy,
    counts: Arc<Mutex<BTreeMap<ServiceKey, usize>>>,
    servers: BTreeMap<(ServiceKey, SocketAddr), AbortHandle>,
    lacks_some: bool,
}

impl Checks {
    /// None yet.
    pub fn new(is_healthy: IsHealthy) -> Self {
        Self { is_healthy, counts: Arc::default(), servers: BTreeMap::new(), lacks_some: false }
    }

    /// Makes the servers those that are wanted, on these addresses. What cannot be listened on is a Notice and is
    /// tried again the next time.
    pub fn set(&mut self, wanted: &BTreeMap<ServiceKey, HealthCheck>, addresses: &[IpAddr]) -> Vec<Notice> {
        let counts = wanted.iter().map(|(key, check)| (key.clone(), check.local)).collect();
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
        let is_wanted = |key: &ServiceKey, at: &SocketAddr| {
            wanted.get(key).is_some_and(|check| check.port == at.port()) && addresses.contains(&at.ip())
        };
        self.servers.retain(|(key, at), server| {
            let keep = is_wanted(key, at);
            if !keep {
                server.abort();
            }
            keep
        });
        let mut notices = Vec::new();
        for (key, check) in wanted {
            for address in addresses {
                let at = SocketAddr::new(*address, check.port);
                if !self.servers.contains_key(&(key.clone(), at)) {
                    match serve::listen(at) {
                        Ok(listener) => {
                            let task = tokio::spawn(serve::serve(listener, self.handler(key)));
                            self.servers.insert((key.clone(), at), task.abort_handle());
                        }
                        Err(error) => notices.push(failed(key, at, &error)),
                    }
                }
            }
        }
        self.lacks_some = !notices.is_empty();
        notices
    }

    /// Whether a port could not be listened on.
    pub fn lacks_some(&self) -> bool {
        self.lacks_some
    }

    fn handler(&self, key: &ServiceKey) -> Handler {
        let (key, counts, is_healthy) = (key.clone(), self.counts.clone(), self.is_healthy.clone());
        Arc::new(move |_path| {
            let local = counts.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied().unwrap_or(0);
            answer(&key, local, is_healthy())
        })
    }
}

// Semantics D8: the proxy's health counts, the node's eligibility does not (pitfall 27).
fn answer(key: &ServiceKey, local: usize, is_healthy: bool) -> Answer {
    let body = json!({
        "service": {"namespace": key.namespace.as_str(), "name": key.name.as_str()},
        "localEndpoints": local,
        "serviceProxyHealthy": is_healthy,
    });
    let mut answer = serve::json(if local > 0 && is_healthy { 200 } else { 503 }, &body);
    answer.headers_mut().insert("x-load-balancing-endpoint-weight", HeaderValue::from(local));
    answer
}

fn failed(key: &ServiceKey, at: SocketAddr, error: &std::io::Error) -> Notice {
    let message = format!(
        "spec.healthCheckNodePort: node cannot listen on {at}: {error}; the load balancer will take this node for one without endpoints until the port is free"
    );
    Notice::new(ObjectRef::service(key), "FailedToStartServiceHealthcheck", message)
}
