//! The controllers of a process, put together here alone: `zoneward controller`, `zoneward up` and the simulated fleet
//! differ in their [`ControllersOptions`].
//!
//! ```text
//! LeaderElector -> leading -+-> ledger of measured traffic
//!                           +-> slices, hints and conditions, which read the ledger
//!                           +-> status of routes and gateways
//!                           +-> cluster IPs, where the API is the embedded one
//! ```

use anyhow::{Context, Result};
use cluster::admin_server::HealthChecks;
use cluster::leader_election::{LeaderElectionConfig, LeaderElector, while_leading};
use insight::traffic_ledger::SharedLedger;
use ipnet::IpNet;
use kube::Client;
use mesh::route_status::{self, ObservedGateways};
use plan::gateway_api::AssignedAddresses;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{ControllerConfig, ControllerMetrics, addresses};

/// What the callers differ in.
pub struct ControllersOptions {
    /// Slices, hints and conditions. All controllers have its clock and its random source; its ledger is the one below.
    pub slices: ControllerConfig,
    /// Without an election, this process leads from the start.
    pub election: Option<LeaderElectionConfig>,
    /// The name of the Lease in metrics, also without an election.
    pub lease_name: String,
    pub ledger: SharedLedger,
    /// The addresses that gateways get.
    pub gateway_addresses: AssignedAddresses,
    /// `None` where kube-controller-manager runs these controllers.
    pub cluster_ips: Option<ClusterIpOptions>,
}

/// The controllers of ServiceCIDRs and IPAddresses.
pub struct ClusterIpOptions {
    /// Those of `--service-cluster-ip-range`.
    pub ranges: Vec<IpNet>,
    /// Otherwise they run in the process of the API, also while a `zoneward controller` elsewhere leads, which has none.
    pub leader_only: bool,
}

/// The running controllers.
pub struct Controllers {
    elector: LeaderElector,
    leading: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 4],
    /// Why the controller of slices exited by itself.
    failure: watch::Receiver<Option<String>>,
}

impl Controllers {
    /// Starts them all.
    pub fn start(client: Client, options: ControllersOptions, registry: &mut Registry) -> Self {
        let ControllersOptions { mut slices, election, ledger, .. } = options;
        let (clock, mut random) = (slices.clock.clone(), slices.random.split());
        let elector = LeaderElector::start(client.clone(), election);
        elector.register_metrics(&options.lease_name, registry);
        let metrics = ControllerMetrics::default();
        metrics.register(registry);
        let (stop, stopped) = watch::channel(false);
        let [for_ledger, for_slices, for_routes, for_addresses] = in_order(elector.leading());
        let leading = for_slices.clone();
        let gateways = ObservedGateways {
            addresses: options.gateway_addresses,
            unbound_ports: Some(ledger.unbound_ports()),
        };

        slices.traffic = ledger.view();
        slices.ledger = Some(ledger.clone());
        let counting = ledger.follow(for_ledger, stopped.clone());
        let (failed, failure) = watch::channel(None);
        let planning = crate::run(client.clone(), slices, metrics, for_slices, stopped.clone());
        let planning = async move { drop(failed.send_replace(planning.await.advice())) };
        let (mut of_routes, mut of_addresses) = (random.split(), random.split());
        let statuses = {
            let (client, clock, stop) = (client.clone(), clock.clone(), stopped.clone());
            let run = move || {
                let (client, stop) = (client.clone(), stop.clone());
                route_status::run(client, gateways.clone(), clock.clone(), of_routes.split(), stop)
            };
            while_leading(for_routes, stopped.clone(), run)
        };
        let addresses = async move {
            let Some(ClusterIpOptions { ranges, leader_only }) = options.cluster_ips else { return };
            let (until, mut run) = (stopped.clone(), || {
                let (client, stop) = (client.clone(), stopped.clone());
                addresses::run(client, ranges.clone(), clock.clone(), of_addresses.split(), stop)
            });
            match leader_only {
                true => while_leading(for_addresses, until, run).await,
                false => run().await,
            }
        };
        let tasks =
            [tokio::spawn(counting), tokio::spawn(planning), tokio::spawn(statuses), tokio::spawn(addresses)];
        Self { elector, leading, stop, tasks, failure }
    }

    /// Whether this process leads, as the controller of slices sees it.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Completes when the controller of slices exits, with what an operator can do; `None` after a stop.
    pub fn failure(&self) -> impl Future<Output = Option<String>> + Send + 'static {
        let mut failure = self.failure.clone();
        async move {
            let _ = failure.changed().await;
            failure.borrow().clone()
        }
    }

    /// Whether the controller of slices runs.
    pub fn check(&self, ready: HealthChecks) -> HealthChecks {
        let failure = self.failure.clone();
        ready.check("endpointslices", move || failure.borrow().clone().map_or(Ok(()), Err))
    }

    /// Stops them, then releases the Lease: after that, another process writes.
    pub async fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        let mut ended = Ok(());
        for task in self.tasks {
            ended = ended.and(task.await.context("a controller task panicked"));
        }
        self.elector.release().await;
        ended
    }
}

/// Receivers of a watch are woken in an order that tokio draws, and a simulation must repeat: each gets a channel of its
/// own, in a fixed order.
fn in_order<const N: usize>(mut leading: watch::Receiver<bool>) -> [watch::Receiver<bool>; N] {
    let now = *leading.borrow_and_update();
    let senders: [watch::Sender<bool>; N] = std::array::from_fn(|_| watch::channel(now).0);
    let receivers = senders.each_ref().map(watch::Sender::subscribe);
    tokio::spawn(async move {
        while leading.changed().await.is_ok() {
            let now = *leading.borrow_and_update();
            senders.iter().for_each(|sender| {
                sender.send_replace(now);
            });
        }
    });
    receivers
}
