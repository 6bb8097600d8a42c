//! Spill on measured demand: nodes that report, the controller's decisions, and writes that arrive. The decisions are those
//! of `plan`.

use std::collections::BTreeMap;
use std::time::Duration;

use model::random::Random;
use model::{Name, Timestamp};
use plan::spill::measured::BusiestNode;
use plan::spill::measured::{DemandInput, DemandMemory, ZoneMeasurement, decide};
use plan::spill::{ProvedLoad, SpillDemand};
use plan::work_queue::MonotonicTime;

use super::{MeasuredOptions, NODES, ZoneNames};
use crate::closed_loop::{ByZone, DAY, LoopScenario, LoopState, ShareMatrix};

/// Seconds between decisions, from a write to the rules of nodes, and between looks of a node at its own counts.
const DECISION: usize = 10;
const PROPAGATION: usize = 2;
const POLL: usize = 5;
/// Reports: at the latest after, at the earliest after, and what a change is.
const REPORT: usize = 30;
const EARLY_REPORT: usize = 10;
const CHANGE: f64 = 0.2;
const SILENT: usize = 90;
const SIX_HOURS: usize = 6 * 3_600;

/// What a node counts and has reported.
#[derive(Clone, Debug)]
struct SimulatedNode {
    zone: usize,
    /// Of the zone's traffic.
    share: f64,
    /// What it reports of its connections.
    lies: f64,
    phase: usize,
    /// Of the last report that it sent: when, and the flows of its zone.
    reported: Option<(usize, ByZone)>,
    /// Of the last two reports that the controller has: when, and the rates between them.
    received: Option<(usize, ByZone)>,
    base: Option<(usize, ByZone)>,
    rate: f64,
}

pub(super) struct MeasuredSpill {
    zones: ZoneNames,
    options: MeasuredOptions,
    cpu: SpillDemand,
    nodes: Vec<SimulatedNode>,
    random: Random,
    /// Connections by source and target since the start.
    flows: ShareMatrix,
    memory: DemandMemory,
    /// What the slices say: the demand, and the proved load.
    written: (SpillDemand, Option<ProvedLoad>),
    /// Arrives at the nodes at this second.
    pending: Option<(usize, SpillDemand)>,
    applied: SpillDemand,
    scenario: LoopScenario,
}

impl MeasuredSpill {
    pub(super) fn new(
        zones: ZoneNames,
        scenario: &LoopScenario,
        options: MeasuredOptions,
        mut random: Random,
    ) -> Self {
        let cpu = zones.by_cpu();
        let mut nodes = Vec::new();
        for zone in 0..scenario.zones() {
            let shares: Vec<f64> = (0..NODES).map(|_| 0.2 + random.fraction()).collect();
            let sum: f64 = shares.iter().sum();
            for share in shares {
                let is_liar =
                    scenario.liar != 1.0 && zone + 1 == scenario.zones() && nodes.len() % NODES == 0;
                nodes.push(SimulatedNode {
                    zone,
                    share: share / sum,
                    lies: if is_liar { scenario.liar } else { 1.0 },
                    phase: random.below(POLL),
                    reported: None,
                    received: None,
                    base: None,
                    rate: 0.0,
                });
            }
        }
        Self {
            zones,
            options,
            nodes,
            random,
            flows: ShareMatrix::default(),
            memory: DemandMemory::default(),
            written: (cpu.clone(), None),
            pending: None,
            applied: cpu.clone(),
            cpu,
            scenario: *scenario,
        }
    }

    pub(super) fn step(&mut self, state: &LoopState, mut is_changed: bool, rows: &mut ShareMatrix) -> bool {
        if let Some((_, plan)) = self.pending.take_if(|(at, _)| *at <= state.second) {
            self.applied = plan;
            is_changed = true;
        }
        self.report(state.second);
        let mut has_written = false;
        if state.second % DECISION == 7 {
            has_written = self.decide(state);
        }
        if is_changed {
            *rows = self.zones.rows(&self.applied, state);
        }
        for ((sums, row), demand) in self.flows.iter_mut().zip(rows.iter()).zip(state.demand) {
            sums.iter_mut().zip(row).for_each(|(sum, share)| *sum += demand * share);
        }
        has_written
    }

    fn report(&mut self, second: usize) {
        let hour = second / 3_600 % 24;
        let silent = (self.scenario.has_silent_zone && (10..14).contains(&hour)).then_some(0);
        for node in self.nodes.iter_mut().filter(|node| second % POLL == node.phase) {
            let flows = &self.flows[node.zone];
            let Some((at, last)) = node.reported else {
                node.reported = Some((second, *flows));
                node.base = node.reported;
                continue;
            };
            let passed = second - at;
            if passed < EARLY_REPORT {
                continue;
            }
            let sent = (flows.iter().sum::<f64>() - last.iter().sum::<f64>()) / passed as f64;
            if passed < REPORT && (sent - node.rate).abs() < CHANGE * node.rate {
                continue;
            }
            node.rate = sent;
            node.reported = Some((second, *flows));
            if silent == Some(node.zone) || self.random.fraction() < self.scenario.lost_reports {
                continue;
            }
            // Sums are cumulative: what a lost report had is in the next one.
            if let Some((at, base)) = node.base {
                let seconds = (second - at) as f64;
                let mut rates = ByZone::default();
                for (to, rate) in rates.iter_mut().enumerate() {
                    let expected = (flows[to] - base[to]) * node.share;
                    *rate = noisy(expected, &mut self.random) * node.lies / seconds;
                }
                node.received = Some((second, rates));
            }
            node.base = Some((second, *flows));
        }
    }

    fn decide(&mut self, state: &LoopState) -> bool {
        if self.scenario.changes_leader && state.second % SIX_HOURS < DECISION && state.second > DECISION {
            self.memory = DemandMemory::from_annotations(Some(self.written.0.clone()), self.written.1);
            // A new ledger starts with the next report of each node.
            self.nodes.iter_mut().for_each(|node| (node.received, node.base) = (None, None));
        }
        let measured = self.measurements(state.second);
        let endpoints = self.zones.capacities(state);
        let input = DemandInput {
            now: MonotonicTime(Duration::from_secs(state.second as u64)),
            time: Timestamp::from_seconds(1_800_000_000 + state.second as i64),
            measured: &measured,
            cpu: &self.cpu,
            applied: &self.applied,
            endpoints_by_zone: &endpoints,
            keeps_proved: self.options.keeps_proved,
            compares_splits: true,
        };
        let decision = decide(&self.memory, &input);
        self.memory = decision.memory;
        if decision.write.is_none() {
            return false;
        }
        self.written = (decision.plan.clone(), decision.proved);
        self.pending = Some((state.second + PROPAGATION, decision.plan));
        true
    }

    fn measurements(&self, second: usize) -> Vec<ZoneMeasurement> {
        let measurement = |(number, zone): (usize, &Name)| {
            let mut rate_by_target: BTreeMap<Name, f64> = BTreeMap::new();
            let of_zone = self.nodes.iter().enumerate().filter(|(_, node)| node.zone == number);
            let live = of_zone.filter_map(|(name, node)| {
                let (at, rates) = node.received?;
                (second - at < SILENT).then_some((name, rates))
            });
            let (mut reporting, mut busiest) = (0, BusiestNode::default());
            for (name, rates) in live {
                reporting += 1;
                busiest.add(&format!("node-{name}"), rates.iter().sum());
                for (to, name) in self.zones.names.iter().enumerate() {
                    *rate_by_target.entry(name.clone()).or_default() += rates[to];
                }
            }
            rate_by_target.retain(|_, rate| *rate > 0.0);
            ZoneMeasurement {
                zone: zone.clone(),
                nodes: NODES,
                reporting,
                rate_by_target,
                highest_rate: busiest.rate,
                busiest,
            }
        };
        self.zones.names.iter().enumerate().map(measurement).collect()
    }
}

/// A count with the noise of independent connections.
fn noisy(expected: f64, random: &mut Random) -> f64 {
    let uniform = (random.fraction() + random.fraction() + random.fraction() - 1.5) * 2.0;
    (expected + uniform * expected.max(0.0).sqrt()).max(0.0).round()
}

const _: () = assert!(
    DAY.is_multiple_of(DECISION) && SIX_HOURS.is_multiple_of(DECISION),
    "decisions are at the same second of each period"
);
