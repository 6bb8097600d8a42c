//! Events by chance, the same for the same seed.

use model::{Name, ServiceKey};

use super::{Change, Event, Millis, Start};

/// Numbers that look random: the generator splitmix64.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One from 0 up to, but without, `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }
}

/// Seconds between two events at least and at most.
const GAP: (usize, usize) = (20, 300);
/// Seconds that a node or zone is away at least and at most: sometimes too short for an eviction.
const AWAY: (usize, usize) = (60, 1_200);

/// So many events for a cluster: mostly scaling, many rolling updates, some lost nodes, now and then a lost zone.
/// Whatever is lost comes back, which is an event, too.
pub fn events(start: &Start, seed: u64, count: usize) -> Vec<Event> {
    let mut chance = Chance::new(seed);
    let has_pods = |key: &ServiceKey| {
        start.check(&Event { at: Millis::default(), change: Change::Roll(key.clone()) }).is_ok()
    };
    let services: Vec<&ServiceKey> =
        start.services.iter().map(|s| &s.key).filter(|key| has_pods(key)).collect();
    let nodes: Vec<&Name> = start.nodes.values().filter(|n| n.ready).map(|n| &n.name).collect();
    let mut zones: Vec<&Name> = start.nodes.values().filter_map(|n| n.zone.as_ref()).collect();
    zones.dedup();
    zones.sort();
    zones.dedup();
    let mut events = Vec::with_capacity(count);
    let mut now = Millis::default();
    while events.len() < count && !(services.is_empty() && nodes.is_empty()) {
        now = now.after(between(&mut chance, GAP));
        let back = now.after(between(&mut chance, AWAY));
        let service = chance.pick(&services).map(|key| (*key).clone());
        let (change, later) = match (chance.below(100), service) {
            (0..45, Some(key)) => (Change::ScaleBy(key, [-3, -2, -1, 1, 2, 3, 4][chance.below(7)]), None),
            (45..80, Some(key)) => (Change::Roll(key), None),
            (97.., _) if zones.len() > 1 => match chance.pick(&zones) {
                Some(zone) => (Change::ZoneLoss((*zone).clone()), Some(Change::ZoneBack((*zone).clone()))),
                None => continue,
            },
            _ => match chance.pick(&nodes) {
                Some(node) => (Change::NodeLoss((*node).clone()), Some(Change::NodeBack((*node).clone()))),
                None => continue,
            },
        };
        events.push(Event { at: now, change });
        events.extend(later.map(|change| Event { at: back, change }));
    }
    events.truncate(count);
    events.sort_by_key(|event| event.at);
    events
}

fn between(chance: &mut Chance, (low, high): (usize, usize)) -> u64 {
    (low + chance.below(high - low + 1)) as u64
}
