//! Slices that others delete. They are written again at once, and with a growing delay if that does not last: a controller
//! whose watch of Services lags behind writes slices with an owner that is gone, and the garbage collector deletes them as
//! fast as they are written.

use std::collections::BTreeMap;
use std::time::Duration;

use model::ServiceKey;

use super::{MonotonicTime, QueueTiming};

/// After this time without a loss, the next one is the first again. More than the longest delay.
const FORGET_AFTER: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
struct SliceLoss {
    repetitions: u32,
    due: MonotonicTime,
}

/// Losses by Service that exists.
#[derive(Debug, Default)]
pub struct SliceLosses {
    by_service: BTreeMap<ServiceKey, SliceLoss>,
}

impl SliceLosses {
    /// A slice of a Service that exists is lost. Returns when to sync its Service. Losses before that belong together.
    pub fn lost(&mut self, service: &ServiceKey, timing: &QueueTiming, now: MonotonicTime) -> MonotonicTime {
        let known = self.by_service.get(service).filter(|loss| loss.due.after(FORGET_AFTER) > now);
        let loss = match known.copied() {
            None => SliceLoss { repetitions: 0, due: now },
            Some(loss) if loss.due > now => loss,
            Some(SliceLoss { repetitions, .. }) => {
                let repetitions = repetitions.saturating_add(1);
                SliceLoss { repetitions, due: now.after(timing.backoff(repetitions)) }
            }
        };
        self.by_service.insert(service.clone(), loss);
        loss.due
    }

    /// The Service was deleted.
    pub fn forget(&mut self, service: &ServiceKey) {
        self.by_service.remove(service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_millis(millis))
    }

    #[test]
    fn slices_that_are_deleted_again_and_again_are_written_ever_later() {
        let (mut losses, timing) = (SliceLosses::default(), QueueTiming::default());
        let service = ServiceKey::new(&"ns".into(), &"web".into());
        assert_eq!(losses.lost(&service, &timing, at(1_000)), at(1_000), "at once");
        // It is written and deleted again within 5 ms, for an hour.
        let (mut now, mut writes) = (at(1_000), 0);
        while now < at(3_600_000) {
            now = losses.lost(&service, &timing, now.after(Duration::from_millis(5)));
            writes += 1;
        }
        assert!((60..80).contains(&writes), "{writes} writes in an hour");
        assert_eq!(losses.lost(&service, &timing, at(3_900_000)), at(3_900_000), "long ago");
        losses.lost(&service, &timing, at(3_900_010));
        losses.forget(&service);
        assert_eq!(losses.lost(&service, &timing, at(3_900_040)), at(3_900_040));
        assert_eq!(losses.by_service.len(), 1);
    }

    #[test]
    fn many_slices_that_are_deleted_together_are_written_soon() {
        let (mut losses, timing) = (SliceLosses::default(), QueueTiming::default());
        let service = ServiceKey::new(&"ns".into(), &"web".into());
        let due = (0..100).map(|number| losses.lost(&service, &timing, at(1_000 + number))).last();
        assert!(due.is_some_and(|due| due < at(1_200)), "{due:?}");
    }
}
