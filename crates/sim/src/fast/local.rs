//! `local` for three zones: `plan::hints::same_zone::rebalance` over arrays.

use super::heap::ZoneHeap;
use super::{ThreeZones, balanced, zone_groups};
use crate::metrics::RawScores;

struct Groups<'t> {
    three: &'t ThreeZones,
    threshold: f64,
    size: [i32; 3],
    own: [i32; 3],
}

pub(super) fn scores(three: &ThreeZones, start: usize, threshold: f64) -> Option<RawScores> {
    if (three.total as usize) < start.saturating_mul(3) {
        return balanced(three);
    }
    let mut groups = Groups { three, threshold, size: three.endpoints, own: three.endpoints };
    if !groups.rebalance() {
        return balanced(three);
    }
    zone_groups(three, groups.size, groups.own)
}

impl Groups<'_> {
    #[inline(always)]
    fn is_above(&self, zone: usize, size: i32) -> bool {
        self.three.expected[zone] / f64::from(size) - 1.0 >= self.threshold
    }

    #[inline(always)]
    fn can_give(&self, zone: usize) -> bool {
        self.size[zone] > 1 && !self.is_above(zone, self.size[zone] - 1)
    }

    #[inline(always)]
    fn give(&mut self, giver: usize, receiver: usize, count: i32) {
        self.own[giver] -= count;
        self.size[giver] -= count;
        self.size[receiver] += count;
        if giver == receiver {
            self.own[giver] += count;
        }
    }

    fn rebalance(&mut self) -> bool {
        let (mut givers, mut needy) = (ZoneHeap::default(), ZoneHeap::default());
        for zone in 0..3 {
            if self.can_give(zone) {
                givers.add_unordered(zone);
            }
            if self.is_above(zone, self.size[zone]) {
                needy.add_unordered(zone);
            }
        }
        givers.order(gives_before(self.three, &self.size));
        needy.order(receives_before(self.three, &self.size));
        while let Some(receiver) = needy.pop(receives_before(self.three, &self.size)) {
            while self.is_above(receiver, self.size[receiver]) {
                let Some(giver) = givers.pop(gives_before(self.three, &self.size)) else { return false };
                self.give(giver, receiver, 1);
                if self.can_give(giver) {
                    givers.push(giver, gives_before(self.three, &self.size));
                }
            }
        }
        self.give_surplus(givers);
        true
    }

    fn give_surplus(&mut self, mut givers: ZoneHeap) {
        let mut receivers = ZoneHeap::default();
        (0..3).for_each(|zone| receivers.add_unordered(zone));
        receivers.order(receives_before(self.three, &self.size));
        while let Some(giver) = givers.pop(gives_before(self.three, &self.size)) {
            let mut surplus = f64::from(self.size[giver]) - self.three.expected[giver];
            if surplus < 1.0 {
                return;
            }
            while surplus >= 1.0 {
                let Some(receiver) = receivers.pop(receives_before(self.three, &self.size)) else { return };
                let missing = self.three.expected[receiver] - f64::from(self.size[receiver]);
                if missing < 1.0 {
                    return;
                }
                // Subtracting 1 from a larger double is exact, so one step replaces all.
                let count = surplus.min(missing).trunc();
                self.give(giver, receiver, count as i32);
                surplus -= count;
                receivers.push(receiver, receives_before(self.three, &self.size));
            }
        }
    }
}

/// Orders givers: the lowest load after giving one endpoint first.
#[inline(always)]
pub(super) fn gives_before(three: &ThreeZones, size: &[i32; 3]) -> impl Fn(usize, usize) -> bool {
    move |a, b| {
        if size[a] == 0 {
            return false;
        }
        let after = |z: usize| three.ratio[z] / f64::from(size[z] - 1);
        size[b] == 0 || after(a) < after(b)
    }
}

/// Orders receivers: zones without endpoints first, then by load, the highest first.
#[inline(always)]
pub(super) fn receives_before(three: &ThreeZones, size: &[i32; 3]) -> impl Fn(usize, usize) -> bool {
    move |a, b| {
        if size[b] == 0 {
            return false;
        }
        let load = |z: usize| three.ratio[z] / f64::from(size[z]);
        size[a] == 0 || load(b) < load(a)
    }
}
