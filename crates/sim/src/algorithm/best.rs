//! `best`: the highest score that groups of whole zones reach without overload.
//!
//! In a group of size n with capacity n/T the traffic of its own zones counts E/n each, so the zones with the most
//! endpoints go first, up to the capacity. What is left over goes to groups with room and counts nothing, so each
//! group's in-zone share depends on its own zones alone, and a partition's is the sum. That leaves a search over
//! partitions: by subsets, keeping for each number of slices the most in-zone traffic.

use model::Name;

use crate::input::{Shares, Zone};
use crate::metrics::{ENDPOINTS_PER_SLICE, ScoreWeights, measure};
use crate::slice_group::SliceGroup;

/// Up to this many zones with endpoints every partition is considered; beyond, groups are merged pair by pair as long
/// as that pays.
pub(super) const EXHAUSTIVE_ZONES: usize = 12;

/// The groups; `None` is balanced.
pub(super) fn groups(zones: &[Zone], weights: &ScoreWeights) -> Option<Vec<SliceGroup>> {
    let shares = Shares::of(zones);
    let served: Vec<usize> = (0..zones.len()).filter(|z| zones[*z].endpoints > 0).collect();
    if served.len() < 2 || shares.ratio.iter().all(|r| *r == 0.0) {
        return None;
    }
    let space = Space { zones, shares: &shares, weights };
    let partition = match served.len() <= EXHAUSTIVE_ZONES {
        true => space.best_partition(&served),
        false => space.merged_by_pairs(&served),
    };
    let groups = space.weighted(&partition);
    let score = |groups: &[SliceGroup]| measure(zones, groups, weights).map(|m| m.total);
    let is_better = score(&groups) > score(&[SliceGroup::global(zones)]);
    (partition.len() > 1 && is_better).then_some(groups)
}

struct Space<'a> {
    zones: &'a [Zone],
    shares: &'a Shares,
    weights: &'a ScoreWeights,
}

/// One way to cover a set of zones.
#[derive(Clone, Copy, Debug)]
struct Cover {
    slices: u64,
    in_zone: f64,
    /// The zones of its first group, as bits, and which cover of the rest goes with it.
    first: usize,
    rest: usize,
}

impl Space<'_> {
    fn size(&self, group: &[usize]) -> u64 {
        group.iter().map(|z| self.zones[*z].endpoints).sum()
    }

    /// The traffic that a group keeps of each of its zones, those with the most endpoints first.
    fn kept(&self, group: &[usize]) -> Vec<(usize, f64)> {
        let mut order = group.to_vec();
        order.sort_by_key(|z| std::cmp::Reverse(self.zones[*z].endpoints));
        let mut room = self.size(group) as f64 / self.shares.total as f64;
        let mut keep = |zone: usize| {
            let kept = self.shares.ratio[zone].min(room);
            room -= kept;
            (zone, kept)
        };
        order.into_iter().map(&mut keep).collect()
    }

    fn in_zone(&self, group: &[usize]) -> f64 {
        let size = self.size(group) as f64;
        self.kept(group).iter().map(|(z, kept)| kept * self.zones[*z].endpoints as f64 / size).sum()
    }

    fn slices(&self, group: &[usize]) -> u64 {
        self.size(group).div_ceil(ENDPOINTS_PER_SLICE)
    }

    fn score(&self, in_zone: f64, slices: u64) -> f64 {
        let needed = self.shares.total.div_ceil(ENDPOINTS_PER_SLICE);
        self.weights.in_zone * in_zone + self.weights.slices * needed as f64 / slices as f64
    }

    fn best_partition(&self, served: &[usize]) -> Vec<Vec<usize>> {
        let of = |mask: usize| -> Vec<usize> {
            served.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, z)| *z).collect()
        };
        let everything = (1usize << served.len()) - 1;
        let alone: Vec<(u64, f64)> =
            (0..=everything).map(|m| (self.slices(&of(m)), self.in_zone(&of(m)))).collect();
        let mut covers: Vec<Vec<Cover>> = vec![vec![Cover { slices: 0, in_zone: 0.0, first: 0, rest: 0 }]];
        for mask in 1..=everything {
            let found = all_covers(mask, &alone, &covers);
            covers.push(frontier(found));
        }
        let score = |c: &Cover| self.score(c.in_zone, c.slices);
        let best = covers[everything].iter().max_by(|a, b| score(a).total_cmp(&score(b)));
        let (mut mask, mut cover) = (everything, best.copied());
        let mut partition = Vec::new();
        while let Some(c) = cover.filter(|_| mask != 0) {
            partition.push(of(c.first));
            mask &= !c.first;
            cover = covers[mask].get(c.rest).copied();
        }
        partition
    }

    fn merged_by_pairs(&self, served: &[usize]) -> Vec<Vec<usize>> {
        let mut partition: Vec<Vec<usize>> = served.iter().map(|z| vec![*z]).collect();
        let score = |partition: &[Vec<usize>]| {
            let in_zone: f64 = partition.iter().map(|g| self.in_zone(g)).sum();
            self.score(in_zone, partition.iter().map(|g| self.slices(g)).sum())
        };
        loop {
            let mut best: Option<(f64, Vec<Vec<usize>>)> = None;
            for a in 0..partition.len() {
                for b in a + 1..partition.len() {
                    let merged = merge(&partition, a, b);
                    let score = score(&merged);
                    if best.as_ref().is_none_or(|(most, _)| score > *most) {
                        best = Some((score, merged));
                    }
                }
            }
            match best.filter(|(most, _)| *most > score(&partition)) {
                Some((_, merged)) => partition = merged,
                None => return partition,
            }
        }
    }

    /// The groups of a partition, with weights that load every endpoint alike.
    fn weighted(&self, partition: &[Vec<usize>]) -> Vec<SliceGroup> {
        let all = self.shares.total as f64;
        let mut flow = vec![vec![0.0; partition.len()]; self.zones.len()];
        let mut room: Vec<f64> = partition.iter().map(|g| self.size(g) as f64 / all).collect();
        for (at, group) in partition.iter().enumerate() {
            for (zone, kept) in self.kept(group) {
                flow[zone][at] = kept;
                room[at] -= kept;
            }
        }
        let room: Vec<f64> = room.into_iter().map(|r| r.max(0.0)).collect();
        let spare: f64 = room.iter().sum();
        for (zone, flow) in flow.iter_mut().enumerate() {
            let ratio = self.shares.ratio[zone];
            let excess = (ratio - flow.iter().sum::<f64>()).max(0.0);
            for (at, group) in partition.iter().enumerate() {
                let own = group.contains(&zone);
                flow[at] = match ratio > 0.0 {
                    true if spare > 0.0 => flow[at] + excess * room[at] / spare,
                    true => flow[at],
                    // A zone that sends nothing may use what it likes: its own, else everything.
                    false if self.zones[zone].endpoints > 0 => f64::from(u8::from(own)),
                    false => self.size(group) as f64 / all,
                };
            }
        }
        self.as_groups(partition, &flow)
    }

    fn as_groups(&self, partition: &[Vec<usize>], flow: &[Vec<f64>]) -> Vec<SliceGroup> {
        let group = |(at, members): (usize, &Vec<usize>)| {
            let names: Vec<&str> = members.iter().map(|z| self.zones[*z].name.as_str()).collect();
            let mut group = SliceGroup::empty(Name::new(&names.join("+")), self.zones.len());
            members.iter().for_each(|z| group.composition[*z] = self.zones[*z].endpoints);
            let even = self.shares.total as f64 / self.size(members) as f64;
            for (zone, flow) in flow.iter().enumerate() {
                let share = flow[at] / flow.iter().sum::<f64>();
                group.weights[zone] = (share > 0.0).then_some(share * even);
            }
            group
        };
        partition.iter().enumerate().map(group).collect()
    }
}

/// Every cover of a set: its lowest zone's group, and a cover of the rest.
fn all_covers(mask: usize, alone: &[(u64, f64)], covers: &[Vec<Cover>]) -> Vec<Cover> {
    let lowest = mask & mask.wrapping_neg();
    let others = mask & !lowest;
    let mut found = Vec::new();
    let mut part = others;
    loop {
        let first = part | lowest;
        let (slices, in_zone) = alone[first];
        let rests = covers[mask & !first].iter().enumerate();
        found.extend(rests.map(|(rest, c)| Cover {
            slices: slices + c.slices,
            in_zone: in_zone + c.in_zone,
            first,
            rest,
        }));
        if part == 0 {
            return found;
        }
        part = (part - 1) & others;
    }
}

/// Those that no other beats in both slices and in-zone traffic.
fn frontier(mut covers: Vec<Cover>) -> Vec<Cover> {
    covers.sort_by(|a, b| a.slices.cmp(&b.slices).then(b.in_zone.total_cmp(&a.in_zone)));
    let mut most = f64::NEG_INFINITY;
    covers.retain(|c| {
        let better = c.in_zone > most;
        most = most.max(c.in_zone);
        better
    });
    covers
}

fn merge(partition: &[Vec<usize>], a: usize, b: usize) -> Vec<Vec<usize>> {
    let mut merged = partition.to_vec();
    let taken = merged.remove(b);
    merged[a].extend(taken);
    merged
}
