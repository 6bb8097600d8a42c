//! `best` for three zones: five partitions.

use super::{ThreeZones, balanced};
use crate::metrics::{ENDPOINTS_PER_SLICE, RawScores, ScoreWeights};

/// The partitions of three zones except the balanced one.
const PARTITIONS: [&[&[usize]]; 4] =
    [&[&[0], &[1], &[2]], &[&[0, 1], &[2]], &[&[0, 2], &[1]], &[&[0], &[1, 2]]];

pub(super) fn scores(three: &ThreeZones, weights: &ScoreWeights) -> Option<RawScores> {
    let mut best = balanced(three)?;
    if three.ratio.iter().sum::<f64>() == 0.0 {
        return Some(best);
    }
    let mut most = best.score(weights).total;
    for partition in PARTITIONS {
        let (mut in_zone, mut slices) = (0.0, 0);
        for group in partition {
            in_zone += group_in_zone(three, group);
            let size: i32 = group.iter().map(|z| three.endpoints[*z]).sum();
            slices += u64::from((size as u32).div_ceil(ENDPOINTS_PER_SLICE as u32));
        }
        let found = RawScores { in_zone, max: 0.0, mean: 0.0, slices, total: three.total as u64 };
        let total = found.score(weights).total;
        if total > most {
            (best, most) = (found, total);
        }
    }
    Some(best)
}

/// The zones with the most endpoints first, up to the group's capacity.
#[inline(always)]
fn group_in_zone(three: &ThreeZones, group: &[usize]) -> f64 {
    let total = f64::from(three.total);
    match *group {
        [zone] => three.ratio[zone].min(f64::from(three.endpoints[zone]) / total),
        [a, b] => {
            let (a, b) = if three.endpoints[a] >= three.endpoints[b] { (a, b) } else { (b, a) };
            let (first, second) = (f64::from(three.endpoints[a]), f64::from(three.endpoints[b]));
            let size = first + second;
            if size == 0.0 {
                return 0.0;
            }
            let kept = three.ratio[a].min(size / total);
            let rest = three.ratio[b].min(size / total - kept);
            (kept * first + rest * second) / size
        }
        _ => 0.0,
    }
}
