//! The metrics of seed 003's "Evaluation Tool" and the score computed from them (simulator 3), in IEEE doubles.

use std::str::FromStr;

use crate::input::{Shares, Zone};
use crate::slice_group::SliceGroup;

/// Endpoints per slice in the score.
pub const ENDPOINTS_PER_SLICE: u64 = 100;

/// Weights of the components of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreWeights {
    pub in_zone: f64,
    /// Half for the largest and half for the mean overload.
    pub overload: f64,
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

    /// Three numbers, such as `45,40,15` or `0.45,0.4,0.15`; only their ratio matters.
    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || {
            format!(
                "{text:?}: expected three non-negative numbers, such as 45,40,15 (in zone, overload, slices)"
            )
        };
        let parts: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        let parts = parts.map_err(|_| advice())?;
        let [in_zone, overload, slices] = parts[..] else { return Err(advice()) };
        let sum = in_zone + overload + slices;
        let fits = |part: &f64| part.is_finite() && *part >= 0.0;
        if !parts.iter().all(fits) || !sum.is_finite() || sum <= 0.0 {
            return Err(advice());
        }
        // Weights with a sum of 1 are kept to the last bit.
        let scale = if (sum - 1.0).abs() < 1e-12 { 1.0 } else { sum };
        Ok(Self { in_zone: in_zone / scale, overload: overload / scale, slices: slices / scale })
    }
}

/// Metrics of one algorithm for one input. Shares are in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreMetrics {
    pub in_zone: f64,
    /// Load of the busiest endpoint above its fair share.
    pub max_overload: f64,
    /// Mean absolute deviation from the fair share.
    pub mean_overload: f64,
    /// Standard deviation of the load as the published tool computes it, as a fraction; not scored.
    pub deviation: f64,
    pub slices: u64,
    /// Minimum number of slices divided by the number of slices.
    pub slice_score: f64,
    pub overload_score: f64,
    /// The weighted total score.
    pub total: f64,
}

/// Unweighted scores, as fractions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawScores {
    pub in_zone: f64,
    pub max: f64,
    pub mean: f64,
    pub slices: u64,
    pub total: u64,
}

impl RawScores {
    pub(crate) fn score(&self, weights: &ScoreWeights) -> ScoreMetrics {
        let in_zone = 100.0 * self.in_zone;
        let overload_score = 0.5 * (100.0 - 100.0 * self.max) + 0.5 * (100.0 - 100.0 * self.mean);
        let needed = self.total.div_ceil(ENDPOINTS_PER_SLICE);
        let slice_score = 100.0 * needed as f64 / self.slices as f64;
        ScoreMetrics {
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

/// The metrics of these groups; `None` if some zone reaches no endpoint.
pub fn measure(zones: &[Zone], groups: &[SliceGroup], weights: &ScoreWeights) -> Option<ScoreMetrics> {
    let shares = Shares::of(zones);
    let capacity = capacities(groups, zones.len())?;
    let total = shares.total as f64;
    let mut scores = RawScores { in_zone: 0.0, max: 0.0, mean: 0.0, slices: 0, total: shares.total };
    let mut deviations: Vec<(f64, f64)> = Vec::with_capacity(groups.len());
    for group in groups.iter().filter(|g| g.size() > 0) {
        let size = group.size() as f64;
        let mut load = 0.0;
        for (zone, ratio) in shares.ratio.iter().enumerate() {
            let traffic = ratio * (size * group.weights[zone].unwrap_or(0.0) / capacity[zone]);
            scores.in_zone += traffic * group.composition[zone] as f64 / size;
            load += traffic;
        }
        let deviation = load / size / (1.0 / total) - 1.0;
        scores.max = scores.max.max(deviation);
        scores.mean += size * deviation.abs() / total;
        scores.slices += group.size().div_ceil(ENDPOINTS_PER_SLICE);
        deviations.push((size, deviation));
    }
    let squares = deviations.iter().map(|(size, d)| size * (d - scores.mean) * (d - scores.mean));
    let variance = squares.sum::<f64>() / total;
    Some(ScoreMetrics { deviation: variance.sqrt(), ..scores.score(weights) })
}

/// The weighted number of endpoints that each zone reaches; `None` if it is zero or a weight is negative.
fn capacities(groups: &[SliceGroup], zones: usize) -> Option<Vec<f64>> {
    let of = |zone: usize| {
        let weighted = |g: &SliceGroup| g.size() as f64 * g.weights[zone].unwrap_or(0.0);
        let sum: f64 = groups.iter().map(weighted).sum();
        (sum > 0.0 && groups.iter().all(|g| weighted(g) >= 0.0)).then_some(sum)
    };
    (0..zones).map(of).collect()
}
