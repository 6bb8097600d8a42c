//! The labels of a slice: the Service's own, and three that consumers rely on (semantics B5).

use std::sync::LazyLock;

use model::{Labels, Name, Service, annotation};

use super::Place;

/// The keys and the one value that stand on every slice, held once.
static SERVICE_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::SERVICE_NAME));
static MANAGED_BY: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::MANAGED_BY));
static CONTROLLER_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::CONTROLLER_NAME));
static BESIDE_SERVICE_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::BESIDE_SERVICE_NAME));
static BESIDE_CONTROLLER_NAME: LazyLock<Name> =
    LazyLock::new(|| Name::new(annotation::BESIDE_CONTROLLER_NAME));
static HEADLESS: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::HEADLESS));

/// The labels of a Service's slices, and whether a slice with the `existing` ones has to be written for them.
///
/// Kept from upstream although it looks odd: a difference in reserved labels alone is no reason to write.
pub fn labels(service: &Service, existing: Option<&Labels>) -> (Labels, bool) {
    (
        wanted(service, Place::Alone),
        have_other_own_labels(&service.labels, existing.unwrap_or(&Labels::EMPTY)),
    )
}

/// The labels of a Service's slices, by where they stand.
pub fn labels_at(service: &Service, place: Place) -> Labels {
    wanted(service, place)
}

/// The labels of a Service's slices.
pub(super) fn wanted(service: &Service, place: Place) -> Labels {
    let mut pairs: Vec<(Name, Name)> = own(&service.labels).cloned().collect();
    let (name_label, writer) = match place {
        Place::Alone => (&SERVICE_NAME, &CONTROLLER_NAME),
        Place::Beside => (&BESIDE_SERVICE_NAME, &BESIDE_CONTROLLER_NAME),
    };
    pairs.push(((*name_label).clone(), service.key.name.clone()));
    pairs.push((MANAGED_BY.clone(), (*writer).clone()));
    if service.is_headless() {
        pairs.push((HEADLESS.clone(), Name::default()));
    }
    Labels::from_pairs(pairs)
}

/// Whether two label sets differ in what is not reserved.
pub(super) fn have_other_own_labels(a: &Labels, b: &Labels) -> bool {
    !own(a).eq(own(b))
}

/// Without the reserved ones, whoever set them.
fn own(labels: &Labels) -> impl Iterator<Item = &(Name, Name)> {
    labels.iter().filter(|(key, _)| !annotation::RESERVED_ON_SLICES.contains(&key.as_str()))
}
