//! A candidate as a task: started, asked whether it leads, and left in order.

use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Settings, run};

/// A label `name`, as Kubernetes has it on this metric.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeaseName {
    name: String,
}

/// A seat in the election, or the certainty of leading where there is none.
pub struct LeaderHandle {
    leading: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl LeaderHandle {
    /// Takes part in the election; without settings, leads from the beginning.
    pub fn seek(client: Client, settings: Option<Settings>) -> Self {
        let (sender, leading) = watch::channel(false);
        let (stop, mut stopped) = watch::channel(false);
        let task = match settings {
            Some(settings) => tokio::spawn(run(client, settings, sender, stopped)),
            None => tokio::spawn(async move {
                sender.send_replace(true);
                let _ = stopped.wait_for(|stop| *stop).await;
                sender.send_replace(false);
            }),
        };
        Self { leading, stop, task }
    }

    /// Whether we lead.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Shows in the metrics whether we lead, by Kubernetes' name for it. The task ends with the election.
    pub fn show(&self, name: &str, registry: &mut Registry) {
        let status: Family<LeaseName, Gauge> = Family::default();
        let gauge = status.get_or_create_owned(&LeaseName { name: name.to_owned() });
        registry.register("leader_election_master_status", "1 while this process leads, else 0", status);
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

    /// Gives the Lease up, so that somebody else leads at once.
    pub async fn leave(self) {
        self.stop.send_replace(true);
        // A task that panicked has given nothing up; the Lease runs out by itself.
        let _ = self.task.await;
    }
}
