//! What those who look after controllers see: `/healthz`, `/livez`, `/readyz` and `/metrics` at one address, the same
//! for `zoneward controller` and for `zoneward up`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::admin_server::{Checks, Routes};

/// Where it is, unless a flag says otherwise.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_270);
/// How often the API is asked whether it is there, and after how long without an answer we are not ready.
const ASK: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(20);

/// What is answered: `ready` says whether there is a reason not to send anybody here.
pub fn routes(registry: Registry, ready: Checks) -> Routes {
    // Alive is whoever answers; a restart would not bring an API back that is away.
    let alive = Checks::default().check("ping", || Ok(()));
    Routes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
}

/// When the API last answered.
pub struct Heard {
    start: Instant,
    /// Milliseconds after the start, and one; zero is never.
    last: AtomicU64,
}

impl Heard {
    /// Asks the API now and then, until `stop` turns true.
    pub fn follow(client: Client, mut stop: watch::Receiver<bool>) -> Arc<Self> {
        let heard = Arc::new(Self { start: Instant::now(), last: AtomicU64::new(0) });
        let noted = heard.clone();
        tokio::spawn(async move {
            let asking = async {
                loop {
                    if let Ok(Ok(_)) = tokio::time::timeout(ASK, client.apiserver_version()).await {
                        let after = noted.start.elapsed().as_millis() as u64;
                        noted.last.store(after + 1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(ASK).await;
                }
            };
            tokio::select! {
                () = asking => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        heard
    }

    /// An error if it has been silent for too long.
    pub fn check(&self) -> Result<(), String> {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 {
            return Err("the API has not answered yet".to_owned());
        }
        let silence = self.start.elapsed().saturating_sub(Duration::from_millis(last - 1));
        if silence > SILENCE {
            return Err(format!("the API has not answered for {} s", silence.as_secs()));
        }
        Ok(())
    }
}
