//! Slices that left the view of a node with `--watch-own-zone`: their UDP flows stay for a while, because a label may have
//! changed, and not an endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use model::{ObjectKey, ServiceKey, Slice};
use plan::subsetting::FLOWS_KEPT;

/// Most slices that are remembered; flows of others are deleted at once, as without views.
const MAX_DEPARTED: usize = 10_000;

/// The slices that left, by their keys.
#[derive(Default)]
pub(super) struct DepartedSlices {
    by_key: BTreeMap<ObjectKey, (ServiceKey, Slice, Instant)>,
}

impl DepartedSlices {
    pub(super) fn add(&mut self, service: ServiceKey, slice: &Slice, now: Instant) {
        if self.by_key.len() < MAX_DEPARTED {
            self.by_key.insert(slice.key.clone(), (service, slice.clone(), now + FLOWS_KEPT));
        }
    }

    /// A slice came back.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        self.by_key.remove(key);
    }

    pub(super) fn of(&self, service: &ServiceKey) -> Vec<Slice> {
        let own = self.by_key.values().filter(|(owner, ..)| owner == service);
        own.map(|(_, slice, _)| slice.clone()).collect()
    }

    /// When the next one is forgotten.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.by_key.values().map(|(_, _, until)| *until).min()
    }

    /// Forgets those whose time is over. Returns their Services, whose flows may be stale now.
    pub(super) fn expire(&mut self, now: Instant) -> BTreeSet<ServiceKey> {
        let mut services = BTreeSet::new();
        self.by_key.retain(|_, (service, _, until)| {
            let stays = *until > now;
            if !stays {
                services.insert(service.clone());
            }
            stays
        });
        services
    }
}
