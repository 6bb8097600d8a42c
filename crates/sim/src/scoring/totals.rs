//! Sums, extremes and histograms of scores.

use crate::metrics::ScoreMetrics;

/// Sums and extremes of the scores of one algorithm. The order of additions determines the last bits.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTotals {
    pub valid: u64,
    /// Inputs with a zone that reaches no endpoint.
    pub invalid: u64,
    total: f64,
    in_zone: f64,
    overload: f64,
    slice: f64,
    max_overload: f64,
    mean_overload: f64,
    /// Lowest and highest total score.
    pub extremes: (f64, f64),
    /// Highest overload of any endpoint in any input, in percent.
    pub worst_overload: f64,
}

impl Default for ScoreTotals {
    fn default() -> Self {
        Self {
            valid: 0,
            invalid: 0,
            total: 0.0,
            in_zone: 0.0,
            overload: 0.0,
            slice: 0.0,
            max_overload: 0.0,
            mean_overload: 0.0,
            extremes: (f64::INFINITY, f64::NEG_INFINITY),
            worst_overload: 0.0,
        }
    }
}

/// Mean scores of one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanScores {
    pub total: f64,
    /// The percentage of in-zone traffic.
    pub in_zone: f64,
    pub overload: f64,
    pub slice: f64,
    /// In percent.
    pub max_overload: f64,
    /// In percent.
    pub mean_overload: f64,
}

impl ScoreTotals {
    pub(super) fn count(&mut self, metrics: Option<&ScoreMetrics>) {
        let Some(m) = metrics else {
            self.invalid += 1;
            return;
        };
        self.valid += 1;
        self.total += m.total;
        self.in_zone += m.in_zone;
        self.overload += m.overload_score;
        self.slice += m.slice_score;
        self.max_overload += m.max_overload;
        self.mean_overload += m.mean_overload;
        self.extremes = (self.extremes.0.min(m.total), self.extremes.1.max(m.total));
        self.worst_overload = self.worst_overload.max(m.max_overload);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.valid += other.valid;
        self.invalid += other.invalid;
        self.total += other.total;
        self.in_zone += other.in_zone;
        self.overload += other.overload;
        self.slice += other.slice;
        self.max_overload += other.max_overload;
        self.mean_overload += other.mean_overload;
        self.extremes = (self.extremes.0.min(other.extremes.0), self.extremes.1.max(other.extremes.1));
        self.worst_overload = self.worst_overload.max(other.worst_overload);
    }

    /// Means over valid inputs; `None` without any.
    pub fn means(&self) -> Option<MeanScores> {
        let count = self.valid as f64;
        (self.valid > 0).then(|| MeanScores {
            total: self.total / count,
            in_zone: self.in_zone / count,
            overload: self.overload / count,
            slice: self.slice / count,
            max_overload: self.max_overload / count,
            mean_overload: self.mean_overload / count,
        })
    }
}

/// Bars of the histogram of total scores, one per point; the first includes scores below 0.
pub const BARS: usize = 101;
/// Columns of in-zone traffic, 2 % each.
pub const COLUMNS: usize = 51;
/// Rows of the largest overload, 5 % each; the last includes higher ones.
pub const ROWS: usize = 21;

#[derive(Clone, Debug)]
pub struct ScoreHistogram {
    pub totals: Vec<u64>,
    /// Inputs by in-zone traffic and largest overload: `density[row * COLUMNS + column]`.
    pub density: Vec<u64>,
}

impl Default for ScoreHistogram {
    fn default() -> Self {
        Self { totals: vec![0; BARS], density: vec![0; COLUMNS * ROWS] }
    }
}

impl ScoreHistogram {
    #[inline]
    pub(super) fn count(&mut self, metrics: Option<&ScoreMetrics>) {
        let Some(m) = metrics else { return };
        // A float becomes the nearest number that there is, so no index is out of range.
        let bar = (m.total as usize).min(BARS - 1);
        let column = ((m.in_zone / 2.0) as usize).min(COLUMNS - 1);
        let row = ((m.max_overload / 5.0) as usize).min(ROWS - 1);
        self.totals[bar] += 1;
        self.density[row * COLUMNS + column] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.totals.iter_mut().zip(&other.totals).for_each(|(sum, n)| *sum += n);
        self.density.iter_mut().zip(&other.density).for_each(|(sum, n)| *sum += n);
    }
}
