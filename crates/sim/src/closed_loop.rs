//! Spill on measured demand against other ways to split traffic, second by second.
//!
//! ```text
//! DemandTrace (connections per second by zone; endpoints) -> LoopStrategy -> rows -> load of endpoints -> LoopScore
//!                                                              ^                          |
//!                                                              +--- reports, utilisation -+
//! ```
//!
//! Two days are simulated and the second is scored: the first is what a strategy may learn from. Traffic is a fluid; the
//! counts that nodes report have the noise of single connections. All endpoints have the same capacity.

mod strategy;
mod trace;

use model::random::Random;

pub use strategy::{LoopStrategy, MeasuredOptions};
pub use trace::{DemandTrace, LoopScenario, SCENARIOS, TraceKind};

/// Most zones of a scenario.
pub const MAX_ZONES: usize = 4;
/// Seconds of a day.
pub const DAY: usize = 86_400;

/// A value per zone.
pub type ByZone = [f64; MAX_ZONES];
/// Share of the traffic by source zone and target zone.
pub type ShareMatrix = [ByZone; MAX_ZONES];

/// What strategies may see of a second.
#[derive(Clone, Copy, Debug)]
pub struct LoopState {
    pub second: usize,
    pub zones: usize,
    /// Connections per second by source zone.
    pub demand: ByZone,
    /// Ready endpoints by zone, as nodes know them.
    pub endpoints: ByZone,
    /// Connections per second that an endpoint can carry.
    pub capacity: f64,
    /// Load of the zones' endpoints in the second before, in connections per second.
    pub load: ByZone,
}

/// The scored day of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoopScore {
    /// Share of connections that stay in their zone.
    pub in_zone: f64,
    /// Time in which some endpoint is above its capacity.
    pub overload_minutes: f64,
    /// 99 of 100 endpoint seconds have at most this load, in fair shares.
    pub p99_load: f64,
    /// Writes to the API in the busiest hour, and in all.
    pub writes_in_an_hour: f64,
    pub writes: f64,
}

/// Load histogram in hundredths of a fair share.
struct LoadCounts {
    counts: Vec<f64>,
}

impl LoadCounts {
    fn add(&mut self, ratio: f64, endpoints: f64) {
        let at = ((ratio * 100.0) as usize).min(self.counts.len() - 1);
        self.counts[at] += endpoints;
    }

    fn p99(&self) -> f64 {
        let all: f64 = self.counts.iter().sum();
        let mut left = all * 0.01;
        for (at, count) in self.counts.iter().enumerate().rev() {
            left -= count;
            if left < 0.0 {
                return at as f64 / 100.0;
            }
        }
        0.0
    }
}

/// One second of a run, for plots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopSecond {
    pub second: usize,
    /// Connections per second, and those of them that stay in their zone.
    pub demand: f64,
    pub in_zone: f64,
    /// Load of the endpoint with the most, as a share of its capacity.
    pub highest_load: f64,
}

/// Runs one strategy over a trace. `seed` drives the noise of reports.
pub fn run(trace: &DemandTrace, strategy: LoopStrategy, seed: u64) -> LoopScore {
    run_observed(trace, strategy, seed, |_| {})
}

/// Like [`run`], with a look at each second of the scored day.
pub fn run_observed(
    trace: &DemandTrace,
    strategy: LoopStrategy,
    seed: u64,
    mut observe: impl FnMut(LoopSecond),
) -> LoopScore {
    let scenario = &trace.scenario;
    let zones = scenario.zones();
    let mut running = strategy.start(trace, Random::seeded(seed));
    let mut load = ByZone::default();
    let mut load_counts = LoadCounts { counts: vec![0.0; 1_000] };
    let mut score = LoopScore::default();
    let (mut all, mut kept, mut overload_seconds) = (0.0, 0.0, 0_usize);
    let mut writes: Vec<usize> = Vec::new();
    let follow = if scenario.connection_seconds > 0.0 {
        1.0 - (-1.0 / scenario.connection_seconds).exp()
    } else {
        1.0
    };
    let mut before = trace.endpoints_at(0);
    for second in 0..trace.seconds() {
        let endpoints = trace.endpoints_at(second);
        if endpoints != before {
            reconnect(&mut load, &before, &endpoints, zones);
        }
        // Nodes learn of a change within a second.
        let state = LoopState {
            second,
            zones,
            demand: trace.demand_at(second),
            endpoints: before,
            capacity: trace.capacity,
            load,
        };
        if running.step(&state) {
            writes.push(second);
        }
        before = endpoints;
        let rows = running.rows();
        let mut arrives = ByZone::default();
        for (from, row) in rows.iter().enumerate().take(zones) {
            for to in 0..zones {
                arrives[to] += state.demand[from] * row[to];
            }
        }
        for zone in 0..zones {
            // What still goes to endpoints that have just gone fails, and is no load.
            load[zone] =
                if endpoints[zone] > 0.0 { load[zone] + (arrives[zone] - load[zone]) * follow } else { 0.0 };
        }
        if second < DAY {
            continue;
        }
        let fair = load.iter().sum::<f64>() / endpoints.iter().sum::<f64>();
        let (mut is_overloaded, mut highest) = (false, 0.0_f64);
        for zone in (0..zones).filter(|zone| endpoints[*zone] > 0.0) {
            let each = load[zone] / endpoints[zone];
            is_overloaded |= each > trace.capacity * 1.001;
            highest = highest.max(each);
            load_counts.add(each / fair.max(1e-9), endpoints[zone]);
        }
        overload_seconds += usize::from(is_overloaded);
        let demand = state.demand.iter().sum::<f64>();
        let in_zone = (0..zones).map(|zone| state.demand[zone] * rows[zone][zone]).sum::<f64>();
        all += demand;
        kept += in_zone;
        observe(LoopSecond { second, demand, in_zone, highest_load: highest / trace.capacity });
    }
    let scored: Vec<usize> = writes.into_iter().filter(|second| *second >= DAY).collect();
    let in_hour = |first: &usize| scored.iter().filter(|at| **at >= *first && **at < *first + 3_600).count();
    score.writes_in_an_hour = scored.iter().map(in_hour).max().unwrap_or_default() as f64;
    score.writes = scored.len() as f64;
    score.in_zone = kept / all;
    score.overload_minutes = overload_seconds as f64 / 60.0;
    score.p99_load = load_counts.p99();
    score
}

/// Connections of endpoints that have gone are opened again, where the others go.
fn reconnect(load: &mut ByZone, before: &ByZone, after: &ByZone, zones: usize) {
    let mut lost = 0.0;
    for zone in (0..zones).filter(|zone| after[*zone] < before[*zone]) {
        let gone = load[zone] * (1.0 - after[zone] / before[zone]);
        load[zone] -= gone;
        lost += gone;
    }
    let left: f64 = load.iter().sum();
    if left > 0.0 {
        load.iter_mut().for_each(|load| *load += lost * (*load / left));
    }
}
