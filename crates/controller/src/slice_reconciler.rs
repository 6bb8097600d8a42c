//! The reconciler without I/O: watch cache, work queue, and the plan of one Service at a time. Watch events and results of
//! writes come in, writes go out.

mod leadership;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use insight::status::ConvergenceFigures;
use insight::status::convergence::DurationCounts;
use jiff::Timestamp;
use model::{Name, Notice, Object, ObjectKey, ObjectRef, Service, ServiceKey, Slice, Snapshot, annotation};
use plan::PlanningConfig;
use plan::dependents::{NodeChange, SelectorIndex, node_changed, services_on_node};
use plan::drain::ZoneDrains;
use plan::hints::conditions::NODES_BEHIND_INTERVAL;
use plan::hints::{ClusterTopology, Condition, HintOutcome, Mechanism, NodeAcks};
use plan::planner::Planner;
use plan::slices::{self, SliceMode, SlicePlan};
use plan::spill::MeasuredDemand;
use plan::work_queue::{
    Expectations, MonotonicTime, QueueTiming, SliceLosses, SliceVersion, SyncOutcome, WorkQueue,
};
use serde_json::Value;
use tracing::{debug, info, warn};

use super::conditions::{self, AckState};
use super::last_sync::{LastSync, LastSyncs, ServiceCounts};
use super::metrics::{ControllerMetrics, SyncCounts};
use super::node_leases::{GRACE, NodeLeaseChange, NodeLeases};
use super::plan_counts::{count_changes, counts, highest_revision};
use super::slice_writes::{SliceWrites, StoredSlice, WriteFailure, WriteResult, find, with_stored};
use cluster::events;
use cluster::{InformerEvent, ObjectChange, ObjectKind, WatchCache, api_outage};

/// Field manager of the upstream EndpointSlice controller.
const UPSTREAM_MANAGER: &str = "kube-controller-manager";
/// Kinds that must sync before anything is planned.
const WATCHED: [ObjectKind; 5] =
    [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Pod, ObjectKind::Node, ObjectKind::Namespace];
/// Consecutive failed writes before an Event is recorded.
const FAILURES_BEFORE_EVENT: u32 = 4;
const FAILED_TO_UPDATE: &str = "FailedToUpdateEndpointSlices";
/// Interval between checks of the node acknowledgements.
pub const TICK: Duration = Duration::from_secs(1);

/// Options of the plan and the queue.
#[derive(Clone, Debug)]
pub struct ReconcilerSettings {
    pub planning: PlanningConfig,
    pub timing: QueueTiming,
}

impl From<PlanningConfig> for ReconcilerSettings {
    fn from(planning: PlanningConfig) -> Self {
        Self { planning, timing: QueueTiming::default() }
    }
}

#[derive(Debug)]
pub struct SliceReconciler {
    pub(crate) cache: WatchCache,
    selectors: SelectorIndex,
    queue: WorkQueue,
    expectations: Expectations,
    losses: SliceLosses,
    pub(crate) last_syncs: LastSyncs,
    pub(crate) planner: Planner,
    facts_changed: bool,
    pub(crate) leases: NodeLeases,
    /// Services that some nodes have not acknowledged.
    unacknowledged: BTreeMap<ServiceKey, AckState>,
    /// When to check all acknowledgements again after a node restarted.
    recheck: Option<MonotonicTime>,
    in_flight: BTreeMap<ServiceKey, InFlight>,
    /// Services whose labels by zone were set or dropped too recently, and when to plan them again.
    subset_retries: BTreeMap<ServiceKey, MonotonicTime>,
    pub(crate) synced: bool,
    pub(crate) leading: bool,
    competing_slice: Option<ObjectKey>,
    pub(crate) metrics: ControllerMetrics,
    changed: ChangedServices,
    /// Times from changes of Pods to the written slices.
    pub(crate) slice_delays: DurationCounts,
}

/// Services that have changed, for what is kept of them elsewhere.
#[derive(Debug, Default)]
pub(crate) struct ChangedServices {
    /// They or their slices.
    pub(crate) services: BTreeSet<ServiceKey>,
    pub(crate) deleted: BTreeSet<ServiceKey>,
    /// The default of a namespace.
    pub(crate) all: bool,
}

/// What a sync takes from others.
pub trait SyncInputs {
    /// The demand that the slices of a Service are to have, if that is measured.
    fn measured_demand(&self, _: &ServiceKey) -> Option<MeasuredDemand> {
        None
    }

    /// The condition TrafficDistributionObserved.
    fn observed(&self, _: &Service) -> Option<Condition> {
        None
    }
}

/// Nothing is measured.
impl SyncInputs for () {}

/// The Services that a change affects.
enum Affected {
    Nothing,
    Now(ServiceKey),
    At(MonotonicTime, ServiceKey),
    Batched(BTreeSet<ServiceKey>),
    Namespace(Name),
    Node(Name, NodeChange),
}

/// The state after a successful write.
#[derive(Debug)]
struct InFlight {
    next: LastSync,
    changes: SyncCounts,
    /// When the written change happened.
    trigger: Option<model::Timestamp>,
}

impl SliceReconciler {
    /// All objects as watched.
    pub fn snapshot(&self) -> &Snapshot {
        self.cache.snapshot()
    }

    pub fn new(settings: ReconcilerSettings, metrics: ControllerMetrics) -> Self {
        let cache = WatchCache::default();
        Self {
            planner: Planner::new(cache.snapshot(), settings.planning),
            queue: WorkQueue::new(settings.timing),
            cache,
            metrics,
            selectors: SelectorIndex::default(),
            expectations: Expectations::default(),
            losses: SliceLosses::default(),
            last_syncs: LastSyncs::new(),
            facts_changed: false,
            leases: NodeLeases::default(),
            unacknowledged: BTreeMap::new(),
            recheck: None,
            in_flight: BTreeMap::new(),
            subset_retries: BTreeMap::new(),
            synced: false,
            leading: false,
            competing_slice: None,
            changed: ChangedServices::default(),
            slice_delays: DurationCounts::default(),
        }
    }

    pub(crate) fn take_changed(&mut self) -> ChangedServices {
        std::mem::take(&mut self.changed)
    }

    /// Shares of endpoints that warm up follow the time.
    pub(crate) fn advance_capacity(&mut self, time: model::Timestamp) {
        plan::capacity::advance(self.cache.snapshot_mut(), time);
    }

    /// What all Services share.
    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// The drains in force; the slices of all Services get their annotation.
    pub(crate) fn set_drains(&mut self, drains: Option<ZoneDrains>, now: MonotonicTime) {
        let has_zones = |drains: &Option<ZoneDrains>| drains.as_ref().is_some_and(|d| !d.zones().is_empty());
        let before = std::mem::replace(&mut self.planner.drains, drains);
        // Slices of a drain that ends may still be on their way: the cache does not show all of them.
        if has_zones(&before) || has_zones(&self.planner.drains) {
            return self.plan_all(now);
        }
        let drained = self.cache.snapshot().slices_with_shares();
        let drained = drained.filter(|slice| slice.content.annotation(annotation::DRAIN).is_some());
        for key in drained.filter_map(Slice::service).collect::<BTreeSet<_>>() {
            self.enqueue(&key, now);
        }
    }

    /// The mechanism of a Service's last sync.
    pub(crate) fn mechanism(&self, key: &ServiceKey) -> Mechanism {
        let last = self.last_syncs.get(key);
        let memory =
            last.and_then(|last| last.hint_memories.iter().map(|(_, memory)| memory.mechanism()).next());
        memory.unwrap_or_default()
    }

    /// Whether all kinds have synced.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether the queue is empty and no write is in flight.
    pub fn is_idle(&self) -> bool {
        self.synced && self.queue.is_idle()
    }

    /// A slice that the upstream controller wrote since this process started.
    pub fn competing_slice(&self) -> Option<&ObjectKey> {
        self.competing_slice.as_ref()
    }

    /// When the next Service is due.
    pub fn due(&self) -> Option<MonotonicTime> {
        if self.plans() { self.queue.due() } else { None }
    }

    /// Applies a watch event. Returns Notices about malformed objects.
    pub fn observe(&mut self, event: InformerEvent, now: MonotonicTime) -> Vec<Notice> {
        if let InformerEvent::ListStarted(ObjectKind::Lease) = &event {
            self.leases.clear();
        }
        let mut notices = Vec::new();
        for change in self.cache.read(event) {
            match &change {
                ObjectChange::Applied(_, reported) | ObjectChange::Unreadable(_, _, reported) => {
                    notices.extend(reported.iter().cloned())
                }
                _ => {}
            }
            self.apply(change, now);
        }
        if !self.synced && self.cache.has_listed(&WATCHED) {
            self.synced = true;
            self.plan_all(now);
        }
        notices
    }

    fn apply(&mut self, change: ObjectChange, now: MonotonicTime) {
        match change {
            ObjectChange::Applied(Object::Slice(slice), notices) => self.slice_applied(slice, notices, now),
            ObjectChange::Applied(object, notices) => self.applied(object, notices, now),
            ObjectChange::Deleted(kind, key) => {
                self.deleted(kind, &key, ObjectChange::Deleted(kind, key.clone()), now)
            }
            ObjectChange::Unreadable(kind, key, notices) => {
                self.deleted(kind, &key, ObjectChange::Unreadable(kind, key.clone(), notices), now);
            }
            ObjectChange::Other(ObjectKind::Lease, lease) => match serde_json::from_str(lease.text()) {
                Ok(lease) => {
                    let change = self.leases.applied(&lease, now);
                    self.lease_changed(change, now);
                }
                Err(error) => debug!(lease = lease.name(), %error, "failed to parse a Lease"),
            },
            other => self.cache.apply(other),
        }
    }

    /// An object was created or changed.
    fn applied(&mut self, object: Object, notices: Vec<Notice>, now: MonotonicTime) {
        let snapshot = self.cache.snapshot();
        let affected = match &object {
            Object::Service(service) => {
                self.selectors.set(service);
                self.changed.services.insert(service.key.clone());
                Affected::Now(service.key.clone())
            }
            Object::Pod(pod) if self.plans() => {
                Affected::Batched(self.selectors.affected_by_pod(snapshot.pod(&pod.key), Some(pod)))
            }
            Object::Node(node) => {
                let change = node_changed(snapshot.node(&node.name), Some(node));
                Affected::Node(node.name.clone(), change)
            }
            Object::Namespace(namespace) => {
                let before = snapshot.namespace(&namespace.name);
                let before = before.and_then(|before| before.default_traffic_distribution.as_ref());
                let same = before == namespace.default_traffic_distribution.as_ref();
                if same { Affected::Nothing } else { Affected::Namespace(namespace.name.clone()) }
            }
            _ => Affected::Nothing,
        };
        self.cache.apply(ObjectChange::Applied(object, notices));
        self.enqueue_affected(affected, now);
    }

    fn slice_applied(&mut self, slice: Box<Slice>, notices: Vec<Notice>, now: MonotonicTime) {
        let before = self.cache.snapshot().slice(&slice.key);
        let known =
            before.is_some_and(|b| b.resource_version == slice.resource_version && b.uid == slice.uid);
        let old_service = before.and_then(Slice::service);
        let service = slice.service();
        let uid = before.and_then(|before| before.uid.clone());
        if let Some(old) = old_service.as_ref().filter(|old| service.as_ref() != Some(old)) {
            // The slice belongs to another Service now: the old one must not expect it.
            self.expectations.saw_gone(old, uid.as_ref());
        }
        if !self.cache.is_listing(ObjectKind::Slice) {
            self.expectations.reached(SliceVersion::of(&slice));
        }
        let foreign = match &service {
            Some(service) => self.expectations.saw(service, &slice) && !known,
            None => true,
        };
        if self.synced && foreign && self.is_written_upstream(&slice) {
            self.competing_slice = Some(slice.key.clone());
        }
        self.cache.apply(ObjectChange::Applied(Object::Slice(slice), notices));
        self.changed.services.extend(service.clone());
        if let Some(old) = old_service.filter(|old| service.as_ref() != Some(old)) {
            self.changed.services.insert(old.clone());
            self.enqueue(&old, now);
        }
        // Our own write does not requeue the Service, unless its last sync failed.
        if let Some(service) = service
            && (foreign || self.queue.failures(&service) > 0)
        {
            self.enqueue(&service, now);
        }
    }

    /// Semantics M8: a slice with our managed-by label that the upstream controller wrote.
    fn is_written_upstream(&self, slice: &Slice) -> bool {
        self.planner.config.slices.mode == SliceMode::Exclusive
            && slice.managed_by().is_some_and(|name| name == annotation::CONTROLLER_NAME)
            && slice.written_by.as_ref().is_some_and(|name| name == UPSTREAM_MANAGER)
    }

    /// An object was deleted, or cannot be parsed any more.
    fn deleted(&mut self, kind: ObjectKind, key: &ObjectKey, change: ObjectChange, now: MonotonicTime) {
        let snapshot = self.cache.snapshot();
        let affected = match kind {
            ObjectKind::Service => {
                let key = ServiceKey::new(&key.namespace, &key.name);
                self.selectors.remove(&key);
                self.changed.services.insert(key.clone());
                self.changed.deleted.insert(key.clone());
                self.losses.forget(&key);
                Affected::Now(key)
            }
            ObjectKind::Slice => {
                match snapshot.slice(key).and_then(|slice| Some((slice.service()?, slice))) {
                    Some((service, slice)) => {
                        self.changed.services.insert(service.clone());
                        let unexpected = self.expectations.saw_gone(&service, slice.uid.as_ref());
                        let waits = self.queue.failures(&service) > 0;
                        // Slices of a deleted Service are the garbage collector's.
                        match unexpected && snapshot.service(&service).is_some() {
                            true => {
                                let due = self.losses.lost(&service, self.queue.timing(), now);
                                Affected::At(due, service)
                            }
                            false if unexpected || waits => Affected::Now(service),
                            false => Affected::Nothing,
                        }
                    }
                    None => Affected::Nothing,
                }
            }
            ObjectKind::Pod if self.plans() => {
                Affected::Batched(self.selectors.affected_by_pod(snapshot.pod(key), None))
            }
            ObjectKind::Node => {
                Affected::Node(key.name.clone(), node_changed(snapshot.node(&key.name), None))
            }
            ObjectKind::Namespace => Affected::Namespace(key.name.clone()),
            ObjectKind::Lease => {
                let change = self.leases.deleted(&key.name);
                self.lease_changed(change, now);
                Affected::Nothing
            }
            ObjectKind::Pod
            | ObjectKind::ZoneDrain
            | ObjectKind::ServiceCidr
            | ObjectKind::IpAddress
            | ObjectKind::Secret
            | ObjectKind::ConfigMap
            | ObjectKind::CustomResourceDefinition
            | ObjectKind::GatewayApi(_)
            | ObjectKind::MeshHttpRoute
            | ObjectKind::MeshGatewayHttpRoute
            | ObjectKind::MeshTcpRoute
            | ObjectKind::MeshGateway
            | ObjectKind::MeshLoadBalancing
            | ObjectKind::MeshRouteFilter => Affected::Nothing,
        };
        self.cache.apply(change);
        self.enqueue_affected(affected, now);
    }

    fn enqueue_affected(&mut self, affected: Affected, now: MonotonicTime) {
        match affected {
            Affected::Nothing => {}
            Affected::Now(key) => self.enqueue(&key, now),
            Affected::At(due, key) => self.enqueue(&key, due),
            Affected::Batched(keys) => self.enqueue_batched(keys, now),
            Affected::Namespace(name) => self.enqueue_namespace(&name, now),
            Affected::Node(name, change) => self.node_changed(&name, change, now),
        }
    }

    /// Whether some nodes have not acknowledged its slices.
    pub(crate) fn is_unacknowledged(&self, key: &ServiceKey) -> bool {
        self.unacknowledged.contains_key(key)
    }

    pub(crate) fn enqueue(&mut self, key: &ServiceKey, due: MonotonicTime) {
        if self.plans() {
            self.queue.add(key, due);
        }
    }

    fn enqueue_batched(&mut self, keys: BTreeSet<ServiceKey>, now: MonotonicTime) {
        let due = now.after(self.queue.timing().batch_period);
        keys.iter().for_each(|key| self.enqueue(key, due));
    }

    fn enqueue_namespace(&mut self, namespace: &Name, now: MonotonicTime) {
        // Its default may be another.
        self.changed.all = true;
        let services = self.selectors.services().filter(|key| key.namespace == *namespace);
        for key in services.cloned().collect::<Vec<_>>() {
            self.enqueue(&key, now);
        }
    }

    fn node_changed(&mut self, node: &str, change: NodeChange, now: MonotonicTime) {
        if !self.plans() {
            return;
        }
        if change.endpoints {
            let affected = services_on_node(self.cache.snapshot(), &self.selectors, node);
            self.enqueue_batched(affected, now);
        }
        if change.facts {
            self.facts_changed = true;
            let requesting = self.last_syncs.iter().filter(|(_, last)| last.requested);
            let requesting = requesting.map(|(key, _)| key.clone()).collect();
            self.enqueue_batched(requesting, now);
        }
    }

    fn lease_changed(&mut self, change: NodeLeaseChange, now: MonotonicTime) {
        for key in change.services {
            self.enqueue(&key, now);
        }
        if change.restarted {
            self.recheck = Some(now.after(GRACE));
        }
    }

    /// Checks the Services that wait for acknowledgements.
    pub fn tick(&mut self, now: MonotonicTime) {
        if self.recheck.is_some_and(|at| at <= now) {
            self.recheck = None;
            let requesting = self.last_syncs.iter().filter(|(_, last)| last.requested);
            for key in requesting.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.unacknowledged.entry(key).or_insert(AckState::Open);
            }
        }
        let turned = self.unacknowledged.iter().filter(|(key, before)| {
            let last = self.last_syncs.get(*key);
            let since = last.map(|last| last.revision).unwrap_or_default();
            let sent = last.and_then(|last| last.conditions_sent);
            let acks = self.leases.acks(self.cache.snapshot(), key, since, now);
            let is_recent = sent.is_some_and(|sent| now.0.saturating_sub(sent.0) < NODES_BEHIND_INTERVAL);
            acks != **before && !(is_recent && acks.are_behind() && before.are_behind())
        });
        for key in turned.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.enqueue(&key, now);
        }
        let due = self.subset_retries.iter().filter(|(_, at)| **at <= now);
        for key in due.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.subset_retries.remove(&key);
            self.enqueue(&key, now);
        }
        self.metrics.set_queue_depth(self.queue.waiting());
        if self.leading {
            let delays = ConvergenceFigures::new(&self.slice_delays, &self.leases.kernel_delays());
            self.metrics.set_convergence(&delays);
        }
    }

    /// The writes of the next due Service. Services without changes are done on the way.
    pub fn next(
        &mut self,
        now: MonotonicTime,
        wall: Timestamp,
        inputs: &impl SyncInputs,
    ) -> Option<SliceWrites> {
        // Bounded, so that watch events are applied in between.
        for _ in 0..64 {
            if !self.plans() {
                return None;
            }
            let key = self.queue.next(now)?;
            match self.begin(&key, now, wall, inputs) {
                Ok(work) => return Some(work),
                Err(outcome) => self.queue.done(&key, outcome, now),
            }
        }
        None
    }

    fn begin(
        &mut self,
        key: &ServiceKey,
        now: MonotonicTime,
        wall: Timestamp,
        inputs: &impl SyncInputs,
    ) -> Result<SliceWrites, SyncOutcome> {
        let stored = self.cache.snapshot().slices(key);
        if self.expectations.is_stale(key, stored, now) {
            self.metrics.synced("stale");
            debug!(service = %key, "the watch cache lags behind the last write; retrying");
            return Err(SyncOutcome::Failed);
        }
        if std::mem::take(&mut self.facts_changed) {
            self.planner.topology = ClusterTopology::from_nodes(self.cache.snapshot().nodes());
        }
        let Some(service) = self.cache.snapshot().service(key) else { return self.begin_orphans(key) };
        let unknown = LastSync::default();
        let last = self.last_syncs.get(key).unwrap_or(&unknown);
        let (plan, outcomes) = self.plan(service, last, inputs.measured_demand(key), now);
        let (acks, since) = self.acks(service, last, &plan, now);
        let (age, observed) =
            (last.conditions_sent.map(|sent| now.0.saturating_sub(sent.0)), inputs.observed(service));
        let update = conditions::update(
            &outcomes,
            &acks,
            observed,
            &service.conditions,
            last.sent.as_ref(),
            age,
            wall,
        );
        let rejection = || conditions::RejectedWrite::of(&outcomes, &service.conditions);
        let on_rejection = (!plan.is_noop()).then(rejection).flatten();
        let events = new_events(service, last, &plan, &outcomes, wall);
        let is_fresh = update.patch.is_some() && !update.deferred;
        let after = last.after(&plan, &outcomes);
        let next = LastSync {
            revision: since,
            subset_switched: if plan.subset.switched { Some(now) } else { after.subset_switched },
            sent: update.awaited,
            conditions_sent: if is_fresh { Some(now) } else { last.conditions_sent },
            counts: counts(service, &plan, &outcomes, stored, self.planner.config.slices.max_endpoints),
            ..after
        };
        log_plan(key, &plan, &next);
        let (changes, trigger) = (count_changes(&plan, stored), new_trigger(&plan, stored));
        let retry = plan.subset.retry_after.map(|wait| now.after(wait));
        let work = SliceWrites {
            service: key.clone(),
            uid: service.uid.clone(),
            updates: with_stored(stored, plan.updates),
            deletes: plan.deletes.iter().filter_map(|key| find(stored, key)).map(StoredSlice::from).collect(),
            creates: plan.creates,
            orphans: false,
            conditions: update.patch,
            on_rejection,
            events,
        };
        self.note_retry(key, retry);
        self.note_acks(key, next.requested, if update.deferred { AckState::Deferred } else { acks });
        if work.is_empty() {
            self.keep(key, next);
            self.metrics.synced("success");
            return Err(SyncOutcome::Done);
        }
        self.in_flight.insert(key.clone(), InFlight { next, changes, trigger });
        Ok(work)
    }

    fn plan(
        &self,
        service: &Service,
        last: &LastSync,
        measured: Option<MeasuredDemand>,
        now: MonotonicTime,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        let snapshot = self.cache.snapshot();
        let stored = snapshot.slices(&service.key);
        let memory = |family| match &measured {
            Some(measured) => last.memory(family, stored).with_measured(measured.clone()),
            None => last.memory(family, stored),
        };
        let since_switch = last.subset_switched.map(|switched| now.0.saturating_sub(switched.0));
        self.planner.plan_after(snapshot, service, stored, &last.trigger, since_switch, memory)
    }

    /// Acknowledgements of the stored slices, and the highest revision of these with the time since when.
    fn acks(
        &self,
        service: &Service,
        last: &LastSync,
        plan: &SlicePlan,
        now: MonotonicTime,
    ) -> (AckState, (u64, MonotonicTime)) {
        let snapshot = self.cache.snapshot();
        let revision = highest_revision(snapshot.slices(&service.key));
        let since = if last.revision.0 == revision { last.revision } else { (revision, now) };
        if plan::select::not_proxied(service).is_some() {
            // Nodes do not program it.
            return (AckState::Settled(NodeAcks::default()), since);
        }
        let acks = match self.leases.acks(snapshot, &service.key, since, now) {
            // No node can have programmed what is written now.
            AckState::Settled(acks) if !plan.is_noop() && acks.reached > 0 && acks.waiting == 0 => {
                AckState::Open
            }
            acks => acks,
        };
        (acks, since)
    }

    /// Deletes our slices without a Service, after a check that the API has no such Service.
    fn begin_orphans(&mut self, key: &ServiceKey) -> Result<SliceWrites, SyncOutcome> {
        let stored = self.cache.snapshot().slices(key);
        let orphans = slices::orphans(stored, self.planner.config.slices.mode);
        let deletes: Vec<StoredSlice> = orphans.map(StoredSlice::from).collect();
        if let Some(last) = self.last_syncs.remove(key) {
            self.metrics.recount(&last.counts, &ServiceCounts::default());
        }
        self.unacknowledged.remove(key);
        self.subset_retries.remove(key);
        if deletes.is_empty() {
            self.expectations.forget(key);
            return Err(SyncOutcome::Done);
        }
        info!(service = %key, slices = deletes.len(), "deleting EndpointSlices without a Service");
        Ok(SliceWrites { service: key.clone(), deletes, orphans: true, ..SliceWrites::default() })
    }

    fn note_retry(&mut self, key: &ServiceKey, at: Option<MonotonicTime>) {
        match at {
            Some(at) => drop(self.subset_retries.insert(key.clone(), at)),
            None => drop(self.subset_retries.remove(key)),
        }
    }

    fn note_acks(&mut self, key: &ServiceKey, requested: bool, acks: AckState) {
        if requested && (acks == AckState::Open || acks.are_behind()) {
            self.unacknowledged.insert(key.clone(), acks);
        } else {
            self.unacknowledged.remove(key);
        }
    }

    fn keep(&mut self, key: &ServiceKey, last: LastSync) {
        let after = last.counts.clone();
        let before = self.last_syncs.insert(key.clone(), last).map(|last| last.counts).unwrap_or_default();
        self.metrics.recount(&before, &after);
    }

    /// Applies the result of a write. Returns an Event about repeated failures.
    pub fn done(&mut self, done: WriteResult, now: MonotonicTime, wall: Timestamp) -> Option<Value> {
        let key = &done.service;
        let newest = done.written.iter().filter_map(|(_, version)| version.revision).max();
        for (uid, version) in done.written {
            self.expectations.wrote(key, uid, version, now);
        }
        for uid in done.deleted {
            self.expectations.deleted(key, uid, now);
        }
        (0..done.events.0).for_each(|_| self.metrics.event("success"));
        (0..done.events.1).for_each(|_| self.metrics.event("error"));
        self.metrics.wrote(&done.slices);
        let in_flight = self.in_flight.remove(key);
        let Some(failure) = done.failure else {
            if let Some(InFlight { mut next, changes, trigger }) = in_flight {
                if changes.slices() > 0 {
                    self.metrics.changed(&changes, &next.counts);
                    if let Some(trigger) = trigger {
                        self.slice_delays.add(model::Timestamp::from(wall).seconds_since(trigger).max(0.0));
                    }
                }
                if let Some(newest) = newest.filter(|_| next.requested) {
                    // The grace period of the nodes starts.
                    next.revision = (newest, now);
                    self.unacknowledged.insert(key.clone(), AckState::Open);
                }
                self.keep(key, next);
            }
            self.metrics.synced("success");
            self.queue.done(key, SyncOutcome::Done, now);
            return None;
        };
        self.metrics.synced("error");
        self.queue.done(key, SyncOutcome::Failed, now);
        if let (WriteFailure::Refused(_), Some(last)) = (&failure, self.last_syncs.get_mut(key)) {
            // The rejection replaces conditions that were sent before.
            last.sent = None;
        }
        self.report_failure(key, &failure, wall)
    }

    fn report_failure(&mut self, key: &ServiceKey, failure: &WriteFailure, wall: Timestamp) -> Option<Value> {
        let (WriteFailure::Refused(text) | WriteFailure::Unavailable(text)) = failure else {
            debug!(service = %key, reason = failure.text(), "write conflict; planning again");
            return None;
        };
        if api_outage::is_api_unreachable() {
            debug!(service = %key, error = %text, "failed to write EndpointSlices; retrying");
        } else {
            warn!(service = %key, error = %text, "failed to write EndpointSlices; retrying");
        }
        if self.queue.failures(key) != FAILURES_BEFORE_EVENT {
            return None;
        }
        let service = self.cache.snapshot().service(key)?;
        let message = format!("Failed to write the EndpointSlices of this Service; retrying: {text}");
        let notice = Notice::new(ObjectRef::service(key), FAILED_TO_UPDATE, message);
        let uid = service.uid.as_ref().map(ToString::to_string);
        Some(events::event(events::SLICE_CONTROLLER, &notice, uid.as_deref(), wall))
    }
}

fn log_plan(key: &ServiceKey, plan: &SlicePlan, next: &LastSync) {
    debug!(service = %key, creates = plan.creates.len(), updates = plan.updates.len(),
        deletes = plan.deletes.len(), unchanged = plan.unchanged.len(),
        mechanism = next.counts.mechanism.as_str(), missing_nodes = plan.missing_nodes.len(), "planned");
}

/// The trigger time that the plan writes, if it is new.
fn new_trigger(plan: &SlicePlan, stored: &[Slice]) -> Option<model::Timestamp> {
    let known =
        |key: &ObjectKey| find(stored, key).and_then(|s| s.content.annotation(annotation::TRIGGER_TIME));
    let created = plan.creates.iter().map(|content| (content, None));
    let updated = plan.updates.iter().map(|(key, content)| (content, known(key)));
    let written = created.chain(updated).filter_map(|(content, before)| {
        let text = content.annotation(annotation::TRIGGER_TIME)?;
        (before != Some(text)).then(|| model::Timestamp::parse(text)).flatten()
    });
    written.max()
}

/// Events for Notices that were not recorded before.
fn new_events(
    service: &Service,
    last: &LastSync,
    plan: &SlicePlan,
    outcomes: &[HintOutcome],
    now: Timestamp,
) -> Vec<Value> {
    let uid = service.uid.as_ref().map(ToString::to_string);
    let of_plan = plan.notices.iter().filter(|notice| !last.reported.contains(&notice.reason));
    let mut notices: Vec<&Notice> = of_plan.collect();
    for notice in outcomes.iter().flat_map(HintOutcome::news) {
        // Two families often have the same Notice.
        if !notices.iter().any(|known| known.message == notice.message) {
            notices.push(notice);
        }
    }
    for notice in &notices {
        debug!(service = %service.key, reason = notice.reason, message = %notice.message, "noticed");
    }
    let event = |notice: &Notice| events::event(events::SLICE_CONTROLLER, notice, uid.as_deref(), now);
    notices.into_iter().map(event).collect()
}

#[cfg(test)]
mod tests;
