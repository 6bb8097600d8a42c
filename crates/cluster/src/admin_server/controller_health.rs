//! The admin routes of controllers, for `zoneward controller` and `zoneward up`: `/healthz`, `/livez`, `/readyz` and
//! `/metrics` at one address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clock::Clock;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::admin_server::{AdminRoutes, HealthChecks};

/// The default address.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_270);
/// Interval between probes of the API, and deadline of each.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Not ready after this time without a response.
const UNREADY_AFTER: Duration = Duration::from_secs(20);

/// The routes; `ready` decides about `/readyz`.
pub fn routes(registry: impl Into<Arc<Registry>>, ready: HealthChecks) -> AdminRoutes {
    // Liveness does not depend on the API: a restart would not bring it back.
    let alive = HealthChecks::default().check("ping", || Ok(()));
    AdminRoutes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
}

/// The time since the API last answered, from regular probes.
pub struct ApiHealth {
    clock: Clock,
    start: Instant,
    /// Milliseconds between start and the last response, plus one; zero before the first.
    last: AtomicU64,
    /// Whether the API has answered.
    answered: watch::Sender<bool>,
}

impl ApiHealth {
    /// Probes the API until `stop` is true.
    pub fn poll(client: Client, clock: Clock, mut stop: watch::Receiver<bool>) -> Arc<Self> {
        let health = Arc::new(Self {
            start: clock.now(),
            clock,
            last: AtomicU64::new(0),
            answered: watch::Sender::new(false),
        });
        let probed = health.clone();
        tokio::spawn(async move {
            let probes = async {
                loop {
                    if let Ok(Ok(_)) = tokio::time::timeout(PROBE_INTERVAL, client.apiserver_version()).await
                    {
                        let millis = probed.clock.since(probed.start).as_millis() as u64;
                        probed.last.store(millis + 1, Ordering::Relaxed);
                        probed.answered.send_replace(true);
                    }
                    tokio::time::sleep(PROBE_INTERVAL).await;
                }
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = probes => {}
            }
        });
        health
    }

    /// Waits for the first answer of the API.
    pub async fn answered(&self) {
        // The sender is in `self`.
        let _ = self.answered.subscribe().wait_for(|answered| *answered).await;
    }

    /// The readiness check.
    pub fn check(&self) -> Result<(), String> {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 {
            return Err("the API has not answered yet".to_owned());
        }
        let silence = self.clock.since(self.start).saturating_sub(Duration::from_millis(last - 1));
        if silence > UNREADY_AFTER {
            return Err(format!("the API has not answered for {} s", silence.as_secs()));
        }
        Ok(())
    }
}
