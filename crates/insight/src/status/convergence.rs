//! How long a change takes from a pod's readiness to the EndpointSlice and to the kernels of the nodes, as counts in
//! fixed buckets: counts of nodes add up, quantiles do not.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets in seconds; the last bucket is open.
pub const BUCKETS: [f64; 14] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];

/// Durations by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts {
    counts: [u64; BUCKETS.len() + 1],
}

impl DurationCounts {
    pub fn add(&mut self, seconds: f64) {
        let at = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.counts[at] = self.counts[at].saturating_add(1);
    }

    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(count);
        }
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// A quantile, interpolated within its bucket; the last bound if it lies beyond. `None` without durations.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let rank = quantile * total as f64;
        let mut below = 0.0;
        for (at, count) in self.counts.iter().enumerate() {
            let here = *count as f64;
            if here > 0.0 && below + here >= rank {
                let low = if at == 0 { 0.0 } else { BUCKETS[at - 1] };
                let high = BUCKETS.get(at).copied().unwrap_or(low);
                let seconds = low + (high - low) * ((rank - below) / here).clamp(0.0, 1.0);
                return Some((seconds * 1e3).round() / 1e3);
            }
            below += here;
        }
        BUCKETS.last().copied()
    }

    fn figures(&self) -> DurationQuantiles {
        DurationQuantiles { changes: self.total(), p50: self.quantile(0.5), p99: self.quantile(0.99) }
    }
}

/// As in an annotation: counts with commas, trailing zeros left out.
impl fmt::Display for DurationCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        for (at, count) in self.counts[..used].iter().enumerate() {
            write!(f, "{}{count}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for DurationCounts {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut counts = Self::default();
        for (at, word) in text.split(',').filter(|word| !word.is_empty()).enumerate() {
            *counts.counts.get_mut(at).ok_or(())? = word.trim().parse().map_err(|_| ())?;
        }
        Ok(counts)
    }
}

/// Quantiles in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DurationQuantiles {
    pub changes: u64,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

/// Time from a pod's readiness (or another change) to its effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceFigures {
    /// To the EndpointSlice in the API; since this controller started.
    pub slices: DurationQuantiles,
    /// To the kernel of a node, of all nodes; since each node proxy started.
    pub kernels: DurationQuantiles,
}

impl ConvergenceFigures {
    pub fn new(slices: &DurationCounts, kernels: &DurationCounts) -> Self {
        Self { slices: slices.figures(), kernels: kernels.figures() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated_and_counts_add_up() {
        let mut counts = DurationCounts::default();
        assert_eq!(counts.quantile(0.5), None);
        (0..98).for_each(|_| counts.add(0.4));
        (0..2).for_each(|_| counts.add(100.0));
        assert_eq!(counts.quantile(0.5), Some(0.402));
        assert_eq!(counts.quantile(0.99), Some(60.0), "beyond the last bound");
        let mut both = counts.clone();
        both.merge(&counts);
        assert_eq!((both.total(), both.quantile(0.5)), (200, Some(0.402)));
        assert_eq!(counts.to_string().parse(), Ok(counts));
        assert_eq!("1,x".parse::<DurationCounts>(), Err(()));
        assert_eq!("1,".repeat(99).parse::<DurationCounts>(), Err(()), "more counts than buckets");
        assert_eq!("".parse(), Ok(DurationCounts::default()));
    }
}
