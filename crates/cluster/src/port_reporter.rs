//! Reports of ports of gateways that could not be bound to the leading controller: by an embedded proxy about its own, and by
//! `mesh control` about those of its Envoys.

use std::time::Duration;

use model::random::Random;
use plan::gateway_api::{PortReport, UnboundPort};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::failure;
use crate::ledger_client::{LedgerClient, NoLeader};

/// Interval between reports while there are such ports: the controller forgets those of a silent reporter after 90 s.
const REPEAT: Duration = Duration::from_secs(30);
/// Pause after a failure, and its jitter.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_JITTER_MILLIS: u64 = 5_000;

/// Reports a change at once, and nothing while every port is bound.
pub struct PortReporter {
    pub client: LedgerClient,
    /// `PORTS_PATH` or `ENVOYS_PATH` of the client.
    pub path: &'static str,
    /// `proxy/NAMESPACE/POD` or `control/NAMESPACE/POD`.
    pub reporter: String,
    pub ports: watch::Receiver<Vec<UnboundPort>>,
    pub random: Random,
}

impl PortReporter {
    /// Reports until the ports have no source any more.
    pub async fn run(mut self) {
        // Whether the controller may have ports of this reporter, and which.
        let (mut is_known, mut is_failing, mut reported) = (false, false, Vec::new());
        loop {
            let ports = self.ports.borrow_and_update().clone();
            let mut pause = REPEAT;
            if is_known || !ports.is_empty() {
                is_known = true;
                let report = PortReport::new(&self.reporter, ports);
                match self.client.send_ports(self.path, &report).await {
                    Ok(()) => {
                        (is_known, is_failing) = (!report.unbound_ports.is_empty(), false);
                        if report.unbound_ports != reported {
                            let ports = report.unbound_ports.len();
                            info!(ports, "reported the ports that could not be bound");
                        }
                        reported = report.unbound_ports;
                    }
                    Err(error) => {
                        // Beside a kube-controller-manager alone, no controller writes statuses.
                        let has_leader = !error.is::<NoLeader>();
                        let error = failure::text(&error);
                        if is_failing || !has_leader {
                            debug!(error, "ports that could not be bound are not reported; retrying");
                        } else {
                            warn!(
                                error,
                                "ports that could not be bound are not in the status of gateways; retrying"
                            );
                        }
                        is_failing |= has_leader;
                        pause = RETRY + Duration::from_millis(self.random.next_u64() % RETRY_JITTER_MILLIS);
                    }
                }
            }
            if let Ok(Err(_)) = tokio::time::timeout(pause, self.ports.changed()).await {
                return;
            }
        }
    }
}
