//! `local-shared` for three zones.

use super::heap::ZoneHeap;
use super::local::{gives_before, receives_before};
use super::{ScoreSum, ThreeZones, balanced};
use crate::metrics::RawScores;

struct SharedGroups<'t> {
    three: &'t ThreeZones,
    threshold: f64,
    /// Whether the zone has a group of its own.
    alone: [bool; 3],
    size: [i32; 3],
    own: [i32; 3],
    givers: ZoneHeap,
    /// Size of the group of the zones without endpoints.
    merged: i32,
    /// Size and members of the group of the zones that stay overloaded.
    shared: Option<(i32, [bool; 3])>,
}

pub(super) fn scores(three: &ThreeZones, threshold: f64) -> Option<RawScores> {
    if three.total < 3 {
        return balanced(three);
    }
    let mut groups = SharedGroups {
        three,
        threshold,
        alone: three.endpoints.map(|n| n > 0),
        size: three.endpoints,
        own: three.endpoints,
        givers: ZoneHeap::default(),
        merged: 0,
        shared: None,
    };
    match groups.decide() {
        Some(()) => groups.scores(),
        None => balanced(three),
    }
}

impl SharedGroups<'_> {
    #[inline(always)]
    fn is_above(&self, zone: usize, size: i32) -> bool {
        self.three.expected[zone] / f64::from(size) - 1.0 >= self.threshold
    }

    #[inline(always)]
    fn can_give(&self, zone: usize) -> bool {
        self.size[zone] != 1 && self.alone[zone] && !self.is_above(zone, self.size[zone] - 1)
    }

    #[inline(always)]
    fn surplus(&self, zone: usize) -> f64 {
        f64::from(self.size[zone]) - self.three.expected[zone]
    }

    /// Takes one endpoint from the best giver. The receiver counts it at once if that affects the order of later moves.
    #[inline(always)]
    fn take(&mut self, receiver: Option<usize>) -> Option<usize> {
        let giver = self.givers.pop(gives_before(self.three, &self.size))?;
        if let Some(receiver) = receiver {
            self.size[receiver] += 1;
            self.own[receiver] += i32::from(receiver == giver);
        }
        self.own[giver] -= 1;
        self.size[giver] -= 1;
        if self.can_give(giver) {
            self.givers.push(giver, gives_before(self.three, &self.size));
        }
        Some(giver)
    }

    fn decide(&mut self) -> Option<()> {
        let mut receivers = ZoneHeap::default();
        for zone in 0..3 {
            if self.can_give(zone) {
                self.givers.add_unordered(zone);
            }
            if self.alone[zone] {
                receivers.add_unordered(zone);
            }
        }
        self.givers.order(gives_before(self.three, &self.size));
        self.fill_needs()?;
        receivers.order(receives_before(self.three, &self.size));
        self.relieve(&mut receivers)?;
        self.give_surplus(&mut receivers);
        Some(())
    }

    fn fill_needs(&mut self) -> Option<()> {
        let urgent = (0..3).filter(|z| !self.alone[*z]).map(|z| self.three.expected[z]).sum::<f64>();
        let count = match urgent >= 1.0 {
            true => ((urgent * 1000.0).ceil() / 1000.0).round(),
            false => urgent.ceil(),
        };
        self.merged = count as i32;
        for _ in 0..self.merged {
            self.take(None)?;
        }
        for zone in 0..3 {
            let lack = self.three.expected[zone] - f64::from(self.three.endpoints[zone]);
            let need = if self.alone[zone] && lack >= 1.0 { lack.trunc() as i32 } else { 0 };
            for _ in 0..need {
                self.take(Some(zone))?;
            }
        }
        Some(())
    }

    fn relieve(&mut self, receivers: &mut ZoneHeap) -> Option<()> {
        let mut overloaded = [0usize; 3];
        let mut waiting = 0;
        while let Some(top) = receivers.first().filter(|z| self.is_above(*z, self.size[*z])) {
            receivers.pop(receives_before(self.three, &self.size));
            overloaded[waiting] = top;
            waiting += 1;
        }
        let overloaded = &overloaded[..waiting];
        let mut taken = 0;
        while taken < waiting {
            let spare = self.givers.first().is_some_and(|top| self.surplus(top) >= 1.0);
            if !spare {
                while !self.is_enough(overloaded, taken) {
                    self.take(None)?;
                    taken += 1;
                }
                self.share(overloaded, taken);
                return Some(());
            }
            self.take(None)?;
            taken += 1;
        }
        // One each; givers are never overloaded, so no zone receives its own endpoint.
        overloaded.iter().for_each(|zone| self.size[*zone] += 1);
        Some(())
    }

    fn is_enough(&self, overloaded: &[usize], taken: usize) -> bool {
        let expected = overloaded.iter().map(|z| self.three.expected[*z]).sum::<f64>();
        let size = overloaded.iter().map(|z| self.size[*z]).sum::<i32>();
        expected / f64::from(taken as i32 + size) - 1.0 < self.threshold
    }

    fn share(&mut self, overloaded: &[usize], taken: usize) {
        let mut members = [false; 3];
        let mut size = taken as i32;
        for zone in overloaded {
            members[*zone] = true;
            size += self.size[*zone];
            self.alone[*zone] = false;
        }
        self.shared = Some((size, members));
    }

    fn give_surplus(&mut self, receivers: &mut ZoneHeap) {
        while let Some(giver) = self.givers.pop(gives_before(self.three, &self.size)) {
            if self.surplus(giver) < 1.0 {
                return;
            }
            let Some(receiver) = receivers.pop(receives_before(self.three, &self.size)) else { return };
            if receiver == giver {
                return;
            }
            self.size[receiver] += 1;
            receivers.push(receiver, receives_before(self.three, &self.size));
            self.size[giver] -= 1;
            self.own[giver] -= 1;
            if self.can_give(giver) {
                self.givers.push(giver, gives_before(self.three, &self.size));
            }
        }
    }

    fn scores(&self) -> Option<RawScores> {
        let ratio = &self.three.ratio;
        let mut sum = ScoreSum::new(self.three);
        let mut urgent = 0.0;
        for zone in 0..3 {
            if self.alone[zone] {
                let size = self.size[zone];
                if size == 0 {
                    return None;
                }
                sum.add(size, ratio[zone], ratio[zone] * f64::from(self.own[zone]) / f64::from(size));
            } else if self.shared.is_none_or(|(_, members)| !members[zone]) {
                // Zones without nodes have no group and reach no endpoint.
                if self.merged == 0 {
                    return None;
                }
                urgent += ratio[zone];
            }
        }
        if self.merged > 0 {
            sum.add(self.merged, urgent, 0.0);
        }
        if let Some((size, members)) = self.shared {
            let zones = (0..3).filter(|z| members[*z]);
            let load = zones.clone().map(|z| ratio[z]).sum();
            let in_zone = zones.map(|z| ratio[z] * f64::from(self.own[z])).sum::<f64>() / f64::from(size);
            sum.add(size, load, in_zone);
        }
        Some(sum.finish())
    }
}
