//! Random events, reproducible by their seed.

use model::random::Random;
use model::{Name, ServiceKey};

use super::{ClusterChange, InitialCluster, Millis, ReplayEvent};

/// Minimum and maximum seconds between two events.
const INTERVAL: (usize, usize) = (20, 300);
/// Minimum and maximum outage of a node or zone in seconds: sometimes too short for an eviction.
const OUTAGE: (usize, usize) = (60, 1_200);

/// Events for a cluster: 45 % scaling, 35 % rolling updates, the rest failures of nodes and zones. Recoveries count as
/// events.
pub fn random_events(start: &InitialCluster, random: &mut Random, count: usize) -> Vec<ReplayEvent> {
    let has_pods = |key: &ServiceKey| {
        start.check(&ReplayEvent { at: Millis::default(), change: ClusterChange::Roll(key.clone()) }).is_ok()
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
        now = now.after(between(random, INTERVAL));
        let back = now.after(between(random, OUTAGE));
        let service = random.pick(&services).map(|key| (*key).clone());
        let (change, later) = match (random.below(100), service) {
            (0..45, Some(key)) => {
                (ClusterChange::ScaleBy(key, [-3, -2, -1, 1, 2, 3, 4][random.below(7)]), None)
            }
            (45..80, Some(key)) => (ClusterChange::Roll(key), None),
            (97.., _) if zones.len() > 1 => match random.pick(&zones) {
                Some(zone) => {
                    (ClusterChange::ZoneLoss((*zone).clone()), Some(ClusterChange::ZoneBack((*zone).clone())))
                }
                None => continue,
            },
            _ => match random.pick(&nodes) {
                Some(node) => {
                    (ClusterChange::NodeLoss((*node).clone()), Some(ClusterChange::NodeBack((*node).clone())))
                }
                None => continue,
            },
        };
        events.push(ReplayEvent { at: now, change });
        events.extend(later.map(|change| ReplayEvent { at: back, change }));
    }
    events.truncate(count);
    events.sort_by_key(|event| event.at);
    events
}

fn between(random: &mut Random, (low, high): (usize, usize)) -> u64 {
    (low + random.below(high - low + 1)) as u64
}
