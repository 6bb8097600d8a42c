//! Spill on measured demand: every half minute, the connections that nodes have reported become the demand of each Service
//! that spills. What is worth a write is written with the slices; in mode `observe` it is only shown.
//!
//! ```text
//! LedgerDemand, node Leases -> ZoneMeasurement -> plan::spill::measured::decide -> memory
//!                                                      |-> measured: the Service is queued, its plan takes the demand
//!                                                      \-> observe: status
//! ```

use std::collections::BTreeMap;

use insight::ledger::{LedgerDemand, TrafficOwner, ZoneDemandRow};
use insight::status::{SpillDemandStatus, SpillZoneStatus, SuspectedNodeStatus};
use model::{AddressType, Name, Notice, ObjectRef, ServiceKey, Slice, Timestamp};
use plan::capacity::WHOLE;
use plan::hints::{Hysteresis, Mechanism};
use plan::spill::measured::{
    DemandDecision, DemandInput, DemandMemory, INTERVAL, PredictedTraffic, SuspectedNode, WriteBudget,
    ZoneMeasurement, decide,
};
use plan::spill::{MeasuredDemand, SpillDemand, SpillDemandMode, ZoneCapacity};
use plan::work_queue::MonotonicTime;
use tracing::info;

use super::metrics::ControllerMetrics;
use super::slice_reconciler::SliceReconciler;
use insight::status_board::LedgerView;

/// Reason of the Notice about reports that are not used.
const NOT_TRUSTED: &str = "MeasuredDemandNotTrusted";
/// Reason of the Notice about a node that reports far more than the others of its zone.
const NODE_NOT_TRUSTED: &str = "NodeDemandNotTrusted";

/// What is remembered of each Service that spills.
#[derive(Debug)]
pub(crate) struct DemandReconciler {
    metrics: ControllerMetrics,
    by_service: BTreeMap<ServiceKey, ServiceDemand>,
    due: MonotonicTime,
    budget: WriteBudget,
}

#[derive(Debug)]
struct ServiceDemand {
    memory: DemandMemory,
    mode: SpillDemandMode,
    status: SpillDemandStatus,
    wanted_by_zone: BTreeMap<Name, u64>,
    /// What still counts of it now.
    proved: Option<f64>,
}

impl DemandReconciler {
    pub(crate) fn new(metrics: ControllerMetrics) -> Self {
        let (due, budget) = (MonotonicTime::default(), WriteBudget::default());
        Self { metrics, by_service: BTreeMap::new(), due, budget }
    }

    /// The annotations hold what decides.
    pub(crate) fn stand_by(&mut self) {
        *self = Self::new(self.metrics.clone());
    }

    /// The demand that the slices of a Service are to have, if that is measured.
    pub(crate) fn measured(&self, key: &ServiceKey) -> Option<MeasuredDemand> {
        let service = self.by_service.get(key).filter(|service| service.mode == SpillDemandMode::Measured)?;
        Some(MeasuredDemand {
            demand: service.memory.plan()?.clone(),
            proved: service.memory.written_proof(),
        })
    }

    pub(crate) fn status(&self, key: &ServiceKey) -> Option<SpillDemandStatus> {
        self.by_service.get(key).map(|service| service.status.clone())
    }

    /// Endpoints that the demand of each zone needs, if all of it stayed there.
    fn wanted_endpoints(&self) -> Vec<(ServiceKey, Name, u64)> {
        let of_service = |(key, service): (&ServiceKey, &ServiceDemand)| {
            let zones = service.wanted_by_zone.iter();
            zones.map(|(zone, wanted)| (key.clone(), zone.clone(), *wanted)).collect::<Vec<_>>()
        };
        self.by_service.iter().flat_map(of_service).collect()
    }

    /// Connections per second that an endpoint of this Service has carried.
    pub(crate) fn proved(&self, key: &ServiceKey) -> Option<f64> {
        self.by_service.get(key)?.proved
    }

    /// Decides the demand of all Services that spill, once per interval. Returns Notices.
    pub(crate) fn decide(
        &mut self,
        slices: &mut SliceReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
        time: Timestamp,
    ) -> Vec<Notice> {
        if !slices.plans() {
            self.metrics.set_wanted_endpoints(Vec::new());
            return Vec::new();
        }
        if now < self.due {
            return Vec::new();
        }
        self.due = now.after(INTERVAL);
        slices.advance_capacity(time);
        let Some(demand) = traffic.demand() else { return Vec::new() };
        let Some(cpu) = slices.planner().topology.demand().cloned() else { return Vec::new() };
        let round = DemandRound::new(slices, &demand, &cpu, now, time);
        let mut before = std::mem::take(&mut self.by_service);
        let (mut notices, mut due) = (Vec::new(), Vec::new());
        for (key, hysteresis) in spilling(slices) {
            let known = before.remove(&key);
            let Some(decided) = round.decide(&key, &hysteresis, known) else { continue };
            let DecidedDemand { mode, memory, mut decision, status } = decided;
            notices.extend(decision.newly_distrusted.iter().map(|zone| not_trusted(&key, zone)));
            notices.extend(decision.newly_suspected.iter().map(|node| node_not_trusted(&key, node)));
            if let Some(reason) = decision.write.filter(|_| mode == SpillDemandMode::Measured) {
                match self.budget.take(now) {
                    true => {
                        info!(service = %key, ?reason, demand = %decision.plan, "measured demand changed");
                        due.push(key.clone());
                    }
                    false => decision.memory.forget_write(&memory),
                }
            }
            self.by_service.insert(
                key,
                ServiceDemand {
                    wanted_by_zone: decision.figures.wanted_by_zone(),
                    proved: decision.proved.map(|proved| proved.now(time)),
                    memory: decision.memory,
                    mode,
                    status,
                },
            );
        }
        self.metrics.set_wanted_endpoints(self.wanted_endpoints());
        due.iter().for_each(|key| slices.enqueue(key, now));
        notices
    }
}

/// What all decisions of an interval share.
struct DemandRound<'a> {
    slices: &'a SliceReconciler,
    now: MonotonicTime,
    time: Timestamp,
    cpu: &'a SpillDemand,
    /// By zone: ready nodes with a node proxy, and those of them that report.
    nodes_by_zone: BTreeMap<Name, (usize, usize)>,
    rows: BTreeMap<&'a TrafficOwner, &'a [ZoneDemandRow]>,
}

/// The decision on a Service, and what was remembered before.
struct DecidedDemand {
    mode: SpillDemandMode,
    memory: DemandMemory,
    decision: DemandDecision,
    status: SpillDemandStatus,
}

impl<'a> DemandRound<'a> {
    fn new(
        slices: &'a SliceReconciler,
        demand: &'a LedgerDemand,
        cpu: &'a SpillDemand,
        now: MonotonicTime,
        time: Timestamp,
    ) -> Self {
        let rows = demand.services.iter().map(|service| (&service.owner, service.zones.as_slice()));
        Self { slices, now, time, cpu, nodes_by_zone: nodes_by_zone(slices, demand), rows: rows.collect() }
    }

    /// `None` if the CPU of nodes decides.
    fn decide(
        &self,
        key: &ServiceKey,
        hysteresis: &Hysteresis,
        known: Option<ServiceDemand>,
    ) -> Option<DecidedDemand> {
        let snapshot = self.slices.snapshot();
        let default = self.slices.planner().config.spill_demand.unwrap_or_default();
        let mode = SpillDemandMode::of(snapshot.service(key)?, default);
        if mode == SpillDemandMode::Cpu {
            return None;
        }
        let known = known.filter(|known| known.mode == mode).map(|known| known.memory);
        let memory = known.unwrap_or_else(|| {
            let plan = hysteresis.demand().filter(|demand| demand.keep().is_some()).cloned();
            DemandMemory::from_annotations(plan, hysteresis.proved())
        });
        let rows = self.rows.get(&TrafficOwner::from(key)).copied().unwrap_or_default();
        let measured = measurements(&self.nodes_by_zone, rows);
        let (endpoints, is_drained) = ready_by_zone(snapshot.slices(key), true);
        let input = DemandInput {
            now: self.now,
            time: self.time,
            measured: &measured,
            cpu: self.cpu,
            applied: hysteresis.demand().unwrap_or(self.cpu),
            endpoints_by_zone: &endpoints,
            keeps_proved: true,
            compares_splits: !is_drained,
        };
        let decision = decide(&memory, &input);
        let status = status(mode, &decision, &input);
        Some(DecidedDemand { mode, memory, decision, status })
    }
}

/// The Services whose slices say Spill, with what is known of one family.
fn spilling(slices: &SliceReconciler) -> Vec<(ServiceKey, Hysteresis)> {
    let spilling = slices.last_syncs.iter().filter_map(|(key, last)| {
        let memories = last.hint_memories.iter().map(|(_, memory)| memory);
        let memory = memories.into_iter().find(|memory| memory.mechanism() == Mechanism::Spill)?;
        Some((key.clone(), memory.clone()))
    });
    spilling.collect()
}

fn nodes_by_zone(slices: &SliceReconciler, demand: &LedgerDemand) -> BTreeMap<Name, (usize, usize)> {
    let mut nodes: BTreeMap<Name, (usize, usize)> = BTreeMap::new();
    let snapshot = slices.snapshot();
    for node in slices.leases.nodes().filter_map(|name| snapshot.node(name)).filter(|node| node.ready) {
        let Some(zone) = &node.zone else { continue };
        let (all, reporting) = nodes.entry(zone.clone()).or_default();
        *all += 1;
        *reporting += usize::from(demand.reporting.contains(&format!("node/{}", node.name)));
    }
    nodes
}

fn measurements(nodes: &BTreeMap<Name, (usize, usize)>, rows: &[ZoneDemandRow]) -> Vec<ZoneMeasurement> {
    let zone = |(zone, (nodes, reporting)): (&Name, &(usize, usize))| {
        let row = rows.iter().find(|row| *zone == *row.from_zone);
        let rates = row.into_iter().flat_map(|row| &row.rate_by_target);
        ZoneMeasurement {
            zone: zone.clone(),
            nodes: *nodes,
            reporting: *reporting,
            rate_by_target: rates.map(|(to, rate)| (Name::new(to), *rate)).collect(),
            highest_rate: row.map_or(0.0, |row| row.highest_rate),
            busiest: row.map(|row| row.busiest.clone()).unwrap_or_default(),
        }
    };
    nodes.iter().map(zone).collect()
}

/// Ready endpoints by zone, of the first family, and whether one of the zones is drained. With `without_drained`, what is
/// moved away from them does not count.
pub(crate) fn ready_by_zone(slices: &[Slice], without_drained: bool) -> (BTreeMap<Name, ZoneCapacity>, bool) {
    let families = slices.iter().map(|slice| slice.content.address_type);
    let first = families.filter(|kind| matches!(kind, AddressType::Ip(_))).min();
    let has_own = slices.iter().any(Slice::is_coexisting);
    let of_family = slices.iter().filter(|slice| {
        Some(slice.content.address_type) == first && slice.is_coexisting() == has_own && !slice.deleting
    });
    let mut capacity_by_zone: BTreeMap<Name, ZoneCapacity> = BTreeMap::new();
    let mut is_drained = false;
    for slice in of_family {
        for endpoint in slice.content.endpoints.iter().filter(|endpoint| endpoint.conditions.is_ready()) {
            let drained = slice.drained(endpoint.zone.as_ref()).min(WHOLE);
            is_drained |= drained > 0;
            let left = if without_drained { WHOLE - drained } else { WHOLE };
            let capacity = slice.capacity(endpoint.addresses.first());
            let capacity = (u64::from(capacity) * u64::from(left) / u64::from(WHOLE)) as u32;
            if capacity > 0 {
                let zone = endpoint.zone.clone().unwrap_or_default();
                *capacity_by_zone.entry(zone).or_default() += ZoneCapacity::of_endpoint(capacity);
            }
        }
    }
    (capacity_by_zone, is_drained)
}

fn not_trusted(key: &ServiceKey, zone: &str) -> Notice {
    let message = format!(
        "Zone {zone} reports connections to other zones than its nodes were told, so its traffic is spread over all \
         endpoints until the reports agree again. Compare the MEASURED and PLANNED columns of this Service in zoneward status."
    );
    Notice::new(ObjectRef::service(key), NOT_TRUSTED, message)
}

fn node_not_trusted(key: &ServiceKey, suspected: &SuspectedNode) -> Notice {
    let SuspectedNode { zone, node, rate, next_rate } = suspected;
    let message = format!(
        "Node {node} reports {rate:.1} connections per second, and no other node of zone {zone} more than {next_rate:.1}. Its \
         report does not raise what other zones keep: the traffic of {zone} is spread over all endpoints where it matters. If \
         the node runs a gateway, ignore this, or run a second gateway on another node of the zone. Otherwise compare its \
         zoneward_service_connections_total with conntrack on the node, and restart its node proxy."
    );
    Notice::new(ObjectRef::service(key), NODE_NOT_TRUSTED, message)
}

fn status(mode: SpillDemandMode, decision: &DemandDecision, input: &DemandInput<'_>) -> SpillDemandStatus {
    let figures = &decision.figures;
    let zone = |(zone, share): (&Name, &f64)| SpillZoneStatus {
        zone: zone.to_string(),
        connections_per_second: figures.rate_by_zone.get(zone).copied(),
        share: *share,
        cpu_share: input.cpu.fraction(zone),
        is_spread: figures.spread.contains(zone),
        suspected_node: figures.suspected.iter().find(|node| node.zone == *zone).map(suspected_node),
    };
    let now = PredictedTraffic::new(input.applied, &figures.share_by_zone, input.endpoints_by_zone);
    SpillDemandStatus {
        mode: mode.to_string(),
        zones: figures.share_by_zone.iter().map(zone).collect(),
        keep: decision.plan.keep().map(ToString::to_string),
        proved: decision.proved.map(|proved| proved.to_string()),
        in_zone: now.in_zone,
        highest_load: now.highest_load,
        measured_in_zone: figures.predicted.in_zone,
        measured_highest_load: figures.predicted.highest_load,
    }
}

fn suspected_node(suspected: &SuspectedNode) -> SuspectedNodeStatus {
    SuspectedNodeStatus {
        node: suspected.node.to_string(),
        connections_per_second: suspected.rate,
        next_connections_per_second: suspected.next_rate,
    }
}

#[cfg(test)]
pub(crate) mod tests;
