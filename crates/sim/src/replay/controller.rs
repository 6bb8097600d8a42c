//! The slice controller under one mechanism, with its stored slices and hysteresis, and its writes.
//!
//! Seed 003 requires little churn of EndpointSlices and names two metrics: slices changed per sync, and endpoints
//! reallocated to other zones per sync. Both are here, and their cost in watch traffic.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Endpoint, Family, ObjectKey, Service, ServiceKey, Slice, SliceContent, write};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, Hysteresis, Mechanism};
use plan::planner::{Planner, ServiceInput};
use plan::slices::{self, SlicePlan, TriggerTimes, endpoints_equal};
use plan::subsetting::SliceView;

use super::simulated_cluster::{SimulatedCluster, Tick};
use super::{InitialCluster, Millis};
use insight::what_if::with_mechanism;

/// Writes at one point in time, or their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChurnSample {
    pub at: Millis,
    /// Slices created, updated and deleted.
    pub slices_written: u64,
    /// Of these, writes that change only hints.
    pub hint_only_writes: u64,
    /// Existing ready endpoints with changed hints.
    pub hints_changed: u64,
    /// Of these, endpoints with hints before and after: they serve other zones or nodes.
    pub endpoints_reallocated: u64,
    /// Watch traffic to all nodes, as JSON.
    pub watch_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Churn {
    pub mechanism: Mechanism,
    /// Writes before the first event.
    pub settled: ChurnSample,
    /// Sum of all later writes; its time is that of the last one.
    pub total: ChurnSample,
    /// In order of time.
    pub samples: Vec<ChurnSample>,
    /// Syncs of a Service with writes.
    pub syncs: u64,
    /// Maximum number of slices written by one sync.
    pub largest_sync: u64,
    /// How often a mechanism was enabled or disabled for a Service by its safeguards.
    pub switches: u64,
    /// Maximum number of slices.
    pub max_slices: u64,
}

/// What is state for a Service.
struct ServiceState {
    service: Service,
    slices: Vec<Slice>,
    trigger: TriggerTimes,
    hysteresis: BTreeMap<Family, (Hysteresis, bool)>,
    /// When labels by zone were set or dropped.
    switched: Option<Millis>,
    /// When to plan again, because that is too recent.
    retry_at: Option<Millis>,
}

pub(super) struct SimulatedController<'s> {
    start: &'s InitialCluster,
    planner: Planner,
    services: BTreeMap<ServiceKey, ServiceState>,
    churn: Churn,
    now: ChurnSample,
    slices: u64,
    named: u64,
}

impl<'s> SimulatedController<'s> {
    pub(super) fn new(start: &'s InitialCluster, mechanism: Mechanism) -> Self {
        let state = |service: &Service| {
            let slices = start.slices.get(&service.key).cloned().unwrap_or_default();
            let families = slices::families(service);
            let hysteresis =
                families.into_iter().map(|family| (family, Hysteresis::from_slices(family, &slices)));
            let hysteresis = hysteresis.map(|(family, hysteresis)| (family, (hysteresis, false))).collect();
            let service = with_mechanism(service, mechanism);
            (
                service.key.clone(),
                ServiceState {
                    service,
                    slices,
                    trigger: TriggerTimes::default(),
                    hysteresis,
                    switched: None,
                    retry_at: None,
                },
            )
        };
        let services: BTreeMap<ServiceKey, ServiceState> = start.services.iter().map(state).collect();
        let slices = services.values().map(|state| state.slices.len() as u64).sum();
        let churn = Churn {
            mechanism,
            settled: ChurnSample::default(),
            total: ChurnSample::default(),
            samples: Vec::new(),
            syncs: 0,
            largest_sync: 0,
            switches: 0,
            max_slices: 0,
        };
        let planner = Planner {
            topology: ClusterTopology::from_nodes(&start.nodes),
            config: PlanningConfig {
                slices: slices::SliceOptions { subset: start.subset, ..slices::SliceOptions::WITHOUT_FLAGS },
                ..PlanningConfig::without_flags()
            },
            drains: None,
        };
        Self { start, planner, services, churn, now: ChurnSample::default(), slices, named: 0 }
    }

    /// Syncs all Services before the first event.
    pub(super) fn settle(&mut self, cluster: &SimulatedCluster<'_>) {
        cluster.services().for_each(|key| self.sync(cluster, key, Millis::default()));
        self.churn.settled = std::mem::take(&mut self.now);
        (self.churn.syncs, self.churn.largest_sync, self.churn.switches) = (0, 0, 0);
        self.churn.max_slices = self.slices;
    }

    /// Syncs all Services if nodes changed, else those with changed pods.
    pub(super) fn sync_tick(&mut self, cluster: &SimulatedCluster<'_>, tick: &Tick) {
        if tick.nodes {
            self.planner.topology = ClusterTopology::from_nodes(cluster.nodes());
            cluster.services().for_each(|key| self.sync(cluster, key, tick.at));
        } else {
            tick.services.iter().for_each(|key| self.sync(cluster, key, tick.at));
            let is_due = |state: &ServiceState| state.retry_at.is_some_and(|at| at <= tick.at);
            let due =
                self.services.iter().filter(|(key, state)| is_due(state) && !tick.services.contains(*key));
            for key in due.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.sync(cluster, &key, tick.at);
            }
        }
        let sample = std::mem::take(&mut self.now);
        if sample.slices_written > 0 {
            self.churn.total.add(&sample);
            self.churn.samples.push(sample);
        }
        self.churn.max_slices = self.churn.max_slices.max(self.slices);
    }

    pub(super) fn finish(self) -> Churn {
        self.churn
    }

    fn sync(&mut self, cluster: &SimulatedCluster<'_>, key: &ServiceKey, at: Millis) {
        let Some(state) = self.services.get_mut(key) else { return };
        if cluster.service(key).is_none() {
            return;
        }
        let pods = cluster.pods(key);
        let nodes = cluster.nodes();
        let (service, slices, trigger) = (&state.service, &state.slices, &state.trigger);
        let namespace = self.start.namespaces.get(&key.namespace);
        let input = ServiceInput {
            slices: slices::SliceInput { service, pods: &pods, nodes, slices, trigger },
            namespace_default: namespace.and_then(|n| n.default_traffic_distribution.as_ref()),
            since_switch: state.switched.map(|switched| at.since(switched)),
        };
        let known = |family| {
            state.hysteresis.get(&family).map(|(hysteresis, _)| hysteresis.clone()).unwrap_or_default()
        };
        let (plan, outcomes) = self.planner.plan_service(&input, known);
        for outcome in outcomes {
            let now = outcome.programmed;
            let before = state.hysteresis.insert(outcome.family, (outcome.hysteresis, now));
            self.churn.switches += u64::from(before.is_some_and(|(_, was)| was != now));
        }
        if plan.subset.switched {
            state.switched = Some(at);
        }
        state.retry_at = plan.subset.retry_after.map(|wait| at.later(wait));
        let watchers = cluster.watchers(self.start.subset.is_some());
        self.write(key, plan, at, &watchers);
    }

    /// Counts and applies the writes of a plan.
    fn write(&mut self, key: &ServiceKey, plan: SlicePlan, at: Millis, watchers: &BTreeMap<SliceView, u64>) {
        let Some(state) = self.services.get_mut(key) else { return };
        let written = (plan.creates.len() + plan.updates.len() + plan.deletes.len()) as u64;
        if written > 0 {
            let mut sample = count_flips(&state.slices, &plan);
            sample.at = at;
            sample.slices_written = written;
            sample.hint_only_writes = hint_only(&state.slices, &plan);
            self.now.add(&sample);
            self.churn.syncs += 1;
            self.churn.largest_sync = self.churn.largest_sync.max(written);
        }
        let mut bytes = 0;
        for gone in &plan.deletes {
            if let Some(place) = state.slices.iter().position(|slice| slice.key == *gone) {
                let slice = state.slices.remove(place);
                bytes += watch_bytes(&state.service, &slice.key, [Some(&slice.content), None], watchers);
            }
        }
        for (name, content) in plan.updates {
            let before = state.slices.iter().find(|slice| slice.key == name).map(|slice| &slice.content);
            bytes += watch_bytes(&state.service, &name, [before, Some(&content)], watchers);
            if let Some(slice) = state.slices.iter_mut().find(|slice| slice.key == name) {
                slice.content = content;
            }
        }
        self.slices = (self.slices + plan.creates.len() as u64).saturating_sub(plan.deletes.len() as u64);
        for content in plan.creates {
            self.named += 1;
            let slice = stored(&state.service, self.named, content);
            bytes += watch_bytes(&state.service, &slice.key, [None, Some(&slice.content)], watchers);
            state.slices.push(slice);
        }
        state.trigger = plan.trigger;
        self.now.watch_bytes += bytes;
    }
}

impl ChurnSample {
    fn add(&mut self, other: &Self) {
        self.at = self.at.max(other.at);
        self.slices_written += other.slices_written;
        self.hint_only_writes += other.hint_only_writes;
        self.hints_changed += other.hints_changed;
        self.endpoints_reallocated += other.endpoints_reallocated;
        self.watch_bytes += other.watch_bytes;
    }
}

fn stored(service: &Service, number: u64, content: SliceContent) -> Slice {
    let name = format!("{}-{number:05x}", service.key.name);
    Slice { annotated: true, ..Slice::owned_by(service, &name, content) }
}

/// The bytes of one write to all watchers. Whose view has the slice gets it, whose view had it gets its last state.
fn watch_bytes(
    service: &Service,
    key: &ObjectKey,
    [before, after]: [Option<&SliceContent>; 2],
    watchers: &BTreeMap<SliceView, u64>,
) -> u64 {
    let sizes = [after, before].map(|content| content.map(|content| event_size(service, key, content)));
    let of_view = |(view, count): (&SliceView, &u64)| {
        let seen = |content: Option<&SliceContent>| content.is_some_and(|content| view.sees(content));
        let size = match (seen(after), seen(before)) {
            (true, _) => sizes[0],
            (false, true) => sizes[1],
            (false, false) => None,
        };
        size.unwrap_or(0) * count
    };
    watchers.iter().map(of_view).sum()
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

/// Number of updates that change only hints.
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

/// Counts existing ready endpoints with changed hints.
fn count_flips(stored: &[Slice], plan: &SlicePlan) -> ChurnSample {
    let ready = |e: &&Endpoint| e.conditions.is_ready();
    let before = stored.iter().flat_map(|slice| &slice.content.endpoints).filter(ready);
    let before: BTreeMap<IpAddr, &Endpoint> = before.map(|e| (e.addresses.first(), e)).collect();
    let contents = plan.creates.iter().chain(plan.updates.iter().map(|(_, content)| content));
    let mut sample = ChurnSample::default();
    for endpoint in contents.flat_map(|content| &content.endpoints).filter(ready) {
        let Some(old) = before.get(&endpoint.addresses.first()) else { continue };
        if old.hints != endpoint.hints {
            sample.hints_changed += 1;
            // Seed 003, metric reallocated_endpoints_per_sync.
            sample.endpoints_reallocated += u64::from(old.hints.is_some() && endpoint.hints.is_some());
        }
    }
    sample
}
