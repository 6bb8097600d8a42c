//! Fast forms of the algorithms for three zones, without allocations: the large data set has 39 million inputs.
//!
//! Each file implements an algorithm over arrays of three with the same order of float operations as its plain form in
//! [`crate::algorithm`]. Tests compare the scores of both forms.

mod best;
mod heap;
mod local;
mod opt;
mod shared;
mod weighted;

use crate::algorithm::{Algorithm, AlgorithmSettings};
use crate::dataset::ZoneTriple;
use crate::metrics::{ENDPOINTS_PER_SLICE, RawScores, ScoreMetrics};

/// Nodes, endpoints and shares of three zones, in the order of their names.
#[derive(Clone, Copy, Debug)]
pub struct ThreeZones {
    endpoints: [i32; 3],
    nodes: [u32; 3],
    total: i32,
    ratio: [f64; 3],
    expected: [f64; 3],
}

impl ThreeZones {
    /// Counts are at most [`LARGEST_COUNT`].
    pub fn new((nodes, endpoints): ZoneTriple) -> Self {
        let sum = f64::from(nodes[0] + nodes[1] + nodes[2]);
        let ratio = nodes.map(|n| if sum == 0.0 { 0.0 } else { f64::from(n) / sum });
        let endpoints = endpoints.map(|n| n as i32);
        let total = endpoints[0] + endpoints[1] + endpoints[2];
        Self { endpoints, nodes, total, ratio, expected: ratio.map(|r| r * f64::from(total)) }
    }
}

/// The maximum number of nodes or endpoints of a zone in the fast forms.
pub const LARGEST_COUNT: u64 = 1_000_000;

/// The metrics of one input: the outer `None` if the algorithm has no fast form, the inner one if some zone reaches no
/// endpoint.
#[inline]
pub fn measure(
    algorithm: Algorithm,
    three: &ThreeZones,
    settings: &AlgorithmSettings,
) -> Option<Option<ScoreMetrics>> {
    let threshold = settings.overload_threshold;
    let scores = match algorithm {
        Algorithm::Balanced => balanced(three),
        Algorithm::Local(start) => {
            let start = start.unwrap_or(settings.starting_threshold);
            local::scores(three, start, threshold)
        }
        Algorithm::LocalShared => shared::scores(three, threshold),
        Algorithm::LocalWeighted => weighted::scores(three),
        Algorithm::LocalOpt => opt::scores(three),
        Algorithm::Spill => spill(three),
        Algorithm::Best => best::scores(three, &settings.weights),
        Algorithm::SharedGlobal | Algorithm::SharedMultizone | Algorithm::Prefer => return None,
    };
    Some(scores.map(|scores| scores.score(&settings.weights)))
}

/// Sums the scores of groups.
#[derive(Clone, Copy, Debug)]
struct ScoreSum {
    total: f64,
    scores: RawScores,
}

impl ScoreSum {
    fn new(three: &ThreeZones) -> Self {
        let total = three.total as u64;
        Self {
            total: f64::from(three.total),
            scores: RawScores { in_zone: 0.0, max: 0.0, mean: 0.0, slices: 0, total },
        }
    }

    /// Adds a group of `size` endpoints with the share `load` of all traffic.
    #[inline(always)]
    fn add(&mut self, size: i32, load: f64, in_zone: f64) {
        let count = f64::from(size);
        let deviation = load * self.total / count - 1.0;
        self.scores.in_zone += in_zone;
        self.scores.max = self.scores.max.max(deviation);
        self.scores.mean += count * deviation.abs();
        self.scores.slices += u64::from((size as u32).div_ceil(ENDPOINTS_PER_SLICE as u32));
    }

    fn finish(self) -> RawScores {
        RawScores { mean: self.scores.mean / self.total, ..self.scores }
    }
}

fn balanced(three: &ThreeZones) -> Option<RawScores> {
    if three.total == 0 {
        return None;
    }
    let mut sum = ScoreSum::new(three);
    let in_zone = (0..3).map(|z| three.ratio[z] * f64::from(three.endpoints[z])).sum::<f64>() / sum.total;
    sum.add(three.total, three.ratio.iter().sum(), in_zone);
    Some(sum.finish())
}

/// One group per zone, consumed by that zone alone: `size` endpoints, `own` of them in the zone.
fn zone_groups(three: &ThreeZones, size: [i32; 3], own: [i32; 3]) -> Option<RawScores> {
    if size.contains(&0) {
        return None;
    }
    let mut sum = ScoreSum::new(three);
    for z in 0..3 {
        let ratio = three.ratio[z];
        sum.add(size[z], ratio, ratio * f64::from(own[z]) / f64::from(size[z]));
    }
    Some(sum.finish())
}

/// No overload if there are nodes: each zone keeps traffic up to the capacity of its endpoints, the rest spills.
fn spill(three: &ThreeZones) -> Option<RawScores> {
    if three.total == 0 {
        return None;
    }
    let nodes = three.nodes.iter().map(|n| u64::from(*n)).sum::<u64>();
    let slices = |n: i32| u64::from((n as u32).div_ceil(ENDPOINTS_PER_SLICE as u32));
    let total = three.total as u64;
    // Integers over nodes x endpoints, as in the planning function.
    let kept = |z: usize| (u64::from(three.nodes[z]) * total).min(nodes * three.endpoints[z] as u64);
    Some(RawScores {
        in_zone: if nodes == 0 { 0.0 } else { (0..3).map(kept).sum::<u64>() as f64 / (nodes * total) as f64 },
        max: 0.0,
        mean: if nodes == 0 { 1.0 } else { 0.0 },
        slices: three.endpoints.iter().map(|n| slices(*n)).sum(),
        total,
    })
}
