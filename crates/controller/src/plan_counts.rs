//! The metrics of a plan.

use std::collections::BTreeMap;

use model::{Service, Slice};
use plan::hints::HintOutcome;
use plan::slices::SlicePlan;

use super::last_sync::ServiceCounts;
use super::metrics::SyncCounts;
use super::slice_writes::find;

/// The highest resourceVersion of the stored slices.
pub(super) fn highest_revision(slices: &[Slice]) -> u64 {
    let versions = slices.iter().filter_map(|slice| slice.resource_version.as_ref()?.parse().ok());
    versions.max().unwrap_or(0)
}

/// The contribution of a Service to the gauges after the plan is written.
pub(super) fn counts(
    service: &Service,
    plan: &SlicePlan,
    outcomes: &[HintOutcome],
    stored: &[Slice],
    max_endpoints: usize,
) -> ServiceCounts {
    let kept = plan.unchanged.iter().filter_map(|key| find(stored, key)).map(|slice| &slice.content);
    let contents = plan.creates.iter().chain(plan.updates.iter().map(|(_, content)| content)).chain(kept);
    let mut slices = 0;
    let mut endpoints_by_group: BTreeMap<_, usize> = BTreeMap::new();
    for content in contents {
        slices += 1;
        let group = (content.address_type.as_str(), &content.ports, content.for_zone());
        *endpoints_by_group.entry(group).or_default() += content.endpoints.len();
    }
    let desired: usize = endpoints_by_group.values().map(|n| n.div_ceil(max_endpoints.max(1))).sum();
    let endpoints: usize = endpoints_by_group.values().sum();
    ServiceCounts {
        slices,
        desired_slices: desired.max(usize::from(slices > 0)) as i64,
        endpoints: endpoints as i64,
        mechanism: outcomes.first().map(|o| o.mechanism).unwrap_or_default(),
        held_back: outcomes.iter().find_map(|o| o.held_back.map(|(reason, _)| reason)),
        traffic_distribution: service.traffic_distribution.clone(),
    }
}

/// The changes of a plan.
pub(super) fn count_changes(plan: &SlicePlan, stored: &[Slice]) -> SyncCounts {
    let mut changes = SyncCounts {
        creates: plan.creates.len(),
        updates: plan.updates.len(),
        deletes: plan.deletes.len(),
        ..SyncCounts::default()
    };
    if changes.slices() == 0 {
        return changes;
    }
    let written = plan.creates.iter().chain(plan.updates.iter().map(|(_, content)| content));
    let replaced = plan.updates.iter().map(|(key, _)| key).chain(&plan.deletes);
    let before: BTreeMap<_, _> = replaced
        .filter_map(|key| find(stored, key))
        .flat_map(|slice| &slice.content.endpoints)
        .map(|endpoint| (endpoint.addresses.first(), endpoint))
        .collect();
    let mut stayed = 0;
    for endpoint in written.flat_map(|content| &content.endpoints) {
        match before.get(&endpoint.addresses.first()) {
            None => changes.added += 1,
            Some(old) => {
                stayed += 1;
                changes.reallocated += usize::from(old.zone_hints() != endpoint.zone_hints());
            }
        }
    }
    changes.removed = before.len().saturating_sub(stayed);
    changes
}
