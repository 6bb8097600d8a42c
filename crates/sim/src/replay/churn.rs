//! The controller of one mechanism, with its stored slices and memory, and what it has written.
//!
//! Seed 003 asks to minimise churn of EndpointSlices and the number of new ones, and names two metrics: slices changed
//! per sync, and endpoints reallocated to other zones per sync. Both are here, beside what they cost on the watch.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Endpoint, Family, Name, ObjectKey, Owner, Service, ServiceKey, Slice, SliceContent, Uid, write};
use plan::hints::{ClusterTopology, HintConfig, Hysteresis, Mechanism};
use plan::planner::{Planner, ServiceInput};
use plan::slices::{self, SlicePlan, TriggerTimes, endpoints_equal};

use super::state::{Passed, State};
use super::{Millis, Start};
use crate::whatif::asking;

/// What was written at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// When.
    pub at: Millis,
    /// Slices made, changed and deleted.
    pub slices_written: u64,
    /// Those of them whose endpoints stayed as they were: hints were all that changed.
    pub hint_only_writes: u64,
    /// Ready endpoints that were there before and have other hints now.
    pub hints_flipped: u64,
    /// Those of them that had hints before and have some now: they serve other zones or nodes.
    pub endpoints_reallocated: u64,
    /// What the API sent to all nodes, as JSON.
    pub watch_bytes: u64,
}

/// What a mechanism cost.
#[derive(Clone, Debug)]
pub struct Churn {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// What was written to get there, before the first event.
    pub settled: Moment,
    /// All that was written after that; its time is that of the last write.
    pub total: Moment,
    /// When something was written, in order.
    pub moments: Vec<Moment>,
    /// Plans of one Service that led to a write.
    pub syncs: u64,
    /// Slices that one such plan wrote at most.
    pub largest_sync: u64,
    /// How often the mechanism of a Service went to rest or to work.
    pub switches: u64,
    /// Slices that were there at most.
    pub most_slices: u64,
}

/// What is kept for a Service.
struct Kept {
    service: Service,
    slices: Vec<Slice>,
    trigger: TriggerTimes,
    hysteresis: BTreeMap<Family, (Hysteresis, bool)>,
}

pub(super) struct Plane<'s> {
    start: &'s Start,
    planner: Planner,
    kept: BTreeMap<ServiceKey, Kept>,
    churn: Churn,
    now: Moment,
    slices: u64,
    named: u64,
}

impl<'s> Plane<'s> {
    pub fn new(start: &'s Start, mechanism: Mechanism) -> Self {
        let kept = |service: &Service| {
            let slices = start.slices.get(&service.key).cloned().unwrap_or_default();
            let families = slices::families(service);
            let hysteresis =
                families.into_iter().map(|family| (family, Hysteresis::from_slices(family, &slices)));
            let hysteresis = hysteresis.map(|(family, hysteresis)| (family, (hysteresis, false))).collect();
            let service = asking(service, mechanism);
            (service.key.clone(), Kept { service, slices, trigger: TriggerTimes::default(), hysteresis })
        };
        let kept: BTreeMap<ServiceKey, Kept> = start.services.iter().map(kept).collect();
        let slices = kept.values().map(|kept| kept.slices.len() as u64).sum();
        let churn = Churn {
            mechanism,
            settled: Moment::default(),
            total: Moment::default(),
            moments: Vec::new(),
            syncs: 0,
            largest_sync: 0,
            switches: 0,
            most_slices: 0,
        };
        let planner = Planner {
            topology: ClusterTopology::from_nodes(&start.nodes),
            hints: HintConfig::default(),
            slices: slices::SliceOptions::default(),
        };
        Self { start, planner, kept, churn, now: Moment::default(), slices, named: 0 }
    }

    /// Writes what the mechanism wants before anything happens.
    pub fn settle(&mut self, state: &State<'_>) {
        state.services().for_each(|key| self.sync(state, key, Millis::default()));
        self.churn.settled = std::mem::take(&mut self.now);
        (self.churn.syncs, self.churn.largest_sync, self.churn.switches) = (0, 0, 0);
        self.churn.most_slices = self.slices;
    }

    /// Plans what a moment concerns: all Services if nodes are different, else those with other pods.
    pub fn live_through(&mut self, state: &State<'_>, passed: &Passed) {
        if passed.nodes {
            self.planner.topology = ClusterTopology::from_nodes(state.nodes());
            state.services().for_each(|key| self.sync(state, key, passed.at));
        } else {
            passed.services.iter().for_each(|key| self.sync(state, key, passed.at));
        }
        let moment = std::mem::take(&mut self.now);
        if moment.slices_written > 0 {
            self.churn.total.add(&moment);
            self.churn.moments.push(moment);
        }
        self.churn.most_slices = self.churn.most_slices.max(self.slices);
    }

    pub fn finish(self) -> Churn {
        self.churn
    }

    fn sync(&mut self, state: &State<'_>, key: &ServiceKey, at: Millis) {
        let Some(kept) = self.kept.get_mut(key) else { return };
        if state.service(key).is_none() {
            return;
        }
        let pods = state.pods(key);
        let nodes = state.nodes();
        let (service, slices, trigger) = (&kept.service, &kept.slices, &kept.trigger);
        let namespace = self.start.namespaces.get(&key.namespace);
        let input = ServiceInput {
            slices: slices::SliceInput { service, pods: &pods, nodes, slices, trigger },
            namespace_default: namespace.and_then(|n| n.default_traffic_distribution.as_ref()),
        };
        let known = |family| {
            kept.hysteresis.get(&family).map(|(hysteresis, _)| hysteresis.clone()).unwrap_or_default()
        };
        let (plan, outcomes) = self.planner.plan_service(&input, known);
        for outcome in outcomes {
            let now = outcome.programmed;
            let before = kept.hysteresis.insert(outcome.family, (outcome.hysteresis, now));
            self.churn.switches += u64::from(before.is_some_and(|(_, was)| was != now));
        }
        self.write(key, plan, at, state.watchers());
    }

    /// Counts what a plan writes, and writes it.
    fn write(&mut self, key: &ServiceKey, plan: SlicePlan, at: Millis, watchers: u64) {
        let Some(kept) = self.kept.get_mut(key) else { return };
        let written = (plan.creates.len() + plan.updates.len() + plan.deletes.len()) as u64;
        if written > 0 {
            let mut moment = count_flips(&kept.slices, &plan);
            moment.at = at;
            moment.slices_written = written;
            moment.hint_only_writes = hint_only(&kept.slices, &plan);
            self.now.add(&moment);
            self.churn.syncs += 1;
            self.churn.largest_sync = self.churn.largest_sync.max(written);
        }
        let mut bytes = 0;
        for gone in &plan.deletes {
            if let Some(place) = kept.slices.iter().position(|slice| slice.key == *gone) {
                let slice = kept.slices.remove(place);
                bytes += event_size(&kept.service, &slice.key, &slice.content);
            }
        }
        for (name, content) in plan.updates {
            bytes += event_size(&kept.service, &name, &content);
            if let Some(slice) = kept.slices.iter_mut().find(|slice| slice.key == name) {
                slice.content = content;
            }
        }
        self.slices = (self.slices + plan.creates.len() as u64).saturating_sub(plan.deletes.len() as u64);
        for content in plan.creates {
            self.named += 1;
            let slice = stored(&kept.service, self.named, content);
            bytes += event_size(&kept.service, &slice.key, &slice.content);
            kept.slices.push(slice);
        }
        kept.trigger = plan.trigger;
        self.now.watch_bytes += bytes * watchers;
    }
}

impl Moment {
    fn add(&mut self, other: &Self) {
        self.at = self.at.max(other.at);
        self.slices_written += other.slices_written;
        self.hint_only_writes += other.hint_only_writes;
        self.hints_flipped += other.hints_flipped;
        self.endpoints_reallocated += other.endpoints_reallocated;
        self.watch_bytes += other.watch_bytes;
    }
}

/// A slice as the API would store it.
fn stored(service: &Service, number: u64, content: SliceContent) -> Slice {
    let name = Name::new(&format!("{}-{number:05x}", service.key.name));
    let uid = service.uid.clone().unwrap_or_else(|| Uid::new(""));
    Slice {
        key: ObjectKey::new(&service.key.namespace, &name),
        uid: None,
        generation: 0,
        resource_version: None,
        deleting: false,
        annotated: true,
        written_by: None,
        owners: [Owner { name: service.key.name.clone(), uid }].into(),
        content,
    }
}

/// The bytes of one watch event, as JSON with what an API server adds to the metadata.
fn event_size(service: &Service, key: &ObjectKey, content: &SliceContent) -> u64 {
    let mut object = write::new_slice(&service.key, service.uid.as_ref(), content);
    object["metadata"]["name"] = key.name.as_str().into();
    object["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    object["metadata"]["resourceVersion"] = "1000000".into();
    object["metadata"]["generation"] = 1.into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    const ENVELOPE: usize = "{\"type\":\"MODIFIED\",\"object\":}\n".len();
    (object.to_string().len() + ENVELOPE) as u64
}

/// Updates that leave ports, labels and every endpoint as they were, but for hints.
fn hint_only(stored: &[Slice], plan: &SlicePlan) -> u64 {
    let same = |a: &Endpoint, b: &Endpoint| a.addresses == b.addresses && endpoints_equal(a, b);
    let is_so = |(key, content): &&(ObjectKey, SliceContent)| {
        stored.iter().find(|slice| slice.key == *key).is_some_and(|slice| {
            let before = &slice.content;
            before.ports == content.ports
                && before.labels == content.labels
                && before.endpoints.len() == content.endpoints.len()
                && before.endpoints.iter().zip(&content.endpoints).all(|(a, b)| same(a, b))
        })
    };
    plan.updates.iter().filter(is_so).count() as u64
}

/// Ready endpoints before and after whose hints differ.
fn count_flips(stored: &[Slice], plan: &SlicePlan) -> Moment {
    let ready = |e: &&Endpoint| e.conditions.is_ready();
    let before = stored.iter().flat_map(|slice| &slice.content.endpoints).filter(ready);
    let before: BTreeMap<IpAddr, &Endpoint> = before.map(|e| (e.addresses.first(), e)).collect();
    let contents = plan.creates.iter().chain(plan.updates.iter().map(|(_, content)| content));
    let mut moment = Moment::default();
    for endpoint in contents.flat_map(|content| &content.endpoints).filter(ready) {
        let Some(old) = before.get(&endpoint.addresses.first()) else { continue };
        if old.hints != endpoint.hints {
            moment.hints_flipped += 1;
            // Seed 003, metric reallocated_endpoints_per_sync.
            moment.endpoints_reallocated += u64::from(old.hints.is_some() && endpoint.hints.is_some());
        }
    }
    moment
}
