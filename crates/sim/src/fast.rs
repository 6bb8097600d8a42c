//! The same scores for three zones without allocating, a hundred times as fast: 39 million inputs take seconds.
//!
//! Each file here repeats an algorithm over arrays of three, operation by operation, because the order of float
//! operations is part of the result. Tests hold every one to its plain form in [`crate::algorithm`].

mod best;
mod local;
mod opt;
mod queue;
mod shared;
mod weighted;

use crate::algorithm::{Algorithm, Settings};
use crate::dataset::Triple;
use crate::score::{ENDPOINTS_PER_SLICE, Figures, Metrics};

/// Three zones in the order of their names.
#[derive(Clone, Copy, Debug)]
pub struct Three {
    endpoints: [i32; 3],
    nodes: [u32; 3],
    total: i32,
    ratio: [f64; 3],
    expected: [f64; 3],
}

impl Three {
    /// These zones; no number may be above [`LARGEST_COUNT`].
    pub fn new((nodes, endpoints): Triple) -> Self {
        let sum = f64::from(nodes[0] + nodes[1] + nodes[2]);
        let ratio = nodes.map(|n| if sum == 0.0 { 0.0 } else { f64::from(n) / sum });
        let endpoints = endpoints.map(|n| n as i32);
        let total = endpoints[0] + endpoints[1] + endpoints[2];
        Self { endpoints, nodes, total, ratio, expected: ratio.map(|r| r * f64::from(total)) }
    }
}

/// The most nodes or endpoints per zone that the fast path takes.
pub const LARGEST_COUNT: u64 = 1_000_000;

/// What the algorithms say about one input; the outer `None` where an algorithm has no fast form, the inner one where
/// some zone reaches no endpoint.
#[inline]
pub fn measure(algorithm: Algorithm, three: &Three, settings: &Settings) -> Option<Option<Metrics>> {
    let threshold = settings.overload_threshold;
    let figures = match algorithm {
        Algorithm::Balanced => balanced(three),
        Algorithm::Local(start) => {
            let start = start.unwrap_or(settings.starting_threshold);
            local::figures(three, start, threshold)
        }
        Algorithm::LocalShared => shared::figures(three, threshold),
        Algorithm::LocalWeighted => weighted::figures(three),
        Algorithm::LocalOpt => opt::figures(three),
        Algorithm::Spill => spill(three),
        Algorithm::Best => best::figures(three, &settings.weights),
        Algorithm::SharedGlobal | Algorithm::SharedMultizone | Algorithm::Prefer => return None,
    };
    Some(figures.map(|figures| figures.score(&settings.weights)))
}

/// Adds up groups.
#[derive(Clone, Copy, Debug)]
struct Sum {
    total: f64,
    figures: Figures,
}

impl Sum {
    fn new(three: &Three) -> Self {
        let total = three.total as u64;
        Self {
            total: f64::from(three.total),
            figures: Figures { in_zone: 0.0, max: 0.0, mean: 0.0, slices: 0, total },
        }
    }

    /// A group of `size` endpoints with this share of all traffic.
    #[inline(always)]
    fn add(&mut self, size: i32, load: f64, in_zone: f64) {
        let count = f64::from(size);
        let deviation = load * self.total / count - 1.0;
        self.figures.in_zone += in_zone;
        self.figures.max = self.figures.max.max(deviation);
        self.figures.mean += count * deviation.abs();
        self.figures.slices += u64::from((size as u32).div_ceil(ENDPOINTS_PER_SLICE as u32));
    }

    fn finish(self) -> Figures {
        Figures { mean: self.figures.mean / self.total, ..self.figures }
    }
}

fn balanced(three: &Three) -> Option<Figures> {
    if three.total == 0 {
        return None;
    }
    let mut sum = Sum::new(three);
    let in_zone = (0..3).map(|z| three.ratio[z] * f64::from(three.endpoints[z])).sum::<f64>() / sum.total;
    sum.add(three.total, three.ratio.iter().sum(), in_zone);
    Some(sum.finish())
}

/// A group per zone, used by that zone alone: `size` endpoints, `own` of them its own.
fn zone_groups(three: &Three, size: [i32; 3], own: [i32; 3]) -> Option<Figures> {
    if size.contains(&0) {
        return None;
    }
    let mut sum = Sum::new(three);
    for z in 0..3 {
        let ratio = three.ratio[z];
        sum.add(size[z], ratio, ratio * f64::from(own[z]) / f64::from(size[z]));
    }
    Some(sum.finish())
}

/// No overload where any node sends: each zone keeps what its endpoints can take, and the rest finds room.
fn spill(three: &Three) -> Option<Figures> {
    if three.total == 0 {
        return None;
    }
    let nodes = three.nodes.iter().map(|n| u64::from(*n)).sum::<u64>();
    let slices = |n: i32| u64::from((n as u32).div_ceil(ENDPOINTS_PER_SLICE as u32));
    let total = three.total as u64;
    // Whole numbers over nodes x endpoints, as the planning function reckons them.
    let kept = |z: usize| (u64::from(three.nodes[z]) * total).min(nodes * three.endpoints[z] as u64);
    Some(Figures {
        in_zone: if nodes == 0 { 0.0 } else { (0..3).map(kept).sum::<u64>() as f64 / (nodes * total) as f64 },
        max: 0.0,
        mean: if nodes == 0 { 1.0 } else { 0.0 },
        slices: three.endpoints.iter().map(|n| slices(*n)).sum(),
        total,
    })
}
