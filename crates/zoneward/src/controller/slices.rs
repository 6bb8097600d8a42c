//! The controller's head: the world as last seen, the queue over it, and the plan for one Service at a time. It waits
//! for nothing and writes nothing: changes come in, work goes out, and what became of it comes back.

mod lead;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use model::{Name, Notice, Object, ObjectKey, ObjectRef, ServiceKey, Slice, annotation};
use plan::hints::conditions::NODES_BEHIND_INTERVAL;
use plan::hints::{self, ClusterTopology, NodeAcks};
use plan::planner::Planner;
use plan::queue::{
    Expectations, Moment, NodeChange, Outcome, Queue, Selectors, Timing, Version, node_changed,
    services_on_node,
};
use plan::slices::{self, Place};
use serde_json::Value;
use tracing::{debug, info, warn};

use super::commit::{Done, Failure, Stored, Work};
use super::conditions::{self, Acks};
use super::leases::{GRACE, LeaseChange, Leases};
use super::memory::{Counts, Kept, Memories};
use super::metrics::{Metrics, SyncCounts};
use super::tally::{count_changes, counts, highest_revision};
use super::work::{events_of, find, stored_slice, updates};
use crate::cluster::{Change, Event, Kind, Mirror, outage};
use crate::events;

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
pub struct Settings {
    /// Gates and defaults.
    pub hints: hints::HintConfig,
    /// How slices are packed, and whether another controller writes some, too.
    pub slices: slices::Options,
    /// How long things wait.
    pub timing: Timing,
}

/// The controller without its hands.
#[derive(Debug)]
pub struct Head {
    mirror: Mirror,
    selectors: Selectors,
    queue: Queue,
    expectations: Expectations,
    memories: Memories,
    planner: Planner,
    facts_changed: bool,
    leases: Leases,
    /// Services whose nodes have not all reached their slices.
    open: BTreeMap<ServiceKey, Acks>,
    /// When Services that were honored have to be looked at again, because a node began anew.
    recheck: Option<Moment>,
    under_way: BTreeMap<ServiceKey, UnderWay>,
    synced: bool,
    /// Whether plans are made, see [`Head::lead`].
    leading: bool,
    rival: Option<ObjectKey>,
    metrics: Metrics,
}

/// Whom a change concerns.
enum Touched {
    Nothing,
    Now(ServiceKey),
    Batched(BTreeSet<ServiceKey>),
    Namespace(Name),
    Node(Name, NodeChange),
}

/// What becomes true when the writing succeeds.
#[derive(Debug)]
struct UnderWay {
    kept: Kept,
    changes: SyncCounts,
}

impl Head {
    /// A head that has seen nothing.
    pub fn new(settings: Settings, metrics: Metrics) -> Self {
        let mirror = Mirror::default();
        Self {
            planner: Planner::new(mirror.snapshot(), settings.hints, settings.slices),
            queue: Queue::new(settings.timing),
            mirror,
            metrics,
            selectors: Selectors::default(),
            expectations: Expectations::default(),
            memories: Memories::new(),
            facts_changed: false,
            leases: Leases::default(),
            open: BTreeMap::new(),
            recheck: None,
            under_way: BTreeMap::new(),
            synced: false,
            leading: false,
            rival: None,
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
    pub fn rival(&self) -> Option<&ObjectKey> {
        self.rival.as_ref()
    }

    /// When the next Service is due.
    pub fn due(&self) -> Option<Moment> {
        if self.plans() { self.queue.due() } else { None }
    }

    /// Something happened. The answer is what is to be said about objects that are not right.
    pub fn saw(&mut self, event: Event, now: Moment) -> Vec<Notice> {
        if let Event::Listing(Kind::Lease) = &event {
            self.leases.restarted();
        }
        let mut notices = Vec::new();
        for change in self.mirror.read(event) {
            match &change {
                Change::Put(_, said) | Change::Unreadable(_, _, said) => notices.extend(said.iter().cloned()),
                _ => {}
            }
            self.take(change, now);
        }
        if !self.synced && self.mirror.has_listed(&WATCHED) {
            self.synced = true;
            self.plan_all(now);
        }
        notices
    }

    fn take(&mut self, change: Change, now: Moment) {
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
            other => self.mirror.apply(other),
        }
    }

    /// An object came or changed.
    fn put(&mut self, object: Object, notices: Vec<Notice>, now: Moment) {
        let snapshot = self.mirror.snapshot();
        let touched = match &object {
            Object::Service(service) => {
                self.selectors.set(service);
                Touched::Now(service.key.clone())
            }
            Object::Pod(pod) if self.plans() => {
                Touched::Batched(self.selectors.touched_by_pod(snapshot.pod(&pod.key), Some(pod)))
            }
            Object::Node(node) => {
                let change = node_changed(snapshot.node(&node.name), Some(node));
                Touched::Node(node.name.clone(), change)
            }
            Object::Namespace(namespace) => {
                let before = snapshot.namespace(&namespace.name);
                let before = before.and_then(|before| before.default_traffic_distribution.as_ref());
                let same = before == namespace.default_traffic_distribution.as_ref();
                if same { Touched::Nothing } else { Touched::Namespace(namespace.name.clone()) }
            }
            _ => Touched::Nothing,
        };
        self.mirror.apply(Change::Put(object, notices));
        self.touch_all(touched, now);
    }

    fn put_slice(&mut self, slice: Box<Slice>, notices: Vec<Notice>, now: Moment) {
        let before = self.mirror.snapshot().slice(&slice.key);
        let known =
            before.is_some_and(|b| b.resource_version == slice.resource_version && b.uid == slice.uid);
        let old_service = before.and_then(Slice::service);
        let service = slice.service();
        let uid = before.and_then(|before| before.uid.clone());
        if let Some(old) = old_service.as_ref().filter(|old| service.as_ref() != Some(old)) {
            // It belongs to another Service now: the old one need not wait for it.
            self.expectations.saw_gone(old, uid.as_ref());
        }
        if !self.mirror.is_listing(Kind::Slice) {
            self.expectations.reached(Version::of(&slice));
        }
        let foreign = match &service {
            Some(service) => self.expectations.saw(service, &slice) && !known,
            None => true,
        };
        if self.synced && foreign && self.is_of_kubernetes(&slice) {
            self.rival = Some(slice.key.clone());
        }
        self.mirror.apply(Change::Put(Object::Slice(slice), notices));
        if let Some(old) = old_service.filter(|old| service.as_ref() != Some(old)) {
            self.touch(&old, now);
        }
        // Our own write is no reason to look again, unless somebody waits for just that.
        if let Some(service) = service
            && (foreign || self.queue.failures(&service) > 0)
        {
            self.touch(&service, now);
        }
    }

    /// Design, coexistence: a slice under the name that we write under, but not written by us.
    fn is_of_kubernetes(&self, slice: &Slice) -> bool {
        self.planner.slices.place == Place::Alone
            && slice.managed_by().is_some_and(|name| name == annotation::CONTROLLER_NAME)
            && slice.written_by.as_ref().is_some_and(|name| name == KUBERNETES_WRITER)
    }

    /// An object went, or cannot be read any more.
    fn gone(&mut self, kind: Kind, key: &ObjectKey, change: Change, now: Moment) {
        let snapshot = self.mirror.snapshot();
        let touched = match kind {
            Kind::Service => {
                let key = ServiceKey::new(&key.namespace, &key.name);
                self.selectors.remove(&key);
                Touched::Now(key)
            }
            Kind::Slice => match snapshot.slice(key).and_then(|slice| Some((slice.service()?, slice))) {
                Some((service, slice)) => {
                    let unexpected = self.expectations.saw_gone(&service, slice.uid.as_ref());
                    let waits = self.queue.failures(&service) > 0;
                    if unexpected || waits { Touched::Now(service) } else { Touched::Nothing }
                }
                None => Touched::Nothing,
            },
            Kind::Pod if self.plans() => {
                Touched::Batched(self.selectors.touched_by_pod(snapshot.pod(key), None))
            }
            Kind::Node => Touched::Node(key.name.clone(), node_changed(snapshot.node(&key.name), None)),
            Kind::Namespace => Touched::Namespace(key.name.clone()),
            Kind::Lease => {
                let change = self.leases.removed(&key.name);
                self.lease_changed(change, now);
                Touched::Nothing
            }
            Kind::Pod
            | Kind::ServiceCidr
            | Kind::IpAddress
            | Kind::Secret
            | Kind::HttpRoute
            | Kind::GatewayHttpRoute
            | Kind::TcpRoute
            | Kind::Gateway => Touched::Nothing,
        };
        self.mirror.apply(change);
        self.touch_all(touched, now);
    }

    fn touch_all(&mut self, touched: Touched, now: Moment) {
        match touched {
            Touched::Nothing => {}
            Touched::Now(key) => self.touch(&key, now),
            Touched::Batched(keys) => self.touch_batched(keys, now),
            Touched::Namespace(name) => self.touch_namespace(&name, now),
            Touched::Node(name, change) => self.node_changed(&name, change, now),
        }
    }

    fn touch(&mut self, key: &ServiceKey, due: Moment) {
        if self.plans() {
            self.queue.add(key, due);
        }
    }

    fn touch_batched(&mut self, keys: BTreeSet<ServiceKey>, now: Moment) {
        let due = now.after(self.queue.timing().batch);
        keys.iter().for_each(|key| self.touch(key, due));
    }

    fn touch_namespace(&mut self, namespace: &Name, now: Moment) {
        let services = self.selectors.services().filter(|key| key.namespace == *namespace);
        for key in services.cloned().collect::<Vec<_>>() {
            self.touch(&key, now);
        }
    }

    fn node_changed(&mut self, node: &str, change: NodeChange, now: Moment) {
        if !self.plans() {
            return;
        }
        if change.endpoints {
            let touched = services_on_node(self.mirror.snapshot(), &self.selectors, node);
            self.touch_batched(touched, now);
        }
        if change.facts {
            self.facts_changed = true;
            let asking = self.memories.iter().filter(|(_, kept)| kept.requested);
            let asking = asking.map(|(key, _)| key.clone()).collect();
            self.touch_batched(asking, now);
        }
    }

    /// A node reported.
    fn lease_changed(&mut self, change: LeaseChange, now: Moment) {
        for key in change.services {
            self.touch(&key, now);
        }
        if change.from_the_start {
            self.recheck = Some(now.after(GRACE));
        }
    }

    /// Looks through the Services that wait for their nodes.
    pub fn tick(&mut self, now: Moment) {
        if self.recheck.is_some_and(|at| at <= now) {
            self.recheck = None;
            let asking = self.memories.iter().filter(|(_, kept)| kept.requested);
            for key in asking.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.open.entry(key).or_insert(Acks::Open);
            }
        }
        let turned = self.open.iter().filter(|(key, before)| {
            let kept = self.memories.get(*key);
            let since = kept.map(|kept| kept.revision).unwrap_or_default();
            let sent = kept.and_then(|kept| kept.conditions_sent);
            let acks = self.leases.acks(self.mirror.snapshot(), key, since, now);
            let is_recent = sent.is_some_and(|sent| now.0.saturating_sub(sent.0) < NODES_BEHIND_INTERVAL);
            acks != **before && !(is_recent && acks.are_behind() && before.are_behind())
        });
        for key in turned.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.touch(&key, now);
        }
        self.metrics.waiting(self.queue.waiting());
    }

    /// The work of the next Service that is due and has some. Services without are done in passing.
    pub fn next(&mut self, now: Moment, clock: Timestamp) -> Option<Work> {
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

    fn begin(&mut self, key: &ServiceKey, now: Moment, clock: Timestamp) -> Result<Work, Outcome> {
        let stored = self.mirror.snapshot().slices(key);
        if self.expectations.is_stale(key, stored, now) {
            self.metrics.synced("stale");
            debug!(service = %key, "the cache does not show our last write yet");
            return Err(Outcome::Failed);
        }
        if std::mem::take(&mut self.facts_changed) {
            self.planner.topology = ClusterTopology::from_nodes(self.mirror.snapshot().nodes());
        }
        let snapshot = self.mirror.snapshot();
        let Some(service) = snapshot.service(key) else { return self.begin_orphans(key) };
        let unknown = Kept::default();
        let kept = self.memories.get(key).unwrap_or(&unknown);
        let memory = |family| kept.memory(family, stored);
        let (plan, outcomes) = self.planner.plan(snapshot, service, stored, &kept.trigger, memory);
        let revision = highest_revision(stored);
        let since = if kept.revision.0 == revision { kept.revision } else { (revision, now) };
        let acks = match plan::select::not_proxied(service) {
            // Nodes do not program it, so none of them can be behind.
            Some(_) => Acks::Settled(NodeAcks::default()),
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
        let work = Work {
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
        self.note_acks(key, requested, if turned.deferred { Acks::Deferred } else { acks });
        if work.is_empty() {
            self.keep(key, after);
            self.metrics.synced("success");
            return Err(Outcome::Done);
        }
        self.under_way.insert(key.clone(), UnderWay { kept: after, changes });
        Ok(work)
    }

    /// Slices of ours without a Service are deleted once the API says that there is none.
    fn begin_orphans(&mut self, key: &ServiceKey) -> Result<Work, Outcome> {
        let stored = self.mirror.snapshot().slices(key);
        let orphans = slices::orphans(stored, self.planner.slices.place);
        let deletes: Vec<Stored> = orphans.map(stored_slice).collect();
        if let Some(kept) = self.memories.remove(key) {
            self.metrics.recount(&kept.counts, &Counts::default());
        }
        self.open.remove(key);
        if deletes.is_empty() {
            self.expectations.forget(key);
            return Err(Outcome::Done);
        }
        info!(service = %key, slices = deletes.len(), "deleting EndpointSlices without a Service");
        Ok(Work { service: key.clone(), deletes, orphans: true, ..Work::default() })
    }

    fn note_acks(&mut self, key: &ServiceKey, requested: bool, acks: Acks) {
        if requested && (acks == Acks::Open || acks.are_behind()) {
            self.open.insert(key.clone(), acks);
        } else {
            self.open.remove(key);
        }
    }

    fn keep(&mut self, key: &ServiceKey, kept: Kept) {
        let after = kept.counts.clone();
        let before = self.memories.insert(key.clone(), kept).map(|kept| kept.counts).unwrap_or_default();
        self.metrics.recount(&before, &after);
    }

    /// Work came to its end. The answer is an Event about that, if it is worth one.
    pub fn done(&mut self, done: Done, now: Moment, clock: Timestamp) -> Option<Value> {
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
        let under_way = self.under_way.remove(key);
        let Some(failure) = done.failure else {
            if let Some(UnderWay { mut kept, changes }) = under_way {
                if changes.slices() > 0 {
                    self.metrics.changed(&changes, &kept.counts);
                }
                if let Some(newest) = newest.filter(|_| kept.requested) {
                    // From here on the nodes have their time to follow.
                    kept.revision = (newest, now);
                    self.open.insert(key.clone(), Acks::Open);
                }
                self.keep(key, kept);
            }
            self.metrics.synced("success");
            self.queue.done(key, Outcome::Done, now);
            return None;
        };
        self.metrics.synced("error");
        self.queue.done(key, Outcome::Failed, now);
        if let (Failure::Refused(_), Some(kept)) = (&failure, self.memories.get_mut(key)) {
            // Conditions that were on their way have been overtaken by the refusal.
            kept.sent = None;
        }
        self.report_failure(key, &failure, clock)
    }

    fn report_failure(&mut self, key: &ServiceKey, failure: &Failure, clock: Timestamp) -> Option<Value> {
        let (Failure::Refused(text) | Failure::Unavailable(text)) = failure else {
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
        let service = self.mirror.snapshot().service(key)?;
        let message = format!("Writing the EndpointSlices of this Service fails and is tried again: {text}");
        let notice = Notice::new(ObjectRef::service(key), FAILED_TO_UPDATE, message);
        let uid = service.uid.as_ref().map(ToString::to_string);
        Some(events::event(events::SLICES, &notice, uid.as_deref(), clock))
    }
}

#[cfg(test)]
mod tests;
