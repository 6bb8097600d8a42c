//! Demand by zone and second, and the endpoints: made of a daily shape, a skew and events. All from one seed.

use model::random::Random;

use super::{ByZone, DAY, MAX_ZONES};

/// Total utilisation at the 99.5th percentile of demand.
const UTILISATION: f64 = 0.65;

/// What happens on the two days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// Day and night.
    Diurnal,
    /// Four times the traffic of one zone for minutes, six times a day.
    Bursts,
    /// The ratio of the first and the last zone changes ninefold in a day.
    Drift,
    /// All endpoints of a zone are gone for half an hour; its clients are not.
    ZoneLoss,
    /// Endpoints are replaced a quarter at a time, and some come up in another zone.
    RollOut,
}

impl TraceKind {
    pub const ALL: [Self; 5] = [Self::Diurnal, Self::Bursts, Self::Drift, Self::ZoneLoss, Self::RollOut];

    pub fn name(self) -> &'static str {
        match self {
            Self::Diurnal => "diurnal",
            Self::Bursts => "bursts",
            Self::Drift => "drift",
            Self::ZoneLoss => "zone loss",
            Self::RollOut => "roll-out",
        }
    }
}

/// A cluster, and what goes wrong in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopScenario {
    pub name: &'static str,
    /// Shares of demand by zone; nodes have equal CPU.
    pub demand: &'static [f64],
    pub endpoints: &'static [usize],
    /// The first zones, up to this number, are one region and the others another; 0 for one region.
    pub first_region: usize,
    /// Mean lifetime of connections; 0 for requests that end at once.
    pub connection_seconds: f64,
    /// Share of reports that are lost.
    pub lost_reports: f64,
    /// Whether the zone with most demand reports nothing from 10 to 14 o'clock.
    pub has_silent_zone: bool,
    /// Whether the controller changes every six hours.
    pub changes_leader: bool,
    /// One node of the last zone reports this many times its connections.
    pub liar: f64,
}

const PLAIN: LoopScenario = LoopScenario {
    name: "even",
    demand: &[1.0, 1.0, 1.0],
    endpoints: &[8, 8, 8],
    first_region: 0,
    connection_seconds: 0.0,
    lost_reports: 0.0,
    has_silent_zone: false,
    changes_leader: false,
    liar: 1.0,
};

const SKEWED: LoopScenario = LoopScenario { name: "demand 60/30/10", demand: &[0.6, 0.3, 0.1], ..PLAIN };

/// The scenarios of the bench.
pub const SCENARIOS: [LoopScenario; 8] = [
    PLAIN,
    SKEWED,
    LoopScenario { name: "endpoints 12/9/3", endpoints: &[12, 9, 3], ..PLAIN },
    LoopScenario { name: "six endpoints", demand: &[0.5, 0.3, 0.2], endpoints: &[2, 2, 2], ..PLAIN },
    LoopScenario {
        name: "two regions",
        demand: &[0.4, 0.3, 0.2, 0.1],
        endpoints: &[7, 5, 6, 6],
        first_region: 2,
        ..PLAIN
    },
    LoopScenario { name: "10 min connections", connection_seconds: 600.0, ..SKEWED },
    LoopScenario {
        name: "lost reports",
        lost_reports: 0.3,
        has_silent_zone: true,
        changes_leader: true,
        ..SKEWED
    },
    LoopScenario { name: "a lying node", liar: 20.0, ..SKEWED },
];

impl LoopScenario {
    pub fn zones(&self) -> usize {
        self.demand.len()
    }
}

/// Demand of every second, and changes of endpoints.
#[derive(Clone, Debug)]
pub struct DemandTrace {
    pub scenario: LoopScenario,
    /// Connections per second that an endpoint can carry.
    pub capacity: f64,
    demand: Vec<[f32; MAX_ZONES]>,
    /// Sorted by second.
    endpoints: Vec<(usize, ByZone)>,
}

impl DemandTrace {
    pub fn new(kind: TraceKind, scenario: LoopScenario, seed: u64) -> Self {
        let mut random = Random::seeded(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0x1405);
        let per_endpoint = 10.0_f64.powf(0.7 + 1.6 * random.fraction());
        let has_matches = seed % 2 == 1;
        let second_peak = 0.9 + 0.2 * random.fraction();
        let shape = |second: usize| {
            let hour = second as f64 / 3600.0;
            let day = if hour < 24.0 { 1.0 } else { second_peak };
            day * if has_matches { match_day(hour) } else { calm_day(hour) }
        };
        let totals: Vec<f64> = (0..2 * DAY).map(shape).collect();
        let count: usize = scenario.endpoints.iter().sum();
        let scale = per_endpoint * count as f64;
        let totals: Vec<f64> = totals.into_iter().map(|total| total * scale).collect();
        Self::of_totals(kind, scenario, &totals, &mut random)
    }

    /// From connections per second of two days, such as those of a recorded trace.
    pub fn of_totals(kind: TraceKind, scenario: LoopScenario, totals: &[f64], random: &mut Random) -> Self {
        let zones = scenario.zones();
        let mut sorted = totals.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let p995 = sorted[(sorted.len() - 1) * 995 / 1000];
        let count: usize = scenario.endpoints.iter().sum();
        let bursts = if kind == TraceKind::Bursts { bursts(zones, random) } else { Vec::new() };
        let shares: f64 = scenario.demand.iter().sum();
        let mut noise = ByZone::default();
        let mut demand = Vec::with_capacity(totals.len());
        for (second, total) in totals.iter().enumerate() {
            let mut weights = ByZone::default();
            for zone in 0..zones {
                // Slow noise: 3 % over a minute.
                noise[zone] += -noise[zone] / 60.0 + 0.03 * (2.0_f64 / 60.0).sqrt() * gaussian(random);
                weights[zone] = scenario.demand[zone] / shares * noise[zone].exp();
            }
            if kind == TraceKind::Drift {
                let half = second as f64 / DAY as f64;
                let phase = if half < 1.0 { 1.0 - 2.0 * half } else { 2.0 * half - 3.0 };
                weights[0] *= 3.0_f64.powf(phase);
                weights[zones - 1] *= 3.0_f64.powf(-phase);
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            for (zone, start, length) in &bursts {
                let (since, left) = (second as f64 - start, start + length - second as f64);
                if since > 0.0 && left > 0.0 {
                    weights[*zone] *= 1.0 + 3.0 * (since / 20.0).min(1.0).min(left / 60.0);
                }
            }
            demand.push(std::array::from_fn(|zone| (total * weights[zone]) as f32));
        }
        let endpoints = match kind {
            TraceKind::ZoneLoss => zone_loss(&scenario, random),
            TraceKind::RollOut => roll_outs(&scenario, random),
            TraceKind::Diurnal | TraceKind::Bursts | TraceKind::Drift => vec![(0, initial(&scenario))],
        };
        Self { scenario, capacity: p995 / (UTILISATION * count as f64), demand, endpoints }
    }

    pub fn seconds(&self) -> usize {
        self.demand.len()
    }

    pub fn demand_at(&self, second: usize) -> ByZone {
        self.demand[second].map(f64::from)
    }

    pub fn endpoints_at(&self, second: usize) -> ByZone {
        let after = self.endpoints.partition_point(|(at, _)| *at <= second);
        self.endpoints[after.max(1) - 1].1
    }
}

/// Trough at 5 o'clock, a third of the peak in the evening.
fn calm_day(hour: f64) -> f64 {
    let turn = |period: f64, peak: f64| ((hour - peak) / period * std::f64::consts::TAU).cos();
    (0.62 + 0.3 * turn(24.0, 19.0) + 0.08 * turn(12.0, 11.0)).max(0.1)
}

/// A tenth of the peak, but for two matches in the evening.
fn match_day(hour: f64) -> f64 {
    let hour = hour % 24.0;
    let game = |at: f64, height: f64| height * (-((hour - at) / 0.9).powi(2)).exp();
    0.06 + 0.08 * calm_day(hour) + game(16.0, 0.6) + game(20.0, 0.9)
}

fn gaussian(random: &mut Random) -> f64 {
    // The sum of twelve uniform numbers has variance 1; four halves of a word each are enough here.
    let uniform = |random: &mut Random| random.fraction() - 0.5;
    (uniform(random) + uniform(random) + uniform(random)) * 2.0
}

/// Zone, first second, length: six on each day.
fn bursts(zones: usize, random: &mut Random) -> Vec<(usize, f64, f64)> {
    let burst = |number: usize| {
        let start = (number / 6 * DAY) as f64 + (number % 6) as f64 * 14_400.0 + random.fraction() * 12_000.0;
        (random.below(zones), start, 120.0 + 480.0 * random.fraction())
    };
    (0..12).map(burst).collect()
}

fn initial(scenario: &LoopScenario) -> ByZone {
    std::array::from_fn(|zone| scenario.endpoints.get(zone).map_or(0.0, |count| *count as f64))
}

fn zone_loss(scenario: &LoopScenario, random: &mut Random) -> Vec<(usize, ByZone)> {
    let start = initial(scenario);
    let mut lost = start;
    lost[random.below(scenario.zones())] = 0.0;
    let at = DAY + 3_600 + random.below(DAY - 7_200);
    vec![(0, start), (at, lost), (at + 1_800, start)]
}

/// One on the first day, two on the second.
fn roll_outs(scenario: &LoopScenario, random: &mut Random) -> Vec<(usize, ByZone)> {
    let mut changes = vec![(0, initial(scenario))];
    let mut now = initial(scenario);
    for start in [30_000, DAY + 10_000, DAY + 60_000] {
        let mut second = start + random.below(10_000);
        let count = now.iter().sum::<f64>() as usize;
        let batch = (count / 4).max(1);
        for _ in 0..count.div_ceil(batch) {
            let mut down = now;
            let mut up = now;
            for _ in 0..batch {
                let with_some: Vec<usize> = (0..scenario.zones()).filter(|zone| down[*zone] > 0.0).collect();
                let Some(zone) = random.pick(&with_some).copied() else { continue };
                let to = if random.below(10) < 2 { random.below(scenario.zones()) } else { zone };
                down[zone] -= 1.0;
                up[zone] -= 1.0;
                up[to] += 1.0;
            }
            if down.iter().sum::<f64>() > 0.0 {
                changes.push((second, down));
            }
            second += 20 + random.below(20);
            changes.push((second, up));
            second += 10;
            now = up;
        }
        // The scheduler spreads them again in time.
        now = initial(scenario);
        changes.push((second + 1_200, now));
    }
    changes
}
