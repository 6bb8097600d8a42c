//! The rebalancing of `same-zone: Prefer` (seed 003, "Local Algorithm").
//!
//! ```text
//! every zone starts with its own endpoints
//!   overloaded zones take endpoints from zones that can spare some, until none is overloaded  (else: balanced)
//!   zones with a surplus give to zones that lack a whole endpoint
//! ```
//!
//! The controller and the simulator share it. It reproduces the published tool exactly (simulator 4): the order of float
//! operations and of comparisons is part of the result.

use super::go_heap;

/// The traffic and endpoints of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLoad {
    /// Its nodes, or another number that its traffic is proportional to.
    pub nodes: u64,
    /// Its ready endpoints.
    pub endpoints: usize,
}

/// One group of endpoints per zone: `groups[receiver][giver]` endpoints of zone `giver` serve zone `receiver`. Zones are
/// sorted by name. `None` means balanced: there are fewer than `start` endpoints per zone, or some endpoint would be above
/// the overload `threshold`.
pub fn rebalance_zones(zones: &[ZoneLoad], start: usize, threshold: f64) -> Option<Vec<Vec<usize>>> {
    let total: usize = zones.iter().map(|z| z.endpoints).sum();
    if total < start.saturating_mul(zones.len()) {
        return None;
    }
    let mut groups = EndpointGroups::new(zones, total, threshold);
    let mut givers: Vec<usize> = (0..zones.len()).filter(|z| groups.can_give(*z)).collect();
    groups.relieve_overloaded(&mut givers)?;
    groups.give_surplus(&mut givers);
    Some(groups.composition)
}

struct EndpointGroups {
    threshold: f64,
    /// Each zone's share of traffic.
    ratio: Vec<f64>,
    /// The number of endpoints proportional to each zone's traffic.
    expected: Vec<f64>,
    /// Endpoints that serve each zone.
    size: Vec<usize>,
    composition: Vec<Vec<usize>>,
}

impl EndpointGroups {
    fn new(zones: &[ZoneLoad], total: usize, threshold: f64) -> Self {
        let nodes: u64 = zones.iter().fold(0, |sum, z| sum.saturating_add(z.nodes));
        let ratio = |z: &ZoneLoad| if nodes == 0 { 0.0 } else { z.nodes as f64 / nodes as f64 };
        let ratio: Vec<f64> = zones.iter().map(ratio).collect();
        let mut composition = vec![vec![0; zones.len()]; zones.len()];
        for (at, zone) in zones.iter().enumerate() {
            composition[at][at] = zone.endpoints;
        }
        Self {
            threshold,
            expected: ratio.iter().map(|r| r * total as f64).collect(),
            ratio,
            size: zones.iter().map(|z| z.endpoints).collect(),
            composition,
        }
    }

    fn overloaded_with(&self, zone: usize, size: usize) -> bool {
        is_overloaded(self.expected[zone], size, self.threshold)
    }

    fn is_overloaded(&self, zone: usize) -> bool {
        self.overloaded_with(zone, self.size[zone])
    }

    fn can_give(&self, zone: usize) -> bool {
        self.size[zone] > 1 && !self.overloaded_with(zone, self.size[zone] - 1)
    }

    /// The zone with the lowest load after giving one comes first.
    fn gives_before(&self, a: usize, b: usize) -> bool {
        if self.size[a] == 0 {
            return false;
        }
        let after = |z: usize| self.ratio[z] / (self.size[z] as f64 - 1.0);
        self.size[b] == 0 || after(a) < after(b)
    }

    /// The zone with the highest load, or without endpoints, comes first.
    fn receives_before(&self, a: usize, b: usize) -> bool {
        if self.size[b] == 0 {
            return false;
        }
        let load = |z: usize| self.ratio[z] / self.size[z] as f64;
        self.size[a] == 0 || load(b) < load(a)
    }

    fn give(&mut self, giver: usize, receiver: usize) {
        self.composition[receiver][giver] += 1;
        self.composition[giver][giver] -= 1;
        self.size[receiver] += 1;
        self.size[giver] -= 1;
    }

    fn relieve_overloaded(&mut self, givers: &mut Vec<usize>) -> Option<()> {
        let mut needy: Vec<usize> = (0..self.size.len()).filter(|z| self.is_overloaded(*z)).collect();
        go_heap::init(givers, |a, b| self.gives_before(a, b));
        go_heap::init(&mut needy, |a, b| self.receives_before(a, b));
        while let Some(receiver) = go_heap::pop(&mut needy, |a, b| self.receives_before(a, b)) {
            while self.is_overloaded(receiver) {
                // No zone can spare one: balanced.
                let giver = go_heap::pop(givers, |a, b| self.gives_before(a, b))?;
                self.give(giver, receiver);
                if self.can_give(giver) {
                    go_heap::push(givers, giver, |a, b| self.gives_before(a, b));
                }
            }
        }
        Some(())
    }

    fn give_surplus(&mut self, givers: &mut Vec<usize>) {
        let mut receivers: Vec<usize> = (0..self.size.len()).collect();
        go_heap::init(&mut receivers, |a, b| self.receives_before(a, b));
        while let Some(giver) = go_heap::pop(givers, |a, b| self.gives_before(a, b)) {
            let mut surplus = self.size[giver] as f64 - self.expected[giver];
            if surplus < 1.0 {
                return;
            }
            while surplus >= 1.0 {
                let receiver = go_heap::pop(&mut receivers, |a, b| self.receives_before(a, b));
                let Some(receiver) = receiver else { return };
                let mut missing = self.expected[receiver] - self.size[receiver] as f64;
                // Only the head is tested, even if a less loaded zone behind it lacks more.
                if missing < 1.0 {
                    return;
                }
                while surplus >= 1.0 && missing >= 1.0 {
                    self.give(giver, receiver);
                    surplus -= 1.0;
                    missing -= 1.0;
                }
                go_heap::push(&mut receivers, receiver, |a, b| self.receives_before(a, b));
            }
        }
    }
}

/// Whether `size` endpoints are overloaded by the traffic of `expected` ones. No endpoint for some traffic is overloaded;
/// no endpoint for no traffic is not.
pub(super) fn is_overloaded(expected: f64, size: usize, threshold: f64) -> bool {
    expected / size as f64 - 1.0 >= threshold
}
