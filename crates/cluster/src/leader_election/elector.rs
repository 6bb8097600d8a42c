//! Leader election as a task, with its metric and its release.

use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{LeaderElectionConfig, run};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeaseName {
    name: String,
}

/// A running candidate.
pub struct LeaderElector {
    leading: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl LeaderElector {
    /// Starts the election; without a config, this process leads from the start.
    pub fn start(client: Client, config: Option<LeaderElectionConfig>) -> Self {
        let (sender, leading) = watch::channel(false);
        let (stop, mut stopped) = watch::channel(false);
        let task = match config {
            Some(config) => tokio::spawn(run(client, config, sender, stopped)),
            None => tokio::spawn(async move {
                sender.send_replace(true);
                let _ = stopped.wait_for(|stop| *stop).await;
                sender.send_replace(false);
            }),
        };
        Self { leading, stop, task }
    }

    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Registers `leader_election_master_status`, as in client-go.
    pub fn register_metrics(&self, name: &str, registry: &mut Registry) {
        let status: Family<LeaseName, Gauge> = Family::default();
        let gauge = status.get_or_create_owned(&LeaseName { name: name.to_owned() });
        registry.register("leader_election_master_status", "1 if this process is the leader, else 0", status);
        let mut leading = self.leading();
        tokio::spawn(async move {
            loop {
                gauge.set(i64::from(*leading.borrow_and_update()));
                if leading.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Stops and releases the Lease, so that another candidate leads immediately.
    pub async fn release(self) {
        self.stop.send_replace(true);
        // After a panic of the task the Lease expires.
        let _ = self.task.await;
    }
}
