//! `local-shared`: as `local`, but zones that lack endpoints share groups (seed 003, "Local-Shared").
//!
//! ```text
//! zones without endpoints -> one group together, filled first; then zones that lack whole endpoints
//! zones that are overloaded still -> one endpoint more each, else one group together
//! what is too much goes to the zones with the highest load
//! ```

use model::Name;
use plan::hints::same_zone::go_heap;

use crate::input::{Shares, Zone};
use crate::slice_group::SliceGroup;

/// The groups; `None` is balanced.
pub(super) fn groups(zones: &[Zone], threshold: f64) -> Option<Vec<SliceGroup>> {
    let shares = Shares::of(zones);
    if shares.total < zones.len() as u64 {
        return None;
    }
    let mut plan = Plan::new(zones, shares, threshold);
    let mut givers: Vec<usize> = (0..zones.len()).filter(|z| plan.can_give(*z)).collect();
    let mut receivers: Vec<usize> = (0..zones.len()).filter(|z| plan.groups[*z].is_some()).collect();
    plan.fill_needs(&mut givers)?;
    plan.relieve(&mut givers, &mut receivers)?;
    plan.give_surplus(&mut givers, &mut receivers);
    Some(plan.groups.into_iter().flatten().chain(plan.common).collect())
}

struct Plan<'z> {
    zones: &'z [Zone],
    shares: Shares,
    threshold: f64,
    /// Each zone's own group; none where it has no endpoints, or shares a group.
    groups: Vec<Option<SliceGroup>>,
    /// The sizes of the own groups.
    size: Vec<i64>,
    /// Groups of several zones.
    common: Vec<SliceGroup>,
}

impl<'z> Plan<'z> {
    fn new(zones: &'z [Zone], shares: Shares, threshold: f64) -> Self {
        let own =
            |at: usize| (zones[at].endpoints > 0).then(|| SliceGroup::own(zones, at, zones[at].endpoints));
        Self {
            groups: (0..zones.len()).map(own).collect(),
            size: zones.iter().map(|z| z.endpoints as i64).collect(),
            common: Vec::new(),
            zones,
            shares,
            threshold,
        }
    }

    fn is_above(&self, zone: usize, delta: i64) -> bool {
        self.shares.expected[zone] / (self.size[zone] + delta) as f64 - 1.0 >= self.threshold
    }

    fn can_give(&self, zone: usize) -> bool {
        self.size[zone] != 1 && self.groups[zone].is_some() && !self.is_above(zone, -1)
    }

    fn surplus(&self, zone: usize) -> f64 {
        self.size[zone] as f64 - self.shares.expected[zone]
    }

    fn gives_before(&self, a: usize, b: usize) -> bool {
        if self.size[a] == 0 {
            return false;
        }
        let after = |z: usize| self.shares.ratio[z] / (self.size[z] - 1) as f64;
        self.size[b] == 0 || after(a) < after(b)
    }

    fn receives_before(&self, a: usize, b: usize) -> bool {
        if self.size[b] == 0 {
            return false;
        }
        let load = |z: usize| self.shares.ratio[z] / self.size[z] as f64;
        self.size[a] == 0 || load(b) < load(a)
    }

    fn change(&mut self, group: usize, of: usize, by: i64) {
        self.size[group] += by;
        if let Some(group) = &mut self.groups[group] {
            group.composition[of] = group.composition[of].saturating_add_signed(by);
        }
    }

    fn pop_giver(&self, givers: &mut Vec<usize>) -> Option<usize> {
        go_heap::pop(givers, |a, b| self.gives_before(a, b))
    }

    /// Puts a zone that gave one back, if it can give more.
    fn put_back(&self, giver: usize, givers: &mut Vec<usize>) {
        if self.can_give(giver) {
            go_heap::push(givers, giver, |a, b| self.gives_before(a, b));
        }
    }

    /// The group of all zones without endpoints, and how many it needs.
    fn merged(&self) -> Option<(SliceGroup, u64)> {
        let urgent: Vec<usize> = (0..self.zones.len()).filter(|z| self.groups[*z].is_none()).collect();
        let expected: f64 = urgent.iter().map(|z| self.shares.expected[*z]).sum();
        // Simulator 4: half away from zero, after cutting noise below a thousandth.
        let count = match expected >= 1.0 {
            true => ((expected * 1000.0).ceil() / 1000.0).round(),
            false => expected.ceil(),
        };
        (expected != 0.0).then(|| (self.common_group("merged", &urgent), count as u64))
    }

    fn common_group(&self, kind: &str, members: &[usize]) -> SliceGroup {
        let names: Vec<&str> = members.iter().map(|z| self.zones[*z].name.as_str()).collect();
        let mut group =
            SliceGroup::empty(Name::new(&format!("{kind}-{}", names.join("-"))), self.zones.len());
        members.iter().for_each(|z| group.weights[*z] = Some(1.0));
        group
    }

    fn fill_needs(&mut self, givers: &mut Vec<usize>) -> Option<()> {
        go_heap::init(givers, |a, b| self.gives_before(a, b));
        if let Some((mut group, count)) = self.merged() {
            for _ in 0..count {
                let giver = self.pop_giver(givers)?;
                group.composition[giver] += 1;
                self.change(giver, giver, -1);
                self.put_back(giver, givers);
            }
            self.common.push(group);
        }
        for zone in 0..self.zones.len() {
            // What was lacking at the start: zones that gave since do not count as needy for it.
            let endpoints = self.zones[zone].endpoints as f64;
            let lacks = self.groups[zone].is_some() && endpoints - self.shares.expected[zone] <= -1.0;
            let need = if lacks { (self.shares.expected[zone] - endpoints).trunc() as u64 } else { 0 };
            for _ in 0..need {
                let giver = self.pop_giver(givers)?;
                self.change(zone, giver, 1);
                self.change(giver, giver, -1);
                self.put_back(giver, givers);
            }
        }
        Some(())
    }

    /// Zones that are overloaded still get one endpoint more each, or share a group.
    fn relieve(&mut self, givers: &mut Vec<usize>, receivers: &mut Vec<usize>) -> Option<()> {
        go_heap::init(receivers, |a, b| self.receives_before(a, b));
        let mut overloaded = Vec::new();
        while let Some(top) = receivers.first().copied().filter(|z| self.is_above(*z, 0)) {
            go_heap::pop(receivers, |a, b| self.receives_before(a, b));
            overloaded.push(top);
        }
        let mut taken = vec![0u64; self.zones.len()];
        let mut count = 0;
        while count < overloaded.len() {
            let spare = givers.first().is_some_and(|top| self.surplus(*top) >= 1.0);
            if !spare {
                while !self.is_enough(&overloaded, count) {
                    self.take(givers, &mut taken)?;
                    count += 1;
                }
                self.share(&overloaded, &taken);
                return Some(());
            }
            self.take(givers, &mut taken)?;
            count += 1;
        }
        self.hand_out(&overloaded, &taken);
        Some(())
    }

    fn is_enough(&self, overloaded: &[usize], count: usize) -> bool {
        let expected: f64 = overloaded.iter().map(|z| self.shares.expected[*z]).sum();
        let size: i64 = overloaded.iter().map(|z| self.size[*z]).sum();
        expected / (count as i64 + size) as f64 - 1.0 < self.threshold
    }

    fn take(&mut self, givers: &mut Vec<usize>, taken: &mut [u64]) -> Option<()> {
        let giver = self.pop_giver(givers)?;
        taken[giver] += 1;
        self.change(giver, giver, -1);
        self.put_back(giver, givers);
        Some(())
    }

    fn share(&mut self, overloaded: &[usize], taken: &[u64]) {
        let mut group = self.common_group("shared", overloaded);
        group.composition.copy_from_slice(taken);
        for zone in overloaded {
            let Some(own) = self.groups[*zone].take() else { continue };
            group.composition.iter_mut().zip(&own.composition).for_each(|(sum, n)| *sum += n);
        }
        self.common.push(group);
    }

    fn hand_out(&mut self, overloaded: &[usize], taken: &[u64]) {
        let givers = taken.iter().enumerate().flat_map(|(zone, n)| (0..*n).map(move |_| zone));
        for (giver, receiver) in givers.zip(overloaded) {
            self.change(*receiver, giver, 1);
        }
    }

    fn give_surplus(&mut self, givers: &mut Vec<usize>, receivers: &mut Vec<usize>) {
        while let Some(giver) = self.pop_giver(givers) {
            if self.surplus(giver) < 1.0 {
                return;
            }
            let Some(receiver) = go_heap::pop(receivers, |a, b| self.receives_before(a, b)) else { return };
            // Only without any node: giving to itself changes nothing, and the published tool never ends.
            if receiver == giver {
                return;
            }
            self.change(receiver, giver, 1);
            go_heap::push(receivers, receiver, |a, b| self.receives_before(a, b));
            self.change(giver, giver, -1);
            self.put_back(giver, givers);
        }
    }
}
