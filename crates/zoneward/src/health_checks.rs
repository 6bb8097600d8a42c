//! Runs the health checks of the exposed processes of a machine and writes readiness to their EndpointSlices.
//!
//! ```text
//! watch of exposed slices -> readiness (what is due, when readiness turns) -> probes, bounded -> slices
//! ```
//! Slices are written only when readiness or a reason changed. While the API is away, checks continue.

mod metrics;
mod probe;
pub mod readiness;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clock::Clock;
use cluster::write::{JSON, send};
use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec, WatchedObject};
use http::Method;
use kube::{Client, Error};
use model::annotation;
use model::random::Random;
use readiness::{CheckSchedule, CheckScope, CheckTarget, CheckedSlice, EndpointCheck, with_health};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

pub use metrics::HealthCheckMetrics;

/// Checks under way at once.
const MAX_RUNNING: usize = 64;
/// Time until a write that failed is repeated.
const WRITE_RETRY: Duration = Duration::from_secs(1);
/// Longest sleep.
const IDLE: Duration = Duration::from_secs(60);

/// Namespace and name of a slice.
type SliceName = (String, String);

/// Checks the endpoints of `scope` until `stop` turns true.
pub async fn run(
    client: Client,
    scope: CheckScope,
    clock: Clock,
    random: Random,
    metrics: HealthCheckMetrics,
    mut stop: watch::Receiver<bool>,
) {
    let selector = format!("{}={}", annotation::MANAGED_BY, annotation::EXPOSE_CONTROLLER_NAME);
    let mut slices = Informer::start(&client, random, [WatchSpec::all(ObjectKind::Slice).labels(&selector)]);
    let mut checker = Checker::new(client, scope, clock, metrics);
    loop {
        checker.start_due();
        checker.start_write();
        let sleep = tokio::time::sleep(checker.until_next());
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            event = slices.next() => checker.follow(event),
            Some(Ok(done)) = checker.probes.join_next() => checker.probed(done),
            Some(Ok(written)) = checker.writes.join_next() => checker.written(written),
            () = sleep => {}
        }
    }
}

/// A check that ended.
struct Probed {
    target: CheckTarget,
    socket: SocketAddr,
    kind: &'static str,
    outcome: Result<(), String>,
}

struct Checker {
    client: Client,
    clock: Clock,
    started: Instant,
    metrics: HealthCheckMetrics,
    schedule: CheckSchedule,
    /// Slices as the API has them.
    slices: BTreeMap<SliceName, Value>,
    /// Slices of a list in progress.
    listed: Option<BTreeSet<SliceName>>,
    /// Slices whose readiness may have to be written.
    dirty: BTreeSet<SliceName>,
    retry_at: Duration,
    probes: JoinSet<Probed>,
    /// At most one.
    writes: JoinSet<(SliceName, Result<Value, Error>)>,
}

impl Checker {
    fn new(client: Client, scope: CheckScope, clock: Clock, metrics: HealthCheckMetrics) -> Self {
        Self {
            client,
            started: clock.now(),
            clock,
            metrics,
            schedule: CheckSchedule::new(scope, MAX_RUNNING),
            slices: BTreeMap::new(),
            listed: None,
            dirty: BTreeSet::new(),
            retry_at: Duration::ZERO,
            probes: JoinSet::new(),
            writes: JoinSet::new(),
        }
    }

    fn now(&self) -> Duration {
        self.clock.since(self.started)
    }

    fn until_next(&self) -> Duration {
        let now = self.now();
        let retry = (!self.dirty.is_empty() && self.writes.is_empty()).then_some(self.retry_at);
        let next = self.schedule.next_due().into_iter().chain(retry).min();
        next.map_or(IDLE, |next| next.saturating_sub(now).min(IDLE))
    }

    fn start_due(&mut self) {
        let now = self.now();
        for (target, socket, check) in self.schedule.due(now) {
            self.probes.spawn(probed(target, socket, check));
        }
        self.metrics.set_state(self.schedule.counts(), self.schedule.running(), self.schedule.overdue(now));
    }

    fn probed(&mut self, done: Probed) {
        let Probed { target, socket, kind, outcome } = done;
        self.metrics.count(kind, outcome.is_ok());
        let now = self.now();
        if !self.schedule.complete(&target, socket, outcome, now) {
            return;
        }
        let health = self.schedule.health_of(&target.namespace, &target.slice);
        if let Some(health) = health.get(&target.address) {
            let slice = format!("{}/{}", target.namespace, target.slice);
            let reason = health.reason.as_deref().unwrap_or_default();
            info!(slice, endpoint = %socket, ready = health.ready, reason, "readiness changed");
        }
        self.dirty.insert((target.namespace, target.slice));
    }

    fn follow(&mut self, event: InformerEvent) {
        match event {
            InformerEvent::ListStarted(_) => self.listed = Some(BTreeSet::new()),
            InformerEvent::Applied(_, object) => self.apply(&object),
            InformerEvent::Deleted(_, object) => self.forget(&name(&object)),
            InformerEvent::ListCompleted(_) => {
                let seen = self.listed.take().unwrap_or_default();
                let gone: Vec<SliceName> =
                    self.slices.keys().filter(|name| !seen.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.forget(name));
            }
            InformerEvent::Failed(..) => {}
        }
    }

    fn apply(&mut self, object: &WatchedObject) {
        let name = name(object);
        if let Some(seen) = &mut self.listed {
            seen.insert(name.clone());
        }
        let Ok(slice) = serde_json::from_str::<Value>(object.text()) else { return };
        let checked = CheckedSlice::parse(&slice).unwrap_or_else(|error| {
            warn!(error, "a health check is malformed: run `zoneward expose` again");
            None
        });
        let now = self.now();
        self.schedule.sync(&name.0, &name.1, checked.as_ref(), now);
        match checked {
            Some(_) => {
                self.slices.insert(name.clone(), slice);
                self.dirty.insert(name);
            }
            None => self.forget(&name),
        }
    }

    fn forget(&mut self, name: &SliceName) {
        let now = self.now();
        self.schedule.sync(&name.0, &name.1, None, now);
        self.slices.remove(name);
        self.dirty.remove(name);
    }

    /// Starts the next write, if one is needed and none is under way.
    fn start_write(&mut self) {
        if !self.writes.is_empty() || self.now() < self.retry_at {
            return;
        }
        while let Some(name) = self.dirty.pop_first() {
            let Some(slice) = self.slices.get(&name) else { continue };
            let Some(changed) = with_health(slice, &self.schedule.health_of(&name.0, &name.1)) else {
                continue;
            };
            self.writes.spawn(write(self.client.clone(), name, changed));
            return;
        }
    }

    fn written(&mut self, (name, result): (SliceName, Result<Value, Error>)) {
        match result {
            Ok(slice) => {
                self.metrics.count_write();
                if let Some(known) = self.slices.get_mut(&name) {
                    *known = slice;
                }
            }
            // The watch brings the newer version, or the deletion, and with it the next attempt.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                let slice = format!("{}/{}", name.0, name.1);
                warn!(slice, %error, "readiness was not written: retrying in a second");
                self.retry_at = self.now() + WRITE_RETRY;
                self.dirty.insert(name);
            }
        }
    }
}

fn name(object: &WatchedObject) -> SliceName {
    (object.namespace().to_owned(), object.name().to_owned())
}

async fn probed(target: CheckTarget, socket: SocketAddr, check: EndpointCheck) -> Probed {
    let outcome = probe::run(socket, &check).await;
    Probed { target, socket, kind: check.probe.kind(), outcome }
}

/// Replaces the slice; its resource version keeps concurrent writes of hints and endpoints.
async fn write(client: Client, name: SliceName, slice: Value) -> (SliceName, Result<Value, Error>) {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{}", name.0, name.1);
    let written = send::<Value>(&client, Method::PUT, &path, JSON, &slice).await;
    (name, written)
}
