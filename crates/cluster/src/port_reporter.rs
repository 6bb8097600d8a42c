//! Reports of `mesh control` to the leading controller: the ports of gateways that its Envoys could not bind.

use std::time::Duration;

use model::random::Random;
use plan::gateway_api::{EnvoyPortReport, UnboundPort};
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
    /// `control/NAMESPACE/POD`.
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
                let report = EnvoyPortReport::new(&self.reporter, ports);
                match self.client.send_ports(&report).await {
                    Ok(()) => {
                        (is_known, is_failing) = (!report.unbound_ports.is_empty(), false);
                        if report.unbound_ports != reported {
                            let ports = report.unbound_ports.len();
                            info!(ports, "reported the ports that Envoys could not bind");
                        }
                        reported = report.unbound_ports;
                    }
                    Err(error) => {
                        // Beside a kube-controller-manager alone, no controller writes statuses.
                        let has_leader = !error.is::<NoLeader>();
                        let error = failure::text(&error);
                        if is_failing || !has_leader {
                            debug!(error, "ports that Envoys could not bind are not reported; retrying");
                        } else {
                            warn!(
                                error,
                                "ports that Envoys could not bind are not in the status of gateways; retrying"
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
