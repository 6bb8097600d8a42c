//! The EndpointSlice controller: reconciles EndpointSlices, Events and conditions with the plan.
//!
//! ```text
//! watches -> Reconcilers (cache, work queue, plan) -> SliceWrites -> commit, concurrently -> the API
//!              ^                                       ^         |
//!              |                                    leading      |
//!              +---------------- WriteResult ----------------------+
//! ```
//!
//! The loop only moves events, writes and results. One task owns the cache, so a plan never sees half a change. A standby
//! watches as well and writes nothing: a new leader starts with a warm cache.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod addresses;
pub mod conditions;
pub mod controllers;
mod demand_loop;
pub mod hand_back;
mod last_sync;
pub mod metrics;
pub mod node_leases;
mod plan_counts;
mod reconcilers;
mod reports;
pub mod slice_reconciler;
pub mod slice_writes;
mod wanted_endpoints;
mod zone_drains;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use clock::Clock;
use insight::status_board::{LedgerView, StatusBoard, StatusRequest};
use insight::traffic_ledger::SharedLedger;
use kube::Client;
use model::random::Random;
use model::{Notice, ObjectKey, ServiceKey, annotation};
use plan::PlanningConfig;
use plan::work_queue::MonotonicTime;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinSet};
use tracing::{debug, info};

use cluster::events;
use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec};
pub use metrics::ControllerMetrics;
use reconcilers::Reconcilers;
pub use slice_reconciler::ReconcilerSettings;
use slice_writes::{SliceWrites, WriteFailure, WriteResult};
use zone_drains::DrainStatusWriter;

/// Most watch events applied between two plans.
const EVENT_BATCH: usize = 1_024;
/// Most Events that wait to be written.
const MAX_QUEUED_EVENTS: usize = 1_000;
/// Most names of recorded Events that are remembered.
const MAX_REPORTED: usize = 10_000;
/// Time for writes in flight after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of the controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    pub settings: ReconcilerSettings,
    /// Services written concurrently.
    pub concurrent_syncs: usize,
    /// Namespace of the node proxies' Leases.
    pub lease_namespace: String,
    /// Answers requests for reports.
    pub status: StatusBoard,
    /// Measured traffic and prices.
    pub traffic: LedgerView,
    /// Learns the zones of pods from the Nodes.
    pub ledger: Option<SharedLedger>,
    pub clock: Clock,
    /// Jitters the backoff of the watches.
    pub random: Random,
}

impl ControllerConfig {
    /// With the defaults of everything else.
    pub fn new(planning: PlanningConfig) -> Self {
        Self {
            settings: planning.into(),
            concurrent_syncs: 5,
            lease_namespace: "kube-system".to_owned(),
            status: StatusBoard::default(),
            traffic: LedgerView::default(),
            ledger: None,
            clock: Clock::system(),
            random: Random::seeded(clock::os_seed()),
        }
    }
}

/// Why the controller exited.
#[derive(Debug, PartialEq, Eq)]
pub enum ControllerExit {
    Stopped,
    /// kube-controller-manager's EndpointSlice controller is running too, and wrote this slice.
    CompetingController(ObjectKey),
    /// Leader election ended.
    ElectionFailed,
}

impl ControllerExit {
    /// What an operator can do; `None` after a normal stop.
    pub fn advice(&self) -> Option<String> {
        match self {
            Self::Stopped => None,
            Self::ElectionFailed => Some("leader election failed: restart this controller".into()),
            Self::CompetingController(slice) => Some(format!(
                "kube-controller-manager's EndpointSlice controller is running: it wrote EndpointSlice \
                 {slice}. Two controllers would overwrite each other's hints, so this one exits. Either disable the other one \
                 (kube-controller-manager --controllers=*,-endpointslice-controller), or, where that is impossible, \
                 start this one with --coexist: it then writes separate slices that only Zoneward's nodes use."
            )),
        }
    }
}

/// Runs until `stop` is true or another controller writes the same slices. Writes only while `leading` is true, and
/// cancels writes in flight when it turns false. Dropping the future cancels everything.
pub async fn run(
    client: Client,
    config: ControllerConfig,
    metrics: ControllerMetrics,
    mut leading: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) -> ControllerExit {
    let mut running = ControllerLoop::new(client, &config, metrics);
    let mut tick = tokio::time::interval(slice_reconciler::TICK);
    loop {
        if let Some(slice) = running.reconcilers.slices.competing_slice() {
            return ControllerExit::CompetingController(slice.clone());
        }
        running.decide_drains();
        running.start_writes();
        let (leads, due) = (running.leads, running.wake_at());
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            turned = leading.wait_for(|leading| *leading != leads) => match turned.map(|now| *now) {
                Ok(true) => running.lead(),
                Ok(false) => running.stand_by(),
                Err(_) => return ControllerExit::ElectionFailed,
            },
            Some(done) = running.writers.join_next_with_id() => running.write_finished(done),
            event = running.watches.next() => running.apply_events(event),
            Some(request) = running.requests.recv() => running.report(request),
            _ = tick.tick() => {
                running.tick();
                config.ledger.iter().for_each(|ledger| ledger.read_nodes(running.reconcilers.slices.snapshot()));
            }
            () = tokio::time::sleep_until(due.into()) => {}
        }
    }
    running.drain(leading).await;
    ControllerExit::Stopped
}

fn watch_specs(config: &ControllerConfig) -> Vec<WatchSpec> {
    let kinds = [ObjectKind::Service, ObjectKind::Pod, ObjectKind::Node, ObjectKind::Namespace];
    // Semantics M8: their last writer tells whether the upstream controller is at work.
    let slices = WatchSpec::all(ObjectKind::Slice).managed_fields();
    let node_proxies = format!("{}={}", annotation::COMPONENT, annotation::NODE_PROXY);
    let leases = WatchSpec::all(ObjectKind::Lease).namespace(&config.lease_namespace).labels(&node_proxies);
    // Clusters that are upgraded may not serve the kind yet.
    let drains = WatchSpec::all(ObjectKind::ZoneDrain).optional();
    kinds.into_iter().map(WatchSpec::all).chain([slices, leases, drains]).collect()
}

struct ControllerLoop {
    reconcilers: Reconcilers,
    watches: Informer,
    client: Client,
    writers: JoinSet<WriteResult>,
    /// The Service of each writer; writers of Events have none.
    services: HashMap<task::Id, ServiceKey>,
    /// Events about malformed objects, and the names of those recorded.
    queued_events: Vec<Value>,
    reported: BTreeSet<String>,
    writing_events: bool,
    leads: bool,
    concurrent_syncs: usize,
    free: usize,
    start: Instant,
    clock: Clock,
    requests: mpsc::Receiver<StatusRequest>,
    traffic: LedgerView,
    /// While leading.
    drain_statuses: Option<DrainStatusWriter>,
}

impl ControllerLoop {
    fn new(client: Client, config: &ControllerConfig, metrics: ControllerMetrics) -> Self {
        let concurrent_syncs = config.concurrent_syncs.max(1);
        Self {
            reconcilers: Reconcilers::new(config.settings.clone(), metrics),
            watches: Informer::start(&client, config.random.clone(), watch_specs(config)),
            drain_statuses: None,
            client,
            writers: JoinSet::new(),
            services: HashMap::new(),
            queued_events: Vec::new(),
            reported: BTreeSet::new(),
            writing_events: false,
            leads: false,
            concurrent_syncs,
            free: concurrent_syncs,
            start: config.clock.now(),
            clock: config.clock.clone(),
            requests: config.status.receiver(),
            traffic: config.traffic.clone(),
        }
    }

    fn report(&mut self, request: StatusRequest) {
        let now = self.now();
        self.reconcilers.answer(request, &self.traffic, now);
    }

    fn tick(&mut self) {
        let (now, time) = (self.now(), self.clock.timestamp().into());
        let notices = self.reconcilers.tick(&self.traffic, now, time);
        if !notices.is_empty() {
            self.record(&notices);
        }
    }

    fn decide_drains(&mut self) {
        let (now, time) = (self.now(), self.clock.timestamp().into());
        let statuses = self.reconcilers.decide_drains(&self.traffic, now, time);
        if let Some(writer) = &self.drain_statuses {
            writer.write(statuses);
        }
    }

    fn lead(&mut self) {
        self.leads = true;
        self.drain_statuses = Some(DrainStatusWriter::start(self.client.clone()));
        self.reconcilers.lead(self.now());
        self.write_events();
    }

    /// Cancels writes in flight. The API may still apply them; the leader repairs that.
    fn stand_by(&mut self) {
        self.leads = false;
        self.drain_statuses = None;
        self.writers = JoinSet::new();
        self.services.clear();
        self.writing_events = false;
        self.free = self.concurrent_syncs;
        self.reconcilers.stand_by();
    }

    /// Waits for writes in flight while leading.
    async fn drain(mut self, mut leading: watch::Receiver<bool>) {
        info!(writes = self.writers.len(), "stopping");
        let written = async { while self.writers.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            _ = leading.wait_for(|leading| !*leading) => {}
            _ = tokio::time::timeout(DRAIN_TIMEOUT, written) => {}
        }
        if !self.writers.is_empty() {
            debug!("writes in flight were cancelled");
        }
    }

    fn now(&self) -> MonotonicTime {
        MonotonicTime(self.clock.since(self.start))
    }

    fn start_writes(&mut self) {
        while self.free > 0 {
            let Some(work) = self.reconcilers.next(self.now(), self.clock.timestamp()) else { return };
            self.free -= 1;
            let service = work.service.clone();
            let writer = self.write(work);
            self.services.insert(writer, service);
        }
    }

    fn write(&mut self, work: SliceWrites) -> task::Id {
        let (client, clock) = (self.client.clone(), self.clock.clone());
        self.writers.spawn(async move { slice_writes::commit(&client, &clock, work).await }).id()
    }

    fn wake_at(&self) -> Instant {
        let idle = self.start + self.now().0 + slice_reconciler::TICK;
        let due = self.reconcilers.slices.due().filter(|_| self.free > 0).map(|due| self.start + due.0);
        due.map_or(idle, |due| due.min(idle))
    }

    fn write_finished(&mut self, ended: Result<(task::Id, WriteResult), task::JoinError>) {
        let (writer, done) = match ended {
            Ok((writer, done)) => (writer, Some(done)),
            Err(error) => (error.id(), None),
        };
        let Some(service) = self.services.remove(&writer) else {
            self.writing_events = false;
            return self.write_events();
        };
        self.free += 1;
        // A panic is a failure like others: the Service is requeued.
        let broken = || WriteResult {
            service,
            failure: Some(WriteFailure::Unavailable("a writer panicked".into())),
            ..WriteResult::default()
        };
        let done = done.unwrap_or_else(broken);
        let event = self.reconcilers.slices.done(done, self.now(), self.clock.timestamp());
        self.queued_events.extend(event);
        self.write_events();
    }

    fn apply_events(&mut self, first: InformerEvent) {
        let now = self.now();
        let mut next = Some(first);
        for _ in 0..EVENT_BATCH {
            let Some(event) = next.take().or_else(|| self.watches.ready()) else { break };
            let notices = self.reconcilers.observe(event, now);
            if !notices.is_empty() {
                self.record(&notices);
            }
        }
    }

    /// Queues Events about malformed objects. Equal Events have equal names, so a recorded one is skipped.
    fn record(&mut self, notices: &[Notice]) {
        for notice in notices {
            let event = events::event(events::SLICE_CONTROLLER, notice, None, self.clock.timestamp());
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.reported.len() >= MAX_REPORTED {
                self.reported.clear();
            }
            if self.queued_events.len() < MAX_QUEUED_EVENTS && self.reported.insert(name) {
                self.queued_events.push(event);
            }
        }
        self.write_events();
    }

    fn write_events(&mut self) {
        if self.leads && !self.writing_events && !self.queued_events.is_empty() {
            self.writing_events = true;
            let events = std::mem::take(&mut self.queued_events);
            self.write(SliceWrites { events, ..SliceWrites::default() });
        }
    }
}
