//! The annotation `endpoints.kubernetes.io/last-change-trigger-time` (semantics B5), from which consumers measure the
//! latency of network programming.

use std::sync::Arc;

use model::{Name, Pod, Service, Timestamp};

/// Times at the previous plan; the default before the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerTimes {
    seen: Option<SeenTimes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenTimes {
    service: Option<Timestamp>,
    /// Last change of the Ready condition, by pod name.
    pods: Arc<[(Name, Timestamp)]>,
}

impl TriggerTimes {
    /// The trigger time of this plan, and the state for the next. For the first plan it is the creation of the Service,
    /// later the earliest time that advanced.
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
        let now = SeenTimes { service: service.created, pods: times.into() };
        (trigger, Self { seen: Some(now) })
    }
}

impl SeenTimes {
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
