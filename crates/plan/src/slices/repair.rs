//! A slice without the label that consumers go by would be lost to them: what upstream repairs only in passing
//! (semantics B5) is repaired at once. The third reserved label, about headless Services, waits as upstream's does,
//! and so does a slice from a file that was never applied: no consumer looks for it.

use model::{ObjectKey, Slice, SliceContent, annotation};

use super::{Input, Place, SlicePlan, label};

/// Moves slices that hold what they should under wrong labels from `unchanged` to `updates`.
pub(super) fn labels(plan: &mut SlicePlan, input: &Input<'_>, place: Place) {
    let name_label = match place {
        Place::Alone => annotation::SERVICE_NAME,
        Place::Beside => annotation::BESIDE_SERVICE_NAME,
    };
    let is_right = |slice: &Slice| {
        let labels = &slice.content.labels;
        slice.resource_version.is_none()
            || labels.value(name_label) == Some(&input.service.key.name)
                && labels.value(annotation::MANAGED_BY).is_some_and(|name| name == place.writer())
    };
    if input.slices.iter().all(is_right) {
        return;
    }
    let find = |key: &ObjectKey| input.slices.iter().find(|slice| slice.key == *key);
    let (right, wrong) =
        std::mem::take(&mut plan.unchanged).into_iter().partition(|key| find(key).is_none_or(is_right));
    plan.unchanged = right;
    let wrong: Vec<ObjectKey> = wrong;
    let labels = label::wanted(input.service, place);
    for slice in wrong.iter().filter_map(find) {
        let content = SliceContent { labels: labels.clone(), ..slice.content.clone() };
        plan.updates.push((slice.key.clone(), content));
    }
}
