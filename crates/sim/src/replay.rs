//! What a sequence of events costs under each mechanism: slices written, hints flipped, bytes on the watch.
//!
//! ```text
//! Start (Services, pods, nodes) -> State: an agenda in virtual time; pods come, get ready, go
//!   each moment: Services that changed -> plan::slices with plan::hints and memory -> stored slices -> Churn
//! ```
//!
//! Every mechanism lives through the same events in a world of its own. Time is a number that the events carry.

mod chance;
mod churn;
mod found;
mod made;
mod state;
mod workload;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use model::{Name, Namespace, Node, Pod, Service, ServiceKey, Slice};
use plan::hints::Mechanism;

pub use chance::{Chance, events};
pub use churn::{Churn, Moment};
pub use made::{Size, cluster};

pub(crate) use workload::{surge, unavailable};

use churn::Plane;
use state::State;

/// A point of virtual time, in milliseconds from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// Seconds as a user writes them; none below zero or beyond 30 years.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        const LATEST: f64 = 1e9;
        (0.0..=LATEST).contains(&seconds).then(|| Self((seconds * 1_000.0).round() as u64))
    }

    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    fn after(self, seconds: u64) -> Self {
        self.later(Duration::from_secs(seconds))
    }

    fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// How long things take, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From the making of a pod to its readiness.
    pub start: Duration,
    /// From the deletion of a pod to its end.
    pub stop: Duration,
    /// From the loss of a node to the replacement of its pods; what Kubernetes waits by default.
    pub eviction: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            stop: Duration::from_secs(5),
            eviction: Duration::from_secs(300),
        }
    }
}

/// Something that happens to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The workload behind a Service gets this many replicas.
    Scale(ServiceKey, usize),
    /// It gets more, or fewer.
    ScaleBy(ServiceKey, i64),
    /// All of its pods are replaced, with a quarter more at most and a quarter missing at most.
    Roll(ServiceKey),
    /// A node stops to answer.
    NodeLoss(Name),
    /// It answers again.
    NodeBack(Name),
    /// All nodes of a zone stop to answer.
    ZoneLoss(Name),
    /// They answer again.
    ZoneBack(Name),
}

/// A change and when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Millis,
    /// What.
    pub change: Change,
}

/// The cluster before the first event.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Services with a selector.
    pub services: Vec<Service>,
    /// Their slices, as far as there are any.
    pub slices: BTreeMap<ServiceKey, Vec<Slice>>,
    /// All pods.
    pub pods: Vec<Pod>,
    /// All nodes.
    pub nodes: BTreeMap<Name, Node>,
    /// Namespaces, for their defaults.
    pub namespaces: BTreeMap<Name, Namespace>,
    /// How long things take.
    pub pace: Pace,
}

impl Start {
    /// What is wrong with an event: what it names is not there.
    pub fn check(&self, event: &Event) -> Result<(), String> {
        let missing = |kind: &str, name: &str| Err(format!("there is no {kind} {name} with pods to change"));
        match &event.change {
            Change::Scale(key, _) | Change::ScaleBy(key, _) | Change::Roll(key) => {
                let service = self.services.iter().find(|service| service.key == *key);
                let selector = service.and_then(|service| service.selector.as_ref());
                let has = |pod: &Pod| {
                    pod.key.namespace == key.namespace && selector.is_some_and(|s| s.selects(&pod.labels))
                };
                if self.pods.iter().any(has) { Ok(()) } else { missing("Service", &key.to_string()) }
            }
            Change::NodeLoss(name) | Change::NodeBack(name) => match self.nodes.contains_key(name) {
                true => Ok(()),
                false => missing("node", name),
            },
            Change::ZoneLoss(zone) | Change::ZoneBack(zone) => {
                match self.nodes.values().any(|node| node.zone.as_ref() == Some(zone)) {
                    true => Ok(()),
                    false => missing("zone", zone),
                }
            }
        }
    }
}

/// One replay for each mechanism, in their order, by as many threads.
///
/// `progress` is told of every event that one of them has lived through; setting `stop` ends all of them early.
pub fn replay(
    start: &Start,
    events: &[Event],
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
    start: &Start,
    events: &[Event],
    mechanism: Mechanism,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Churn {
    let mut state = State::new(start, events);
    let mut plane = Plane::new(start, mechanism);
    plane.settle(&state);
    while !stop.load(Ordering::Relaxed) {
        let Some(step) = state.advance() else { break };
        plane.live_through(&state, &step);
        progress(step.events);
    }
    plane.finish()
}

#[cfg(test)]
mod tests;
