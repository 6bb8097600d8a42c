//! The compared ways to split traffic.

mod envoy;
mod hazl;
mod measured;

use std::collections::BTreeMap;

use insight::what_if::{DemandBasis, WhatIfEvaluator, WhatIfQuery};
use model::random::Random;
use model::{Name, Node, Slice};
use plan::hints::{ClusterTopology, Mechanism};
use plan::slices::{self, SliceOptions, TriggerTimes};
use plan::spill::{SpillDemand, ZoneCapacity};

use super::{ByZone, DemandTrace, LoopScenario, LoopState, MAX_ZONES, ShareMatrix};
use crate::replay::{ClusterSize, PodTimings, generated_cluster};
use envoy::LoadAwareLocality;
use hazl::LoadBand;
use measured::MeasuredSpill;

/// Names of zones, in the order of their numbers.
const ZONE_NAMES: [&str; MAX_ZONES] = ["zone-a", "zone-b", "zone-c", "zone-d"];
/// Nodes of a zone.
const NODES: usize = 4;

/// Parts of measured Spill that can be left out, to see what they give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredOptions {
    /// Keep what is proved, not only an equal load.
    pub keeps_proved: bool,
}

impl Default for MeasuredOptions {
    /// As it is built.
    fn default() -> Self {
        Self { keeps_proved: true }
    }
}

/// A way to split traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoopStrategy {
    Balanced,
    PreferSameZone,
    Auto,
    SpillByCpu,
    SpillMeasured(MeasuredOptions),
    /// A band of in-flight requests per endpoint, with so many in flight at half of the capacity.
    LoadBand(f64),
    /// Envoy's `load_aware_locality` with its defaults.
    LoadAwareLocality,
    /// The most in zone that no endpoint above its capacity allows, known at each second.
    KnownCapacity,
}

impl LoopStrategy {
    /// Those of the bench.
    pub fn all() -> [Self; 8] {
        [
            Self::Balanced,
            Self::PreferSameZone,
            Self::Auto,
            Self::SpillByCpu,
            Self::SpillMeasured(MeasuredOptions::default()),
            Self::LoadBand(1.2),
            Self::LoadAwareLocality,
            Self::KnownCapacity,
        ]
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::PreferSameZone => "PreferSameZone",
            Self::Auto => "Auto",
            Self::SpillByCpu => "Spill by CPU",
            Self::SpillMeasured(_) => "Spill measured",
            Self::LoadBand(_) => "HAZL-like band",
            Self::LoadAwareLocality => "load_aware_locality",
            Self::KnownCapacity => "capacity known",
        }
    }

    pub(super) fn start(self, trace: &DemandTrace, random: Random) -> RunningStrategy {
        let zones = ZoneNames::new(&trace.scenario);
        let kind = match self {
            Self::Balanced => RunningKind::Balanced,
            Self::PreferSameZone => RunningKind::PreferSameZone,
            Self::Auto => RunningKind::Auto(Box::new(AutoRows::new(&trace.scenario))),
            Self::SpillByCpu => RunningKind::Cpu(zones.by_cpu()),
            Self::SpillMeasured(options) => RunningKind::Measured(Box::new(MeasuredSpill::new(
                zones.clone(),
                &trace.scenario,
                options,
                random,
            ))),
            Self::LoadBand(in_flight) => RunningKind::LoadBand(LoadBand::new(in_flight)),
            Self::LoadAwareLocality => RunningKind::LoadAware(LoadAwareLocality::default()),
            Self::KnownCapacity => RunningKind::KnownCapacity,
        };
        RunningStrategy { kind, zones, rows: ShareMatrix::default(), known: None }
    }
}

/// A strategy at work.
pub(super) struct RunningStrategy {
    kind: RunningKind,
    zones: ZoneNames,
    rows: ShareMatrix,
    /// The endpoints that the rows are for.
    known: Option<ByZone>,
}

enum RunningKind {
    Balanced,
    PreferSameZone,
    Auto(Box<AutoRows>),
    Cpu(SpillDemand),
    Measured(Box<MeasuredSpill>),
    LoadBand(LoadBand),
    LoadAware(LoadAwareLocality),
    KnownCapacity,
}

impl RunningStrategy {
    pub(super) fn rows(&self) -> &ShareMatrix {
        &self.rows
    }

    /// The rows of the next second. Returns whether the API was written.
    pub(super) fn step(&mut self, state: &LoopState) -> bool {
        let is_changed = self.known != Some(state.endpoints);
        self.known = Some(state.endpoints);
        match &mut self.kind {
            RunningKind::Balanced if is_changed => self.rows = by_capacity(state),
            RunningKind::PreferSameZone if is_changed => self.rows = same_zone(state),
            RunningKind::Auto(auto) if is_changed => self.rows = auto.rows(state),
            RunningKind::Cpu(demand) if is_changed => self.rows = self.zones.rows(demand, state),
            RunningKind::Measured(measured) => return measured.step(state, is_changed, &mut self.rows),
            RunningKind::LoadBand(band) => band.step(state, &mut self.rows),
            RunningKind::LoadAware(envoy) => envoy.step(state, &mut self.rows),
            RunningKind::KnownCapacity => {
                let first_region = self.zones.first_region;
                self.rows = filled(state, state.capacity * 0.999, first_region);
            }
            _ => {}
        }
        false
    }
}

/// The zones of a scenario by name and number.
#[derive(Clone, Debug)]
pub(super) struct ZoneNames {
    names: Vec<Name>,
    first_region: usize,
}

impl ZoneNames {
    fn new(scenario: &LoopScenario) -> Self {
        let names = ZONE_NAMES[..scenario.zones()].iter().map(|name| Name::new(name)).collect();
        Self { names, first_region: scenario.first_region }
    }

    /// Every zone has the same CPU.
    fn by_cpu(&self) -> SpillDemand {
        let node = |(number, zone): (usize, &Name)| {
            let region = if number < self.first_region { "east" } else { "west" };
            let (zone, region) = (Some(zone.clone()), Some(Name::new(region)));
            let node = Node {
                zone,
                region,
                ready: true,
                cpu_millis: Some(4_000),
                ..Node::named(ZONE_NAMES[number])
            };
            (node.name.clone(), node)
        };
        let nodes = self.names.iter().enumerate().map(node).collect();
        SpillDemand::from_topology(&ClusterTopology::from_nodes(&nodes)).expect("there are zones")
    }

    fn endpoints(&self, state: &LoopState) -> BTreeMap<Name, usize> {
        let counts = self.names.iter().cloned().zip(state.endpoints.map(|count| count as usize));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    fn capacities(&self, state: &LoopState) -> BTreeMap<Name, ZoneCapacity> {
        self.endpoints(state).into_iter().map(|(zone, count)| (zone, count.into())).collect()
    }

    /// The rows of Spill, by the function that nodes use.
    fn rows(&self, demand: &SpillDemand, state: &LoopState) -> ShareMatrix {
        let endpoints = self.endpoints(state);
        let mut rows = ShareMatrix::default();
        for (from, name) in self.names.iter().enumerate() {
            rows[from] = self.row(plan::spill::row(demand, &endpoints, name));
        }
        rows
    }

    fn row(&self, row: Option<Vec<(Name, f64)>>) -> ByZone {
        let mut shares = ByZone::default();
        for (to, share) in row.into_iter().flatten() {
            if let Ok(to) = self.names.binary_search(&to) {
                shares[to] = share;
            }
        }
        shares
    }
}

fn by_capacity(state: &LoopState) -> ShareMatrix {
    let all: f64 = state.endpoints.iter().sum();
    [state.endpoints.map(|count| count / all); MAX_ZONES]
}

fn same_zone(state: &LoopState) -> ShareMatrix {
    let mut rows = by_capacity(state);
    for zone in (0..state.zones).filter(|zone| state.endpoints[*zone] > 0.0) {
        rows[zone] = ByZone::default();
        rows[zone][zone] = 1.0;
    }
    rows
}

/// Each zone keeps what its endpoints carry at `capacity` each, or at an equal load if that is more; the rest goes to
/// spare capacity, the own region first.
fn filled(state: &LoopState, capacity: f64, first_region: usize) -> ShareMatrix {
    let (all, demand) = (state.endpoints.iter().sum::<f64>(), state.demand.iter().sum::<f64>());
    let each = capacity.max(demand / all * (1.0 + 1e-9));
    let keep = |zone: usize| state.demand[zone].min(state.endpoints[zone] * each);
    let mut spare: ByZone = std::array::from_fn(|zone| state.endpoints[zone] * each - keep(zone));
    let mut excess: ByZone = std::array::from_fn(|zone| state.demand[zone] - keep(zone));
    let mut flows = ShareMatrix::default();
    for is_near in [true, false] {
        let (was_spare, was_excess) = (spare, excess);
        for from in (0..state.zones).filter(|zone| was_excess[*zone] > 0.0) {
            let is_reached = |to: usize| !is_near || (from < first_region) == (to < first_region);
            let others = |values: &ByZone| {
                (0..state.zones).filter(|zone| is_reached(*zone)).map(|zone| values[zone]).sum()
            };
            let (to_fill, to_place): (f64, f64) = (others(&was_spare), others(&was_excess));
            if to_fill <= 0.0 {
                continue;
            }
            let moved = was_excess[from] * (to_fill / to_place).min(1.0);
            for to in (0..state.zones).filter(|zone| is_reached(*zone)) {
                let part = moved * was_spare[to] / to_fill;
                flows[from][to] += part;
                spare[to] -= part;
            }
            excess[from] -= moved;
        }
    }
    for (zone, row) in flows.iter_mut().enumerate().take(state.zones) {
        row[zone] += keep(zone);
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|share| *share /= sum.max(1e-12));
    }
    flows
}

/// Rows of Auto by the functions of the controller, for each set of endpoints once.
struct AutoRows {
    evaluator: WhatIfEvaluator,
    service: model::Service,
    slices: Vec<Slice>,
    start: ByZone,
    known: BTreeMap<[u64; MAX_ZONES], ShareMatrix>,
}

impl AutoRows {
    fn new(scenario: &LoopScenario) -> Self {
        let zones = scenario.zones();
        let size = ClusterSize { zones, nodes: zones * NODES, services: 1, endpoints: zones };
        let cluster = generated_cluster(size, PodTimings::default());
        let service = cluster.services[0].clone();
        let pods: Vec<&model::Pod> = cluster.pods.iter().collect();
        let trigger = TriggerTimes::default();
        let input = slices::SliceInput {
            service: &service,
            pods: &pods,
            nodes: &cluster.nodes,
            slices: &[],
            trigger: &trigger,
        };
        let made = slices::plan(&input, &SliceOptions::WITHOUT_FLAGS, |_, _| {});
        let slice = |content| Slice { annotated: true, ..Slice::owned_by(&service, "slice", content) };
        let slices = made.creates.into_iter().map(slice).collect();
        let evaluator =
            WhatIfEvaluator::new(&cluster.nodes, DemandBasis::Cpu, &plan::PlanningConfig::without_flags());
        let start = std::array::from_fn(|zone| if zone < zones { 1.0 } else { 0.0 });
        Self { evaluator, service, slices, start, known: BTreeMap::new() }
    }

    fn rows(&mut self, state: &LoopState) -> ShareMatrix {
        let key = state.endpoints.map(|count| count as u64);
        if let Some(rows) = self.known.get(&key) {
            return *rows;
        }
        let scale =
            |zone: usize| (Name::new(ZONE_NAMES[zone]), (state.endpoints[zone] - self.start[zone]) as i64);
        let scale: Vec<(Name, i64)> = (0..state.zones).map(scale).collect();
        let query = WhatIfQuery {
            service: &self.service,
            slices: &self.slices,
            namespace_default: None,
            scale: &scale,
            measured: None,
        };
        let result = self.evaluator.evaluate(&query);
        let auto = result.outcomes.iter().find(|outcome| outcome.mechanism == Mechanism::Auto);
        let mut rows = by_capacity(state);
        for (from, row) in auto.map(|auto| auto.figures.rows()).unwrap_or_default() {
            let number = |zone: &Name| ZONE_NAMES.iter().position(|name| *name == zone.as_str());
            let Some(from) = number(&from) else { continue };
            rows[from] = ByZone::default();
            row.iter()
                .filter_map(|(to, share)| Some((number(to)?, share)))
                .for_each(|(to, share)| rows[from][to] = *share);
        }
        self.known.insert(key, rows);
        rows
    }
}
