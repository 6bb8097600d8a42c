//! When the change happened that makes us write (semantics B5): the annotation from which others measure how
//! long a change takes to reach the nodes.

use std::sync::Arc;

use model::{Name, Pod, Service, Timestamp};

/// What was known of a Service at its last plan. The default: nothing, it is seen for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerTimes {
    seen: Option<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    service: Option<Timestamp>,
    /// When each pod's readiness last changed, by the pod's name.
    pods: Arc<[(Name, Timestamp)]>,
}

impl TriggerTimes {
    /// The trigger of this plan, if there is one, and what to remember for the next.
    ///
    /// At first sight it is the Service's creation. Later it is the earliest of the times that advanced.
    pub fn advance(&self, service: &Service, pods: &[&Pod]) -> (Option<Timestamp>, Self) {
        let times = pods.iter().filter_map(|pod| Some((&pod.key.name, pod.ready_since?)));
        if let Some(seen) = &self.seen
            && seen.service == service.created
            && seen.pods.iter().map(|(name, time)| (name, *time)).eq(times.clone())
        {
            return (None, self.clone());
        }
        let mut times: Vec<(Name, Timestamp)> = times.map(|(name, time)| (name.clone(), time)).collect();
        times.sort();
        let trigger = match &self.seen {
            None => service.created,
            Some(seen) => seen.earliest_advance(service.created, &times),
        };
        let now = Seen { service: service.created, pods: times.into() };
        (trigger, Self { seen: Some(now) })
    }
}

impl Seen {
    fn earliest_advance(&self, service: Option<Timestamp>, pods: &[(Name, Timestamp)]) -> Option<Timestamp> {
        let service = service.filter(|time| Some(*time) > self.service);
        let advanced = pods.iter().filter(|(name, time)| Some(*time) > self.pod(name)).map(|(_, time)| *time);
        advanced.chain(service).min()
    }

    fn pod(&self, name: &Name) -> Option<Timestamp> {
        let at = self.pods.binary_search_by(|(known, _)| known.cmp(name)).ok()?;
        Some(self.pods[at].1)
    }
}
