//! Labels of a slice: those of the Service, and the reserved ones (semantics B5).

use std::sync::LazyLock;

use model::{Labels, Name, ObjectKey, Service, Slice, SliceContent, annotation};

use super::{SliceInput, SliceMode, SlicePlan};

// Interned once: they are on every slice.
static SERVICE_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::SERVICE_NAME));
static MANAGED_BY: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::MANAGED_BY));
static CONTROLLER_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::CONTROLLER_NAME));
static COEXIST_SERVICE_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::COEXIST_SERVICE_NAME));
static COEXIST_CONTROLLER_NAME: LazyLock<Name> =
    LazyLock::new(|| Name::new(annotation::COEXIST_CONTROLLER_NAME));
static FOR_ZONE: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::FOR_ZONE));
static HEADLESS: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::HEADLESS));

/// The labels of a Service's slices, and whether a slice with `existing` labels has to be written. As upstream, a
/// difference in reserved labels alone does not cause a write.
pub fn labels(service: &Service, existing: Option<&Labels>) -> (Labels, bool) {
    (
        desired(service, SliceMode::Exclusive),
        differ_in_own_labels(&service.labels, existing.unwrap_or(&Labels::EMPTY)),
    )
}

pub fn labels_at(service: &Service, mode: SliceMode) -> Labels {
    desired(service, mode)
}

pub(super) fn desired(service: &Service, mode: SliceMode) -> Labels {
    let mut pairs: Vec<(Name, Name)> = own(&service.labels).cloned().collect();
    let (name_label, manager) = match mode {
        SliceMode::Exclusive => (&SERVICE_NAME, &CONTROLLER_NAME),
        SliceMode::Coexist => (&COEXIST_SERVICE_NAME, &COEXIST_CONTROLLER_NAME),
    };
    pairs.push(((*name_label).clone(), service.key.name.clone()));
    pairs.push((MANAGED_BY.clone(), (*manager).clone()));
    if service.is_headless() {
        pairs.push((HEADLESS.clone(), Name::default()));
    }
    Labels::from_pairs(pairs)
}

/// The same labels for a slice of one zone, or of all.
pub(super) fn for_zone(labels: &Labels, zone: Option<&Name>) -> Labels {
    match zone {
        None => labels.clone(),
        Some(zone) => {
            let own = (FOR_ZONE.clone(), zone.clone());
            Labels::from_pairs(labels.iter().cloned().chain([own]).collect())
        }
    }
}

/// Whether two label sets differ in labels that are not reserved.
pub(super) fn differ_in_own_labels(a: &Labels, b: &Labels) -> bool {
    !own(a).eq(own(b))
}

/// Labels that are not reserved.
fn own(labels: &Labels) -> impl Iterator<Item = &(Name, Name)> {
    labels.iter().filter(|(key, _)| !annotation::RESERVED_ON_SLICES.contains(&key.as_str()))
}

/// Moves slices with wrong service-name or managed-by labels from `unchanged` to `updates`: consumers would not find them.
/// Upstream repairs these only together with another change (semantics B5 [Q]). The headless label is repaired as
/// upstream does it, and slices without a resource version (manifests that were never applied) are skipped.
pub(super) fn repair(plan: &mut SlicePlan, input: &SliceInput<'_>, mode: SliceMode) {
    let name_label = match mode {
        SliceMode::Exclusive => annotation::SERVICE_NAME,
        SliceMode::Coexist => annotation::COEXIST_SERVICE_NAME,
    };
    let is_correct = |slice: &Slice| {
        let labels = &slice.content.labels;
        slice.resource_version.is_none()
            || labels.value(name_label) == Some(&input.service.key.name)
                && labels.value(annotation::MANAGED_BY).is_some_and(|name| name == mode.managed_by())
    };
    if input.slices.iter().all(is_correct) {
        return;
    }
    let find = |key: &ObjectKey| input.slices.iter().find(|slice| slice.key == *key);
    let (correct, wrong) =
        std::mem::take(&mut plan.unchanged).into_iter().partition(|key| find(key).is_none_or(is_correct));
    plan.unchanged = correct;
    let wrong: Vec<ObjectKey> = wrong;
    let labels = desired(input.service, mode);
    for slice in wrong.iter().filter_map(find) {
        let labels = for_zone(&labels, slice.for_zone());
        let content = SliceContent { labels, ..slice.content.clone() };
        plan.updates.push((slice.key.clone(), content));
    }
}
