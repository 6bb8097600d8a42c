//! Spill on measured demand: the connections that nodes count become the demand of each zone and a keep factor.
//!
//! ```text
//! ZoneMeasurement (connections per second by zone) --\
//! CPU shares, ready endpoints ------------------------> decide -> DemandDecision: demand, keep factor, proved load
//! DemandMemory in -----------------------------------/        \-> DemandMemory out
//! ```
//!
//! Demand is counted at the client, so it does not depend on the weights: nothing here can oscillate. The keep factor is
//! the load that this Service's endpoints have proved to carry, with a margin, over their fair share: a zone keeps its own
//! traffic up to that. No endpoint is planned above its fair share or 80 % of what the endpoints have carried, whichever
//! is more.

mod busiest_node;
mod prediction;
mod proof;
mod suspicion;
mod trust;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use model::{Name, Timestamp};

use super::{ProvedLoad, SpillDemand, SpillKeep, ZoneCapacity};
use crate::work_queue::MonotonicTime;
pub use busiest_node::BusiestNode;
pub use prediction::PredictedTraffic;
use proof::LoadHistory;
pub use suspicion::SuspectedNode;
use suspicion::Suspicion;
use trust::ZoneTrust;

const HOUR: Duration = Duration::from_secs(3600);
/// Interval between decisions.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Averaging times of rates in seconds. A rise counts sooner than a fall: the safe error is to spill.
const RISING: f64 = 15.0;
const FALLING: f64 = 180.0;
/// The CPU shares weigh as much as this many connections of the last two minutes.
const PRIOR_CONNECTIONS: f64 = 200.0;
const PRIOR_SECONDS: f64 = 120.0;
/// No report lowers the share of a zone below this part of its CPU share.
const LEAST_OF_PRIOR: f64 = 1.0 / 8.0;
/// What is planned of the proved load.
const PROVED_MARGIN: f64 = 0.8;
/// Plans stay below the allowed load by this factor, so that not every rise needs a write.
const HEADROOM: f64 = 1.1;
/// A new plan is worth a write if it lowers a load that is too high by this factor, or keeps so much more in zone, which
/// can wait.
const WORTH_LOAD: f64 = 1.05;
const WORTH_IN_ZONE: f64 = 0.02;
const IN_ZONE_INTERVAL: Duration = Duration::from_secs(240);
/// After this many writes in an hour, a further one must lower the load by more: the wait for traffic in zone is safe.
const ROUTINE_WRITES: usize = 4;
const WORTH_MORE_LOAD: f64 = 1.15;
/// Most writes in an hour.
const MAX_WRITES: usize = 6;
/// Time in which all nodes report. Until then a zone that was not heard is not silent.
const STARTUP: Duration = Duration::from_secs(90);
/// A higher proved load alone is written if it is this much higher, and so long after the last write.
const WORTH_PROVED: f64 = 1.1;
const PROVED_INTERVAL: Duration = Duration::from_secs(600);
/// Interval between writes of one Service.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);
/// All zones silent for this long: CPU shares decide.
const ALL_SILENT: Duration = Duration::from_secs(600);

/// What the ledger has on one zone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ZoneMeasurement {
    pub zone: Name,
    /// Nodes that should report, and those that have in the last 90 seconds.
    pub nodes: usize,
    pub reporting: usize,
    /// New connections per second from this zone by zone of the endpoint, of the nodes that report.
    pub rate_by_target: BTreeMap<Name, f64>,
    /// Those of the node or proxy with the most.
    pub highest_rate: f64,
    pub busiest: BusiestNode,
}

impl ZoneMeasurement {
    fn is_silent(&self) -> bool {
        self.reporting * 2 < self.nodes || self.reporting == 0
    }

    /// Of all its nodes: those that are silent count like the others.
    fn rate(&self) -> f64 {
        self.rate_by_target.values().sum::<f64>() * self.scale()
    }

    fn scale(&self) -> f64 {
        self.nodes.max(self.reporting) as f64 / self.reporting.max(1) as f64
    }

    /// What one node may have made up: the part of its rate above the mean of the others. Fewer than three do not tell.
    fn unconfirmed_rate(&self) -> f64 {
        if self.reporting < 3 {
            return 0.0;
        }
        let others = self.rate_by_target.values().sum::<f64>() - self.highest_rate;
        (self.highest_rate - others / (self.reporting - 1) as f64).max(0.0) * self.scale()
    }
}

/// The input of one decision about a Service.
#[derive(Clone, Copy, Debug)]
pub struct DemandInput<'a> {
    pub now: MonotonicTime,
    /// The wall time of `now`.
    pub time: Timestamp,
    /// Sorted by zone.
    pub measured: &'a [ZoneMeasurement],
    /// By the CPU of nodes.
    pub cpu: &'a SpillDemand,
    /// The demand that nodes follow: that of the slices.
    pub applied: &'a SpillDemand,
    pub endpoints_by_zone: &'a BTreeMap<Name, ZoneCapacity>,
    /// Whether zones keep more than an equal load, up to the proved one.
    pub keeps_proved: bool,
    /// Whether nodes split traffic by `applied` alone, so that their reports can be compared with it: not while a zone is
    /// drained.
    pub compares_splits: bool,
}

impl DemandInput<'_> {
    /// Of all zones.
    fn endpoints(&self) -> ZoneCapacity {
        self.endpoints_by_zone.values().copied().sum()
    }
}

/// What is written to the slices of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredDemand {
    /// With a keep factor.
    pub demand: SpillDemand,
    pub proved: Option<ProvedLoad>,
}

/// What is remembered of a Service between decisions. What decides after a change of leader is in annotations:
/// [`DemandMemory::from_annotations`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemandMemory {
    /// The plan in force: written, or what would have been.
    plan: Option<SpillDemand>,
    /// Writes of the last hour.
    written: VecDeque<MonotonicTime>,
    proved_written: Option<ProvedLoad>,
    proved: Option<ProvedLoad>,
    /// Smoothed, in connections per second.
    rate_by_zone: BTreeMap<Name, f64>,
    decided: Option<MonotonicTime>,
    first_decided: Option<MonotonicTime>,
    /// When some zone was not silent.
    heard: Option<MonotonicTime>,
    loads: LoadHistory,
    trust_by_zone: BTreeMap<Name, ZoneTrust>,
    suspicion_by_zone: BTreeMap<Name, Suspicion>,
    /// When splits were compared.
    compared: Option<MonotonicTime>,
}

/// Why a new plan is worth a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// Zones appeared, went, turned silent or reported again.
    Zones,
    /// The highest load falls.
    Load,
    /// More traffic stays in its zone.
    InZone,
    /// More load is proved.
    Proved,
}

/// The result of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandDecision {
    /// The plan in force after this decision: the one before unless a new one is worth a write.
    pub plan: SpillDemand,
    pub proved: Option<ProvedLoad>,
    /// Whether the plan is to be written.
    pub write: Option<WriteReason>,
    pub memory: DemandMemory,
    /// Zones that turned out to report a split that is not theirs.
    pub newly_distrusted: Vec<Name>,
    /// Nodes that have been suspected for a minute: worth a Notice.
    pub newly_suspected: Vec<SuspectedNode>,
    pub figures: DemandFigures,
}

/// What a decision rests on, for `status` and tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemandFigures {
    pub rate_by_zone: BTreeMap<Name, f64>,
    /// The estimated share of each zone, with the CPU shares in it.
    pub share_by_zone: BTreeMap<Name, f64>,
    /// Zones whose traffic follows capacity.
    pub spread: Vec<Name>,
    /// Nodes that report far more than the others of their zone.
    pub suspected: Vec<SuspectedNode>,
    /// Whether CPU shares decide, because no zone reports.
    pub is_by_cpu: bool,
    /// What an endpoint may carry, in connections per second.
    pub allowed_load: f64,
    /// By the plan in force.
    pub predicted: PredictedTraffic,
}

impl DemandFigures {
    /// Endpoints that each zone needs for its own traffic, at the load that an endpoint may carry. Empty while CPU shares
    /// decide or there is no traffic: no figure is better than a wrong one.
    pub fn wanted_by_zone(&self) -> BTreeMap<Name, u64> {
        if self.is_by_cpu || self.allowed_load <= 0.0 {
            return BTreeMap::new();
        }
        let is_suspected = |zone: &Name| self.suspected.iter().any(|node| node.zone == *zone);
        let is_known = |(zone, _): &(&Name, &f64)| !self.spread.contains(zone) && !is_suspected(zone);
        // Less than a thousandth above a whole number is rounding.
        let wanted = |rate: f64| (rate / self.allowed_load - 0.001).ceil().max(0.0) as u64;
        self.rate_by_zone.iter().filter(is_known).map(|(zone, rate)| (zone.clone(), wanted(*rate))).collect()
    }
}

impl DemandMemory {
    /// After a change of leader: the annotations of the slices.
    pub fn from_annotations(plan: Option<SpillDemand>, proved: Option<ProvedLoad>) -> Self {
        Self { plan, proved, proved_written: proved, ..Self::default() }
    }

    /// The plan in force.
    pub fn plan(&self) -> Option<&SpillDemand> {
        self.plan.as_ref()
    }

    /// The proved load of the last write.
    pub fn written_proof(&self) -> Option<ProvedLoad> {
        self.proved_written
    }

    /// A write failed or was put off: the next decision tries again.
    pub fn forget_write(&mut self, before: &Self) {
        self.plan.clone_from(&before.plan);
        self.written.clone_from(&before.written);
        self.proved_written = before.proved_written;
    }
}

/// Decides the demand of one Service.
pub fn decide(before: &DemandMemory, input: &DemandInput<'_>) -> DemandDecision {
    let mut memory = before.clone();
    let silent: Vec<&ZoneMeasurement> = input.measured.iter().filter(|z| z.is_silent()).collect();
    let is_all_silent = silent.len() == input.measured.len();
    if !is_all_silent || memory.heard.is_none() {
        memory.heard = Some(input.now);
    }
    let is_by_cpu = is_all_silent && memory.heard.is_some_and(|heard| heard.after(ALL_SILENT) <= input.now);
    let newly_distrusted = memory.compare_splits(input);
    let newly_suspected = memory.compare_nodes(input);
    memory.follow_rates(input);
    memory.prove(input, silent.is_empty());
    let distrusted = memory.trust_by_zone.iter().filter(|(_, trust)| trust.is_distrusted());
    let distrusted: BTreeSet<Name> = distrusted.map(|(zone, _)| zone.clone()).collect();
    let unknown = silent.iter().map(|z| z.zone.clone()).chain(distrusted).collect();
    let estimate = Estimate::new(&memory, input, unknown, is_by_cpu);
    let new = estimate.plan(input);
    // Zones are heard one by one: a new leader keeps what is written, and a new Service starts by CPU.
    if memory.first_decided.is_none() && memory.plan.is_some() {
        // The writes of the leader before are not known: there are no routine ones in the first hour.
        memory.written = [input.now; ROUTINE_WRITES].into();
    }
    let first = *memory.first_decided.get_or_insert(input.now);
    let is_starting = !silent.is_empty() && input.now < first.after(STARTUP);
    let waits = is_starting || is_all_silent && !is_by_cpu && memory.plan.is_some();
    let write = if waits { None } else { memory.is_worth(&new, &estimate, input) };
    if write.is_some() {
        memory.plan = Some(new);
    }
    if write.is_some() {
        memory.written.retain(|at| at.after(HOUR) > input.now);
        memory.written.push_back(input.now);
        memory.proved_written = memory.proved;
    }
    memory.decided = Some(input.now);
    let plan = memory.plan.clone().unwrap_or_else(|| input.cpu.clone());
    let figures = DemandFigures {
        predicted: PredictedTraffic::new(&plan, &estimate.share_by_zone, input.endpoints_by_zone),
        rate_by_zone: memory.rate_by_zone.clone(),
        share_by_zone: estimate.share_by_zone,
        spread: estimate.spread,
        suspected: memory.suspected(),
        is_by_cpu,
        allowed_load: estimate.allowed_load,
    };
    let proved = memory.proved;
    DemandDecision { plan, proved, write, memory, newly_distrusted, newly_suspected, figures }
}

impl DemandMemory {
    /// Smooths the rates of zones that report; others keep theirs.
    fn follow_rates(&mut self, input: &DemandInput<'_>) {
        let seconds = self.decided.map(|at| input.now.0.saturating_sub(at.0).as_secs_f64());
        for zone in input.measured.iter().filter(|z| !z.is_silent()) {
            let measured = zone.rate();
            match (self.rate_by_zone.get_mut(&zone.zone), seconds) {
                (Some(rate), Some(seconds)) => {
                    let time = if measured > *rate { RISING } else { FALLING };
                    *rate += (1.0 - (-seconds / time).exp()) * (measured - *rate);
                }
                _ => drop(self.rate_by_zone.insert(zone.zone.clone(), measured)),
            }
        }
        let there = |zone: &Name| input.measured.iter().any(|z| z.zone == *zone);
        self.rate_by_zone.retain(|zone, _| there(zone));
    }

    /// Remembers the load that the endpoints carry, if all zones report.
    fn prove(&mut self, input: &DemandInput<'_>, is_complete: bool) {
        let rate: f64 = input.measured.iter().map(ZoneMeasurement::rate).sum();
        // One node alone proves nothing.
        let unconfirmed = input.measured.iter().map(ZoneMeasurement::unconfirmed_rate).fold(0.0, f64::max);
        let is_trusted = self.trust_by_zone.values().all(ZoneTrust::is_clean);
        let rate = (is_complete && is_trusted).then_some((rate - unconfirmed).max(0.0));
        let endpoints = input.endpoints().endpoints();
        let proved = self.loads.add(rate, endpoints, input.now);
        if proved > self.proved.map_or(0.0, |proved| proved.now(input.time)) {
            self.proved = Some(ProvedLoad::new(proved, input.time));
        }
    }

    /// Whether a new plan is worth a write.
    fn is_worth(
        &self,
        new: &SpillDemand,
        estimate: &Estimate,
        input: &DemandInput<'_>,
    ) -> Option<WriteReason> {
        let is_due =
            |interval| self.written.back().is_none_or(|written| written.after(interval) <= input.now);
        if !is_due(WRITE_INTERVAL) {
            return None;
        }
        let in_last_hour = self.written.iter().filter(|at| at.after(HOUR) > input.now).count();
        if in_last_hour >= MAX_WRITES {
            return None;
        }
        let is_routine = in_last_hour < ROUTINE_WRITES;
        let Some(old) = &self.plan else { return Some(WriteReason::Zones) };
        let zones = |plan: &SpillDemand| -> Vec<(Option<Name>, Name)> {
            plan.zones().iter().map(|z| (z.region.clone(), z.zone.clone())).collect()
        };
        let spread = |plan: &SpillDemand| plan.keep().map_or(Vec::new(), |keep| keep.spread().to_vec());
        if zones(old) != zones(new) || spread(old) != spread(new) {
            return Some(WriteReason::Zones);
        }
        let shares = &estimate.share_by_zone;
        let old = PredictedTraffic::new(old, shares, input.endpoints_by_zone);
        let new = PredictedTraffic::new(new, shares, input.endpoints_by_zone);
        // A load that is allowed is not too high. At an equal load there is no headroom, so it must be worth a write.
        let is_above = old.highest_load > estimate.factor;
        let worth = if is_routine { WORTH_LOAD } else { WORTH_MORE_LOAD };
        if is_above && old.highest_load >= new.highest_load * worth {
            return Some(WriteReason::Load);
        }
        let gain = new.in_zone - old.in_zone;
        if gain >= WORTH_IN_ZONE && is_routine && is_due(IN_ZONE_INTERVAL) {
            return Some(WriteReason::InZone);
        }
        let written = self.proved_written.map_or(0.0, |proved| proved.now(input.time));
        let proved = self.proved.map_or(0.0, |proved| proved.now(input.time));
        (is_routine && is_due(PROVED_INTERVAL) && proved > written * WORTH_PROVED)
            .then_some(WriteReason::Proved)
    }
}

/// What the measurements say now.
struct Estimate {
    share_by_zone: BTreeMap<Name, f64>,
    spread: Vec<Name>,
    /// Connections per second that an endpoint may carry, and the same in fair shares.
    allowed_load: f64,
    factor: f64,
}

impl Estimate {
    /// `unknown` are zones whose reports say nothing.
    fn new(memory: &DemandMemory, input: &DemandInput<'_>, unknown: BTreeSet<Name>, is_by_cpu: bool) -> Self {
        let suspected = if is_by_cpu { BTreeMap::new() } else { memory.confirmed_by_suspected_zone(input) };
        let unknown = if is_by_cpu { BTreeSet::new() } else { unknown };
        let spread = unknown.into_iter().chain(suspected.keys().cloned()).collect::<BTreeSet<Name>>();
        let spread: Vec<Name> = spread.into_iter().filter(|zone| input.cpu.fraction(zone) > 0.0).collect();
        let rate_of = |zone: &Name| match is_by_cpu {
            true => 0.0,
            false => {
                let rate = memory.rate_by_zone.get(zone).copied().unwrap_or_default();
                suspected.get(zone).map_or(rate, |confirmed| rate.min(*confirmed))
            }
        };
        let zones = || input.cpu.zones().iter().map(|z| &z.zone);
        let total: f64 = zones().map(rate_of).sum();
        let seen = PRIOR_SECONDS * total;
        let share = |zone: &Name| {
            let prior = input.cpu.fraction(zone);
            let mixed = PRIOR_CONNECTIONS * prior + PRIOR_SECONDS * rate_of(zone);
            (mixed / (PRIOR_CONNECTIONS + seen)).max(prior * LEAST_OF_PRIOR)
        };
        let mut share_by_zone: BTreeMap<Name, f64> =
            zones().map(|zone| (zone.clone(), share(zone))).collect();
        let sum: f64 = share_by_zone.values().sum();
        share_by_zone.values_mut().for_each(|share| *share /= sum.max(f64::MIN_POSITIVE));
        let fair = total / input.endpoints().endpoints().max(0.001);
        let proved = memory.proved.map_or(0.0, |proved| proved.now(input.time));
        let allowed_load =
            if is_by_cpu || !input.keeps_proved { fair } else { fair.max(PROVED_MARGIN * proved) };
        // Around a suspected zone the load is equal, whatever it sends: that is known for no other factor.
        let factor = if fair > 0.0 && suspected.is_empty() { (allowed_load / fair).min(100.0) } else { 1.0 };
        Self { share_by_zone, spread, allowed_load, factor }
    }

    fn plan(&self, input: &DemandInput<'_>) -> SpillDemand {
        let endpoints = input.endpoints();
        let plan = input.cpu.with_weights(&self.share_by_zone).unwrap_or_else(|| input.cpu.clone());
        let keep = SpillKeep::new(self.factor / HEADROOM, endpoints).with_spread(self.spread.clone());
        // Even a factor of 1 is written: it says that the demand is measured.
        plan.with_keep(Some(keep))
    }
}

/// Writes of all Services together: at most ten per second, in bursts of at most ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteBudget {
    left: f64,
    at: MonotonicTime,
}

const WRITES_PER_SECOND: f64 = 10.0;

impl Default for WriteBudget {
    fn default() -> Self {
        Self { left: WRITES_PER_SECOND, at: MonotonicTime(Duration::ZERO) }
    }
}

impl WriteBudget {
    /// Whether one more write is within the budget, which it then takes.
    pub fn take(&mut self, now: MonotonicTime) -> bool {
        let passed = now.0.saturating_sub(self.at.0).as_secs_f64();
        self.left = (self.left + passed * WRITES_PER_SECOND).min(WRITES_PER_SECOND);
        self.at = now;
        let is_within = self.left >= 1.0;
        if is_within {
            self.left -= 1.0;
        }
        is_within
    }
}
