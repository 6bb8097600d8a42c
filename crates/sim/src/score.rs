//! The metrics of seed 003's "Evaluation Tool" and the score made of them (simulator 3), in IEEE doubles.

use std::str::FromStr;

use crate::groups::Group;
use crate::input::{Shares, Zone};

/// How many endpoints the score reckons to a slice.
pub const ENDPOINTS_PER_SLICE: u64 = 100;

/// What the parts of the score count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreWeights {
    /// Traffic that stays in its zone.
    pub in_zone: f64,
    /// Overload, half for the largest and half for the mean one.
    pub overload: f64,
    /// Few slices.
    pub slices: f64,
}

impl Default for ScoreWeights {
    /// Seed 003: 45, 20 + 20 and 15 %.
    fn default() -> Self {
        Self { in_zone: 0.45, overload: 0.40, slices: 0.15 }
    }
}

impl FromStr for ScoreWeights {
    type Err = String;

    /// Three numbers, as `45,40,15` or `0.45,0.4,0.15`; what counts is their ratio.
    fn from_str(text: &str) -> Result<Self, String> {
        let advice =
            || format!("{text:?}: write three numbers from 0 on, as 45,40,15 (in zone, overload, slices)");
        let parts: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        let parts = parts.map_err(|_| advice())?;
        let [in_zone, overload, slices] = parts[..] else { return Err(advice()) };
        let sum = in_zone + overload + slices;
        let fits = |part: &f64| part.is_finite() && *part >= 0.0;
        if !parts.iter().all(fits) || !sum.is_finite() || sum <= 0.0 {
            return Err(advice());
        }
        // Weights that add up to 1 stay as they are, to the last bit.
        let scale = if (sum - 1.0).abs() < 1e-12 { 1.0 } else { sum };
        Ok(Self { in_zone: in_zone / scale, overload: overload / scale, slices: slices / scale })
    }
}

/// Whether an input could be scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Yes.
    Ok,
    /// Some zone reaches no endpoint; left out of every mean.
    Invalid,
}

/// What one algorithm does to one input. Shares are in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Traffic that stays in its zone.
    pub in_zone: f64,
    /// What the most loaded endpoint gets above its fair share.
    pub max_overload: f64,
    /// The mean distance from the fair share, in either direction.
    pub mean_overload: f64,
    /// The standard deviation of the load as the published tool reckons it, as a fraction; not scored.
    pub deviation: f64,
    /// Slices.
    pub slices: u64,
    /// Slices that would do, by slices.
    pub slice_score: f64,
    /// Overload as a score.
    pub overload_score: f64,
    /// All of it.
    pub total: f64,
}

/// The bare figures, as fractions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub in_zone: f64,
    pub max: f64,
    pub mean: f64,
    pub slices: u64,
    pub total: u64,
}

impl Figures {
    pub(crate) fn score(&self, weights: &ScoreWeights) -> Metrics {
        let in_zone = 100.0 * self.in_zone;
        let overload_score = 0.5 * (100.0 - 100.0 * self.max) + 0.5 * (100.0 - 100.0 * self.mean);
        let needed = self.total.div_ceil(ENDPOINTS_PER_SLICE);
        let slice_score = 100.0 * needed as f64 / self.slices as f64;
        Metrics {
            in_zone,
            max_overload: 100.0 * self.max,
            mean_overload: 100.0 * self.mean,
            deviation: 0.0,
            slices: self.slices,
            slice_score,
            overload_score,
            total: weights.in_zone * in_zone
                + weights.overload * overload_score
                + weights.slices * slice_score,
        }
    }
}

/// The metrics of these groups; `None` where some zone reaches no endpoint.
pub fn measure(zones: &[Zone], groups: &[Group], weights: &ScoreWeights) -> Option<Metrics> {
    let shares = Shares::of(zones);
    let flows = flows(groups, zones.len())?;
    let total = shares.total as f64;
    let mut figures = Figures { in_zone: 0.0, max: 0.0, mean: 0.0, slices: 0, total: shares.total };
    let mut deviations = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate().filter(|(_, g)| g.size() > 0) {
        let size = group.size() as f64;
        let mut load = 0.0;
        for (zone, ratio) in shares.ratio.iter().enumerate() {
            let traffic = ratio * flows[zone][at];
            figures.in_zone += traffic * group.composition[zone] as f64 / size;
            load += traffic;
        }
        let deviation = load / size / (1.0 / total) - 1.0;
        figures.max = figures.max.max(deviation);
        figures.mean += size * deviation.abs() / total;
        figures.slices += group.size().div_ceil(ENDPOINTS_PER_SLICE);
        deviations.push((size, deviation));
    }
    let squares = deviations.iter().map(|(size, d)| size * (d - figures.mean) * (d - figures.mean));
    let variance = squares.sum::<f64>() / total;
    Some(Metrics { deviation: variance.sqrt(), ..figures.score(weights) })
}

/// The share of its traffic that each zone sends to each group: `flows[zone][group]`.
pub fn flows(groups: &[Group], zones: usize) -> Option<Vec<Vec<f64>>> {
    let of = |zone: usize| {
        let reach = |g: &Group| g.size() as f64 * g.weights[zone].unwrap_or(0.0);
        let reach: Vec<f64> = groups.iter().map(reach).collect();
        let sum: f64 = reach.iter().sum();
        let valid = sum > 0.0 && reach.iter().all(|r| *r >= 0.0);
        valid.then(|| reach.iter().map(|r| r / sum).collect())
    };
    (0..zones).map(of).collect()
}
