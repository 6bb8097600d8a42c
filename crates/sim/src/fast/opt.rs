//! `local-opt` for three zones, and the filling that `local-weighted` shares with it.

use super::{ScoreSum, ThreeZones};
use crate::metrics::RawScores;

pub(super) fn scores(three: &ThreeZones) -> Option<RawScores> {
    let mut own = three.endpoints;
    let (mut available, mut needs) = ([0i32; 3], [0i32; 3]);
    for zone in 0..3 {
        let surplus = f64::from(three.endpoints[zone]) - three.expected[zone];
        if surplus > 0.0 {
            own[zone] = three.expected[zone].trunc() as i32;
            available[zone] = surplus.ceil() as i32;
        } else {
            needs[zone] = (-surplus).trunc() as i32;
        }
    }
    let mut size = own;
    for zone in 0..3 {
        size[zone] += fill(needs[zone], &mut available);
    }
    let rest: i32 = available.iter().sum();
    let mut sum = ScoreSum::new(three);
    let mut common = [0.0; 3];
    for zone in 0..3 {
        let reach = f64::from(size[zone]) + f64::from(rest) * (1.0 / 3.0);
        if reach <= 0.0 {
            return None;
        }
        common[zone] = three.ratio[zone] * (f64::from(rest) * (1.0 / 3.0) / reach);
        if size[zone] > 0 {
            let traffic = three.ratio[zone] * (f64::from(size[zone]) / reach);
            sum.add(size[zone], traffic, traffic * f64::from(own[zone]) / f64::from(size[zone]));
        }
    }
    if rest > 0 {
        let in_zone = (0..3).map(|z| common[z] * f64::from(available[z])).sum::<f64>() / f64::from(rest);
        sum.add(rest, common.iter().sum(), in_zone);
    }
    Some(sum.finish())
}

/// Takes up to `need` available endpoints, in the order of zones, and returns their number.
#[inline(always)]
pub(super) fn fill(need: i32, available: &mut [i32; 3]) -> i32 {
    let mut missing = need;
    for left in available.iter_mut() {
        let given = missing.min(*left);
        *left -= given;
        missing -= given;
    }
    need - missing
}
