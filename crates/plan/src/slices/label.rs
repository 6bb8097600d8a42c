//! The labels of a slice: the Service's own, and three that consumers rely on (semantics B5).

use std::sync::LazyLock;

use model::{Labels, Name, Service, annotation};

/// The keys and the one value that stand on every slice, held once.
static SERVICE_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::SERVICE_NAME));
static MANAGED_BY: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::MANAGED_BY));
static CONTROLLER_NAME: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::CONTROLLER_NAME));
static HEADLESS: LazyLock<Name> = LazyLock::new(|| Name::new(annotation::HEADLESS));

/// The labels of a Service's slices, and whether a slice with the `existing` ones has to be written for them.
///
/// Kept from upstream although it looks odd: a difference in reserved labels alone is no reason to write.
pub fn labels(service: &Service, existing: Option<&Labels>) -> (Labels, bool) {
    (wanted(service), have_other_own_labels(&service.labels, existing.unwrap_or(&Labels::EMPTY)))
}

/// The labels of a Service's slices.
pub(super) fn wanted(service: &Service) -> Labels {
    let mut pairs: Vec<(Name, Name)> = own(&service.labels).cloned().collect();
    pairs.push((SERVICE_NAME.clone(), service.key.name.clone()));
    pairs.push((MANAGED_BY.clone(), CONTROLLER_NAME.clone()));
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
