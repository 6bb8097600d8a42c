//! The controller's head: the world as last seen, the queue over it, and the plan for one Service at a time. It waits
//! for nothing and writes nothing: changes come in, work goes out, and what became of it comes back.

mod leadership;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use model::{Name, Notice, Object, ObjectKey, ObjectRef, ServiceKey, Slice, annotation};
use plan::hints::conditions::NODES_BEHIND_INTERVAL;
use plan::hints::{self, ClusterTopology, NodeAcks};
use plan::planner::Planner;
use plan::slices::{self, SliceMode};
use plan::work_queue::{
    Expectations, MonotonicTime, NodeChange, QueueTiming, SelectorIndex, SliceVersion, SyncOutcome,
    WorkQueue, node_changed, services_on_node,
};
use serde_json::Value;
use tracing::{debug, info, warn};

use super::conditions::{self, AckState};
use super::metrics::{Metrics, SyncCounts};
use super::node_leases::{GRACE, LeaseChange, Leases};
use super::plan_counts::{count_changes, counts, highest_revision};
use super::service_state::{ServiceCounts, ServiceState, ServiceStates};
use super::slice_writes::{SliceWrites, StoredSlice, WriteFailure, WriteResult};
use super::work::{events_of, find, stored_slice, updates};
use cluster::events;
use cluster::{Change, Event, Kind, WatchCache, outage};

/// The manager that an API server notes for Kubernetes' own controller.
const KUBERNETES_WRITER: &str = "kube-controller-manager";
/// What has to be listed before anything is planned: absence would say nothing before that.
const WATCHED: [Kind; 5] = [Kind::Service, Kind::Slice, Kind::Pod, Kind::Node, Kind::Namespace];
/// How often in a row writing fails before the Service's owner is told.
const FAILURES_BEFORE_EVENT: u32 = 4;
const FAILED_TO_UPDATE: &str = "FailedToUpdateEndpointSlices";
/// How often the nodes' reports are looked through.
pub const TICK: Duration = Duration::from_secs(1);

/// What an operator can choose.
#[derive(Clone, Debug, Default)]
pub struct ReconcilerSettings {
    /// Gates and defaults.
    pub hints: hints::HintConfig,
    /// How slices are packed, and whether another controller writes some, too.
    pub slices: slices::SliceOptions,
    /// How long things wait.
    pub timing: QueueTiming,
}

/// The controller without its hands.
#[derive(Debug)]
pub struct SliceReconciler {
    cache: WatchCache,
    selectors: SelectorIndex,
    queue: WorkQueue,
    expectations: Expectations,
    memories: ServiceStates,
    planner: Planner,
    facts_changed: bool,
    leases: Leases,
    /// Services whose nodes have not all reached their slices.
    open: BTreeMap<ServiceKey, AckState>,
    /// When Services that were honored have to be looked at again, because a node began anew.
    recheck: Option<MonotonicTime>,
    in_flight: BTreeMap<ServiceKey, InFlight>,
    synced: bool,
    /// Whether plans are made, see [`Head::lead`].
    leading: bool,
    competing_slice: Option<ObjectKey>,
    metrics: Metrics,
}

/// Whom a change concerns.
enum Affected {
    Nothing,
    Now(ServiceKey),
    Batched(BTreeSet<ServiceKey>),
    Namespace(Name),
    Node(Name, NodeChange),
}

/// What becomes true when the writing succeeds.
#[derive(Debug)]
struct InFlight {
    kept: ServiceState,
    changes: SyncCounts,
}

impl SliceReconciler {
    /// A head that has seen nothing.
    pub fn new(settings: ReconcilerSettings, metrics: Metrics) -> Self {
        let cache = WatchCache::default();
        Self {
            planner: Planner::new(cache.snapshot(), settings.hints, settings.slices),
            queue: WorkQueue::new(settings.timing),
            cache,
            metrics,
            selectors: SelectorIndex::default(),
            expectations: Expectations::default(),
            memories: ServiceStates::new(),
            facts_changed: false,
            leases: Leases::default(),
            open: BTreeMap::new(),
            recheck: None,
            in_flight: BTreeMap::new(),
            synced: false,
            leading: false,
            competing_slice: None,
        }
    }

    /// Whether every kind has been listed.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.synced && self.queue.is_idle()
    }

    /// A slice that Kubernetes' own controller wrote since we began, if there is one.
    pub fn competing_slice(&self) -> Option<&ObjectKey> {
        self.competing_slice.as_ref()
    }

    /// When the next Service is due.
    pub fn due(&self) -> Option<MonotonicTime> {
        if self.plans() { self.queue.due() } else { None }
    }

    /// Something happened. The answer is what is to be said about objects that are not right.
    pub fn observe(&mut self, event: Event, now: MonotonicTime) -> Vec<Notice> {
        if let Event::Listing(Kind::Lease) = &event {
            self.leases.restarted();
        }
        let mut notices = Vec::new();
        for change in self.cache.read(event) {
            match &change {
                Change::Put(_, reported) | Change::Unreadable(_, _, reported) => {
                    notices.extend(reported.iter().cloned())
                }
                _ => {}
            }
            self.take(change, now);
        }
        if !self.synced && self.cache.has_listed(&WATCHED) {
            self.synced = true;
            self.plan_all(now);
        }
        notices
    }

    fn take(&mut self, change: Change, now: MonotonicTime) {
        match change {
            Change::Put(Object::Slice(slice), notices) => self.put_slice(slice, notices, now),
            Change::Put(object, notices) => self.put(object, notices, now),
            Change::Gone(kind, key) => self.gone(kind, &key, Change::Gone(kind, key.clone()), now),
            Change::Unreadable(kind, key, notices) => {
                self.gone(kind, &key, Change::Unreadable(kind, key.clone(), notices), now);
            }
            Change::Other(Kind::Lease, lease) => match serde_json::from_str(lease.text()) {
                Ok(lease) => {
                    let change = self.leases.applied(&lease);
                    self.lease_changed(change, now);
                }
                Err(error) => debug!(lease = lease.name(), %error, "cannot parse a Lease"),
            },
            other => self.cache.apply(other),
        }
    }

    /// An object came or changed.
    fn put(&mut self, object: Object, notices: Vec<Notice>, now: MonotonicTime) {
        let snapshot = self.cache.snapshot();
        let affected = match &object {
            Object::Service(service) => {
                self.selectors.set(service);
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
        self.cache.apply(Change::Put(object, notices));
        self.enqueue_affected(affected, now);
    }

    fn put_slice(&mut self, slice: Box<Slice>, notices: Vec<Notice>, now: MonotonicTime) {
        let before = self.cache.snapshot().slice(&slice.key);
        let known =
            before.is_some_and(|b| b.resource_version == slice.resource_version && b.uid == slice.uid);
        let old_service = before.and_then(Slice::service);
        let service = slice.service();
        let uid = before.and_then(|before| before.uid.clone());
        if let Some(old) = old_service.as_ref().filter(|old| service.as_ref() != Some(old)) {
            // It belongs to another Service now: the old one need not wait for it.
            self.expectations.saw_gone(old, uid.as_ref());
        }
        if !self.cache.is_listing(Kind::Slice) {
            self.expectations.reached(SliceVersion::of(&slice));
        }
        let foreign = match &service {
            Some(service) => self.expectations.saw(service, &slice) && !known,
            None => true,
        };
        if self.synced && foreign && self.is_written_by_kubernetes(&slice) {
            self.competing_slice = Some(slice.key.clone());
        }
        self.cache.apply(Change::Put(Object::Slice(slice), notices));
        if let Some(old) = old_service.filter(|old| service.as_ref() != Some(old)) {
            self.enqueue(&old, now);
        }
        // Our own write is no reason to look again, unless somebody waits for just that.
        if let Some(service) = service
            && (foreign || self.queue.failures(&service) > 0)
        {
            self.enqueue(&service, now);
        }
    }

    /// Semantics M8: a slice under our managed-by name that another controller wrote.
    fn is_written_by_kubernetes(&self, slice: &Slice) -> bool {
        self.planner.slices.mode == SliceMode::Exclusive
            && slice.managed_by().is_some_and(|name| name == annotation::CONTROLLER_NAME)
            && slice.written_by.as_ref().is_some_and(|name| name == KUBERNETES_WRITER)
    }

    /// An object went, or cannot be read any more.
    fn gone(&mut self, kind: Kind, key: &ObjectKey, change: Change, now: MonotonicTime) {
        let snapshot = self.cache.snapshot();
        let affected = match kind {
            Kind::Service => {
                let key = ServiceKey::new(&key.namespace, &key.name);
                self.selectors.remove(&key);
                Affected::Now(key)
            }
            Kind::Slice => match snapshot.slice(key).and_then(|slice| Some((slice.service()?, slice))) {
                Some((service, slice)) => {
                    let unexpected = self.expectations.saw_gone(&service, slice.uid.as_ref());
                    let waits = self.queue.failures(&service) > 0;
                    if unexpected || waits { Affected::Now(service) } else { Affected::Nothing }
                }
                None => Affected::Nothing,
            },
            Kind::Pod if self.plans() => {
                Affected::Batched(self.selectors.affected_by_pod(snapshot.pod(key), None))
            }
            Kind::Node => Affected::Node(key.name.clone(), node_changed(snapshot.node(&key.name), None)),
            Kind::Namespace => Affected::Namespace(key.name.clone()),
            Kind::Lease => {
                let change = self.leases.removed(&key.name);
                self.lease_changed(change, now);
                Affected::Nothing
            }
            Kind::Pod
            | Kind::ServiceCidr
            | Kind::IpAddress
            | Kind::Secret
            | Kind::HttpRoute
            | Kind::GatewayHttpRoute
            | Kind::TcpRoute
            | Kind::Gateway => Affected::Nothing,
        };
        self.cache.apply(change);
        self.enqueue_affected(affected, now);
    }

    fn enqueue_affected(&mut self, affected: Affected, now: MonotonicTime) {
        match affected {
            Affected::Nothing => {}
            Affected::Now(key) => self.enqueue(&key, now),
            Affected::Batched(keys) => self.enqueue_batched(keys, now),
            Affected::Namespace(name) => self.enqueue_namespace(&name, now),
            Affected::Node(name, change) => self.node_changed(&name, change, now),
        }
    }

    fn enqueue(&mut self, key: &ServiceKey, due: MonotonicTime) {
        if self.plans() {
            self.queue.add(key, due);
        }
    }

    fn enqueue_batched(&mut self, keys: BTreeSet<ServiceKey>, now: MonotonicTime) {
        let due = now.after(self.queue.timing().batch_period);
        keys.iter().for_each(|key| self.enqueue(key, due));
    }

    fn enqueue_namespace(&mut self, namespace: &Name, now: MonotonicTime) {
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
            let asking = self.memories.iter().filter(|(_, kept)| kept.requested);
            let asking = asking.map(|(key, _)| key.clone()).collect();
            self.enqueue_batched(asking, now);
        }
    }

    /// A node reported.
    fn lease_changed(&mut self, change: LeaseChange, now: MonotonicTime) {
        for key in change.services {
            self.enqueue(&key, now);
        }
        if change.from_the_start {
            self.recheck = Some(now.after(GRACE));
        }
    }

    /// Looks through the Services that wait for their nodes.
    pub fn tick(&mut self, now: MonotonicTime) {
        if self.recheck.is_some_and(|at| at <= now) {
            self.recheck = None;
            let asking = self.memories.iter().filter(|(_, kept)| kept.requested);
            for key in asking.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.open.entry(key).or_insert(AckState::Open);
            }
        }
        let turned = self.open.iter().filter(|(key, before)| {
            let kept = self.memories.get(*key);
            let since = kept.map(|kept| kept.revision).unwrap_or_default();
            let sent = kept.and_then(|kept| kept.conditions_sent);
            let acks = self.leases.acks(self.cache.snapshot(), key, since, now);
            let is_recent = sent.is_some_and(|sent| now.0.saturating_sub(sent.0) < NODES_BEHIND_INTERVAL);
            acks != **before && !(is_recent && acks.are_behind() && before.are_behind())
        });
        for key in turned.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.enqueue(&key, now);
        }
        self.metrics.waiting(self.queue.waiting());
    }

    /// The work of the next Service that is due and has some. Services without are done in passing.
    pub fn next(&mut self, now: MonotonicTime, clock: Timestamp) -> Option<SliceWrites> {
        // Bounded, so that changes that come meanwhile are seen.
        for _ in 0..64 {
            if !self.plans() {
                return None;
            }
            let key = self.queue.next(now)?;
            match self.begin(&key, now, clock) {
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
        clock: Timestamp,
    ) -> Result<SliceWrites, SyncOutcome> {
        let stored = self.cache.snapshot().slices(key);
        if self.expectations.is_stale(key, stored, now) {
            self.metrics.synced("stale");
            debug!(service = %key, "the cache does not show our last write yet");
            return Err(SyncOutcome::Failed);
        }
        if std::mem::take(&mut self.facts_changed) {
            self.planner.topology = ClusterTopology::from_nodes(self.cache.snapshot().nodes());
        }
        let snapshot = self.cache.snapshot();
        let Some(service) = snapshot.service(key) else { return self.begin_orphans(key) };
        let unknown = ServiceState::default();
        let kept = self.memories.get(key).unwrap_or(&unknown);
        let memory = |family| kept.memory(family, stored);
        let (plan, outcomes) = self.planner.plan(snapshot, service, stored, &kept.trigger, memory);
        let revision = highest_revision(stored);
        let since = if kept.revision.0 == revision { kept.revision } else { (revision, now) };
        let acks = match plan::select::not_proxied(service) {
            // Nodes do not program it, so none of them can be behind.
            Some(_) => AckState::Settled(NodeAcks::default()),
            None => self.leases.acks(snapshot, key, since, now),
        };
        let age = kept.conditions_sent.map(|sent| now.0.saturating_sub(sent.0));
        let turned =
            conditions::turned(&outcomes, &acks, &service.conditions, kept.sent.as_ref(), age, clock);
        let writes = !plan.is_noop();
        let on_refusal = writes.then(|| conditions::Refusal::of(&outcomes, &service.conditions)).flatten();
        let events = events_of(service, kept, &plan, &outcomes, clock);
        let mut after = kept.after(&plan, &outcomes);
        after.revision = since;
        after.sent = turned.awaited;
        after.conditions_sent = if turned.patch.is_some() { Some(now) } else { kept.conditions_sent };
        after.counts = counts(service, &plan, &outcomes, stored, self.planner.slices.max_endpoints);
        let mechanism = after.counts.mechanism.as_str();
        debug!(service = %key, creates = plan.creates.len(), updates = plan.updates.len(),
            deletes = plan.deletes.len(), unchanged = plan.unchanged.len(), mechanism,
            missing_nodes = plan.missing_nodes.len(), "planned");
        let requested = after.requested;
        let changes = count_changes(&plan, stored);
        let work = SliceWrites {
            service: key.clone(),
            uid: service.uid.clone(),
            updates: updates(stored, plan.updates),
            deletes: plan.deletes.iter().filter_map(|key| find(stored, key)).map(stored_slice).collect(),
            creates: plan.creates,
            orphans: false,
            conditions: turned.patch,
            on_refusal,
            events,
        };
        self.note_acks(key, requested, if turned.deferred { AckState::Deferred } else { acks });
        if work.is_empty() {
            self.keep(key, after);
            self.metrics.synced("success");
            return Err(SyncOutcome::Done);
        }
        self.in_flight.insert(key.clone(), InFlight { kept: after, changes });
        Ok(work)
    }

    /// Slices of ours without a Service are deleted once the API says that there is none.
    fn begin_orphans(&mut self, key: &ServiceKey) -> Result<SliceWrites, SyncOutcome> {
        let stored = self.cache.snapshot().slices(key);
        let orphans = slices::orphans(stored, self.planner.slices.mode);
        let deletes: Vec<StoredSlice> = orphans.map(stored_slice).collect();
        if let Some(kept) = self.memories.remove(key) {
            self.metrics.recount(&kept.counts, &ServiceCounts::default());
        }
        self.open.remove(key);
        if deletes.is_empty() {
            self.expectations.forget(key);
            return Err(SyncOutcome::Done);
        }
        info!(service = %key, slices = deletes.len(), "deleting EndpointSlices without a Service");
        Ok(SliceWrites { service: key.clone(), deletes, orphans: true, ..SliceWrites::default() })
    }

    fn note_acks(&mut self, key: &ServiceKey, requested: bool, acks: AckState) {
        if requested && (acks == AckState::Open || acks.are_behind()) {
            self.open.insert(key.clone(), acks);
        } else {
            self.open.remove(key);
        }
    }

    fn keep(&mut self, key: &ServiceKey, kept: ServiceState) {
        let after = kept.counts.clone();
        let before = self.memories.insert(key.clone(), kept).map(|kept| kept.counts).unwrap_or_default();
        self.metrics.recount(&before, &after);
    }

    /// Work came to its end. The answer is an Event about that, if it is worth one.
    pub fn done(&mut self, done: WriteResult, now: MonotonicTime, clock: Timestamp) -> Option<Value> {
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
            if let Some(InFlight { mut kept, changes }) = in_flight {
                if changes.slices() > 0 {
                    self.metrics.changed(&changes, &kept.counts);
                }
                if let Some(newest) = newest.filter(|_| kept.requested) {
                    // From here on the nodes have their time to follow.
                    kept.revision = (newest, now);
                    self.open.insert(key.clone(), AckState::Open);
                }
                self.keep(key, kept);
            }
            self.metrics.synced("success");
            self.queue.done(key, SyncOutcome::Done, now);
            return None;
        };
        self.metrics.synced("error");
        self.queue.done(key, SyncOutcome::Failed, now);
        if let (WriteFailure::Refused(_), Some(kept)) = (&failure, self.memories.get_mut(key)) {
            // Conditions that were on their way have been overtaken by the refusal.
            kept.sent = None;
        }
        self.report_failure(key, &failure, clock)
    }

    fn report_failure(
        &mut self,
        key: &ServiceKey,
        failure: &WriteFailure,
        clock: Timestamp,
    ) -> Option<Value> {
        let (WriteFailure::Refused(text) | WriteFailure::Unavailable(text)) = failure else {
            debug!(service = %key, why = failure.text(), "slices changed meanwhile; planning again");
            return None;
        };
        if outage::is_api_away() {
            debug!(service = %key, error = %text, "writing EndpointSlices failed; retrying");
        } else {
            warn!(service = %key, error = %text, "writing EndpointSlices failed; retrying");
        }
        if self.queue.failures(key) != FAILURES_BEFORE_EVENT {
            return None;
        }
        let service = self.cache.snapshot().service(key)?;
        let message = format!("Writing the EndpointSlices of this Service fails and is tried again: {text}");
        let notice = Notice::new(ObjectRef::service(key), FAILED_TO_UPDATE, message);
        let uid = service.uid.as_ref().map(ToString::to_string);
        Some(events::event(events::SLICE_CONTROLLER, &notice, uid.as_deref(), clock))
    }
}

#[cfg(test)]
mod tests;
