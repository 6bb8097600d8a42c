//! Replays events under each mechanism and measures churn: slices written, hints changed, watch traffic.
//!
//! ```text
//! InitialCluster (Services, pods, nodes) -> SimulatedCluster: an event queue in virtual time
//!   each tick: changed Services -> plan::slices with plan::hints and hysteresis -> stored slices -> Churn
//! ```
//!
//! Every mechanism gets the same events and a cluster of its own. Time is virtual.

mod controller;
mod from_snapshot;
mod generated;
mod random_events;
mod simulated_cluster;
mod workload;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use model::{Name, Namespace, Node, Pod, Service, ServiceKey, Slice};
use plan::hints::Mechanism;
use plan::subsetting::SubsetOptions;

pub use controller::{Churn, ChurnSample};
pub use generated::{ClusterSize, generated_cluster};
pub use random_events::random_events;

use controller::SimulatedController;
use simulated_cluster::SimulatedCluster;

/// A point in virtual time, in milliseconds from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// `None` for negative times and beyond 30 years.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        const LATEST: f64 = 1e9;
        (0.0..=LATEST).contains(&seconds).then(|| Self((seconds * 1_000.0).round() as u64))
    }

    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    fn after(self, seconds: u64) -> Self {
        self.later(Duration::from_secs(seconds))
    }

    fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Durations of pod transitions, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTimings {
    /// From the creation of a pod to its readiness.
    pub start: Duration,
    /// From the deletion of a pod to its termination.
    pub stop: Duration,
    /// From the failure of a node to the eviction of its pods; the default is that of Kubernetes.
    pub eviction: Duration,
}

impl Default for PodTimings {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            stop: Duration::from_secs(5),
            eviction: Duration::from_secs(300),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// Sets the replicas of the workload behind a Service.
    Scale(ServiceKey, usize),
    ScaleBy(ServiceKey, i64),
    /// Replaces all pods, with the default maxSurge and maxUnavailable of 25 %.
    Roll(ServiceKey),
    /// The node becomes not ready.
    NodeLoss(Name),
    NodeBack(Name),
    /// All nodes of a zone become not ready.
    ZoneLoss(Name),
    ZoneBack(Name),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEvent {
    pub at: Millis,
    pub change: ClusterChange,
}

/// The cluster before the first event.
#[derive(Clone, Debug, Default)]
pub struct InitialCluster {
    /// Only Services with a selector.
    pub services: Vec<Service>,
    /// Existing slices.
    pub slices: BTreeMap<ServiceKey, Vec<Slice>>,
    pub pods: Vec<Pod>,
    pub nodes: BTreeMap<Name, Node>,
    /// For their default traffic distribution.
    pub namespaces: BTreeMap<Name, Namespace>,
    pub timings: PodTimings,
    /// Slices by zone, of which each node receives those of its own; `None`: all nodes receive all.
    pub subset: Option<SubsetOptions>,
}

impl InitialCluster {
    /// An error if the event refers to an unknown object.
    pub fn check(&self, event: &ReplayEvent) -> Result<(), String> {
        let missing = |kind: &str, name: &str| Err(format!("there is no {kind} {name} with pods"));
        match &event.change {
            ClusterChange::Scale(key, _) | ClusterChange::ScaleBy(key, _) | ClusterChange::Roll(key) => {
                let service = self.services.iter().find(|service| service.key == *key);
                let selector = service.and_then(|service| service.selector.as_ref());
                let has = |pod: &Pod| {
                    pod.key.namespace == key.namespace && selector.is_some_and(|s| s.selects(&pod.labels))
                };
                if self.pods.iter().any(has) { Ok(()) } else { missing("Service", &key.to_string()) }
            }
            ClusterChange::NodeLoss(name) | ClusterChange::NodeBack(name) => {
                match self.nodes.contains_key(name) {
                    true => Ok(()),
                    false => missing("node", name),
                }
            }
            ClusterChange::ZoneLoss(zone) | ClusterChange::ZoneBack(zone) => {
                match self.nodes.values().any(|node| node.zone.as_ref() == Some(zone)) {
                    true => Ok(()),
                    false => missing("zone", zone),
                }
            }
        }
    }
}

/// Replays the events for each mechanism, in parallel.
///
/// Calls `progress` with the number of events processed; `stop` ends all replays early.
pub fn replay(
    start: &InitialCluster,
    events: &[ReplayEvent],
    mechanisms: &[Mechanism],
    threads: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<Churn> {
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Churn>> = Mutex::default();
    let work = || {
        while let Some((at, mechanism)) = take(&next, mechanisms) {
            let churn = replay_one(start, events, mechanism, stop, progress);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(at, churn);
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(mechanisms.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_values().collect()
}

fn take(next: &AtomicUsize, mechanisms: &[Mechanism]) -> Option<(usize, Mechanism)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, *mechanisms.get(at)?))
}

fn replay_one(
    start: &InitialCluster,
    events: &[ReplayEvent],
    mechanism: Mechanism,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Churn {
    let mut cluster = SimulatedCluster::new(start, events);
    let mut controller = SimulatedController::new(start, mechanism);
    controller.settle(&cluster);
    while !stop.load(Ordering::Relaxed) {
        let Some(tick) = cluster.advance() else { break };
        controller.sync_tick(&cluster, &tick);
        progress(tick.events);
    }
    controller.finish()
}

#[cfg(test)]
mod tests;
