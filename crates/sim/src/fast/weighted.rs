//! `local-weighted` for three zones.

use super::opt::fill;
use super::{ScoreSum, ThreeZones};
use crate::metrics::RawScores;

/// Endpoints of a zone, and the fraction of each that is offered or needed.
#[derive(Clone, Copy, Debug, Default)]
struct Fraction {
    zone: usize,
    count: i32,
    weight: f64,
    local: bool,
}

/// A list without allocation.
#[derive(Clone, Copy, Debug, Default)]
struct Fractions {
    parts: [Fraction; 6],
    first: usize,
    len: usize,
}

/// A group that zones consume by weights.
#[derive(Clone, Copy, Debug, Default)]
struct WeightedGroup {
    /// The zones of the label, four bits each.
    label: u32,
    zone: usize,
    count: i32,
    weights: [f64; 3],
}

impl Fractions {
    fn push(&mut self, part: Fraction) {
        if self.len < self.parts.len() {
            self.parts[self.len] = part;
            self.len += 1;
        }
    }
}

pub(super) fn scores(three: &ThreeZones) -> Option<RawScores> {
    let mut own = [0i32; 3];
    let (mut available, mut needs) = ([0i32; 3], [0i32; 3]);
    let (mut offered, mut needed) = (Fractions::default(), Fractions::default());
    for zone in 0..3 {
        let surplus = f64::from(three.endpoints[zone]) - three.expected[zone];
        let whole = surplus.trunc();
        let fraction = surplus - whole;
        own[zone] = if whole >= 0.0 { three.expected[zone].trunc() as i32 } else { three.endpoints[zone] };
        available[zone] = whole.max(0.0) as i32;
        needs[zone] = (-whole).max(0.0) as i32;
        if fraction > 0.0 {
            offered.push(Fraction { zone, count: 1, weight: 1.0 - fraction, local: true });
        } else if fraction < 0.0 {
            needed.push(Fraction { zone, count: 1, weight: -fraction, local: false });
        }
    }
    let mut size = own;
    for zone in 0..3 {
        let filled = fill(needs[zone], &mut available);
        size[zone] += filled;
        if filled < needs[zone] {
            needed.push(Fraction { zone, count: needs[zone] - filled, weight: 1.0, local: false });
        }
    }
    for (zone, left) in available.into_iter().enumerate().filter(|(_, left)| *left > 0) {
        offered.push(Fraction { zone, count: left, weight: 1.0, local: false });
    }
    let mut groups = [WeightedGroup::default(); 6];
    let mut len = 0;
    for part in offered.parts[..offered.len].iter() {
        let group = share_out(*part, &mut needed);
        let at = groups[..len].iter().position(|g| g.label == group.label).unwrap_or(len);
        groups[at] = group;
        len = len.max(at + 1);
    }
    score(three, size, own, &groups[..len])
}

fn share_out(mut part: Fraction, needed: &mut Fractions) -> WeightedGroup {
    let mut group = WeightedGroup { zone: part.zone, count: part.count, ..WeightedGroup::default() };
    let named = |label: u32, zone: usize| label << 4 | (zone as u32 + 1);
    if part.local {
        group.weights[part.zone] = part.weight;
        group.label = named(group.label, part.zone);
        part.weight = 1.0 - part.weight;
    }
    while needed.first < needed.len {
        let need = &mut needed.parts[needed.first];
        let wanted = f64::from(need.count) * need.weight;
        let missing = wanted - f64::from(part.count) * part.weight;
        group.label = named(group.label, need.zone);
        let weight = &mut group.weights[need.zone];
        if missing >= 0.0 {
            *weight += part.weight;
            if missing == 0.0 {
                needed.first += 1;
            } else {
                (need.count, need.weight) = (1, missing);
            }
            break;
        }
        *weight += wanted / f64::from(part.count);
        part.weight -= *weight;
        needed.first += 1;
    }
    group
}

fn score(three: &ThreeZones, size: [i32; 3], own: [i32; 3], groups: &[WeightedGroup]) -> Option<RawScores> {
    let mut sum = ScoreSum::new(three);
    let mut scale = [0.0; 3];
    for zone in 0..3 {
        let mut reach = f64::from(size[zone]);
        for group in groups {
            let part = f64::from(group.count) * group.weights[zone];
            if part < 0.0 {
                return None;
            }
            reach += part;
        }
        if reach <= 0.0 {
            return None;
        }
        scale[zone] = three.ratio[zone] / reach;
        if size[zone] > 0 {
            let traffic = f64::from(size[zone]) * scale[zone];
            sum.add(size[zone], traffic, f64::from(own[zone]) * scale[zone]);
        }
    }
    for group in groups {
        let count = f64::from(group.count);
        let load = (0..3).map(|z| count * group.weights[z] * scale[z]).sum();
        sum.add(group.count, load, count * group.weights[group.zone] * scale[group.zone]);
    }
    Some(sum.finish())
}
