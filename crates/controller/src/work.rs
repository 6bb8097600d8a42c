//! A plan -> what is to be written and said for it.

use jiff::Timestamp;
use model::{Notice, ObjectKey, Service, Slice, SliceContent};
use plan::hints::HintOutcome;
use plan::slices::SlicePlan;
use tracing::debug;

use super::service_state::ServiceState;
use super::slice_writes::StoredSlice;
use cluster::events;

/// A stored slice by its key.
pub(super) fn find<'s>(stored: &'s [Slice], key: &ObjectKey) -> Option<&'s Slice> {
    stored.iter().find(|slice| slice.key == *key)
}

/// A stored slice as deleting it needs it.
pub(super) fn stored_slice(slice: &Slice) -> StoredSlice {
    StoredSlice {
        key: slice.key.clone(),
        uid: slice.uid.clone(),
        resource_version: slice.resource_version.as_ref().map(ToString::to_string),
    }
}

/// The changes, each with the stored slice that it is made from.
pub(super) fn updates(
    stored: &[Slice],
    updates: Vec<(ObjectKey, SliceContent)>,
) -> Vec<(Slice, SliceContent)> {
    let with_stored = |(key, content): (ObjectKey, _)| Some((find(stored, &key)?.clone(), content));
    updates.into_iter().filter_map(with_stored).collect()
}

/// The Notices that were not said before.
pub(super) fn events_of(
    service: &Service,
    kept: &ServiceState,
    plan: &SlicePlan,
    outcomes: &[HintOutcome],
    clock: Timestamp,
) -> Vec<serde_json::Value> {
    let uid = service.uid.as_ref().map(ToString::to_string);
    let of_plan = plan.notices.iter().filter(|notice| !kept.reported.contains(&notice.reason));
    let mut news: Vec<&Notice> = of_plan.collect();
    for notice in outcomes.iter().flat_map(HintOutcome::news) {
        // Two families often have the same to say.
        if !news.iter().any(|known| known.message == notice.message) {
            news.push(notice);
        }
    }
    for notice in &news {
        debug!(service = %service.key, reason = notice.reason, message = %notice.message, "noticed");
    }
    news.into_iter()
        .map(|notice| events::event(events::SLICE_CONTROLLER, notice, uid.as_deref(), clock))
        .collect()
}
