//! Own writes that the watch cache does not contain yet (semantics B6, pitfall 36).
//!
//! A plan from a cache that lags behind would create slices a second time. Each write is expected until the cache shows
//! it or a newer version, or until a timeout.

use std::collections::BTreeMap;
use std::time::Duration;

use model::plant::{PlantedBug, is_planted};
use model::{ServiceKey, Slice, Uid};

use super::MonotonicTime;

/// Timeout of an expectation: while a watch was disconnected, a slice can be deleted unseen.
const EXPECTATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The version of a slice: by resourceVersion if it is a number, otherwise by generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceVersion {
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub revision: Option<u64>,
}

impl SliceVersion {
    pub fn of(slice: &Slice) -> Self {
        let revision = slice.resource_version.as_ref().and_then(|version| version.parse().ok());
        Self { generation: slice.generation, revision }
    }

    fn is_older_than(self, other: Self) -> bool {
        match (self.revision, other.revision) {
            (Some(a), Some(b)) => is_less(a, b),
            _ => self.generation < other.generation,
        }
    }
}

fn is_less(a: u64, b: u64) -> bool {
    if is_planted(PlantedBug::RevisionAsText) { a.to_string() < b.to_string() } else { a < b }
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    AtLeast(SliceVersion),
    Deleted,
}

#[derive(Clone, Copy, Debug)]
struct Expectation {
    expected: Expected,
    since: MonotonicTime,
    /// Whether the cache has shown it.
    seen: bool,
}

/// Own writes, by Service and UID of the slice.
#[derive(Debug, Default)]
pub struct Expectations {
    entries: BTreeMap<ServiceKey, BTreeMap<Uid, Expectation>>,
    /// The watch has reached this version.
    newest: Option<u64>,
}

impl Expectations {
    /// Records a create or update and the version in its response.
    pub fn wrote(&mut self, service: &ServiceKey, slice: Uid, version: SliceVersion, now: MonotonicTime) {
        // The watch was faster than the response, and may have reported a deletion since then.
        if version
            .revision
            .is_some_and(|revision| self.newest.is_some_and(|newest| !is_less(newest, revision)))
        {
            self.saw_gone(service, Some(&slice));
            return;
        }
        self.expect(
            service,
            slice,
            Expectation { expected: Expected::AtLeast(version), since: now, seen: false },
        );
    }

    /// Records a delete.
    pub fn deleted(&mut self, service: &ServiceKey, slice: Uid, now: MonotonicTime) {
        self.expect(service, slice, Expectation { expected: Expected::Deleted, since: now, seen: false });
    }

    fn expect(&mut self, service: &ServiceKey, slice: Uid, entry: Expectation) {
        self.entries.entry(service.clone()).or_default().insert(slice, entry);
    }

    /// Records the version that the watch has reached. Not for items of a list, which are not ordered by version.
    pub fn reached(&mut self, version: SliceVersion) {
        let is_newer = |revision: &u64| self.newest.is_none_or(|newest| is_less(newest, *revision));
        self.newest = version.revision.filter(is_newer).or(self.newest);
    }

    /// Observes a slice in the cache. Returns true if it is not one of our writes.
    pub fn saw(&mut self, service: &ServiceKey, slice: &Slice) -> bool {
        let uid = slice.uid.as_ref();
        let entry = uid.and_then(|uid| self.entries.get_mut(service)?.get_mut(uid));
        let Some(entry) = entry else { return true };
        let shown = SliceVersion::of(slice);
        match entry.expected {
            // Older versions may arrive before the deletion.
            Expected::Deleted => false,
            Expected::AtLeast(version) if shown.is_older_than(version) => false,
            Expected::AtLeast(version) => {
                let foreign = version != shown;
                entry.expected = Expected::AtLeast(shown);
                entry.seen = true;
                foreign
            }
        }
    }

    /// Observes a deletion. Returns true if it is not ours.
    pub fn saw_gone(&mut self, service: &ServiceKey, slice: Option<&Uid>) -> bool {
        let Some(entries) = self.entries.get_mut(service) else { return true };
        let entry = slice.and_then(|uid| entries.remove(uid));
        if entries.is_empty() {
            self.entries.remove(service);
        }
        !matches!(entry, Some(Expectation { expected: Expected::Deleted, .. }))
    }

    /// Whether the cached slices of a Service are older than our writes: then planning has to wait.
    pub fn is_stale(&mut self, service: &ServiceKey, cached: &[Slice], now: MonotonicTime) -> bool {
        if is_planted(PlantedBug::SkippedExpectation) {
            return false;
        }
        let Some(entries) = self.entries.get_mut(service) else { return false };
        let shown = |uid: &Uid| cached.iter().find(|slice| slice.uid.as_ref() == Some(uid));
        // The deletion was observed before the expectation was recorded.
        entries.retain(|uid, entry| !matches!(entry.expected, Expected::Deleted) || shown(uid).is_some());
        let stale = entries.iter().any(|(uid, entry)| {
            let behind = match (entry.expected, shown(uid)) {
                // Semantics B6: do not wait for a slice that is being deleted.
                (_, Some(slice)) if slice.deleting => false,
                (Expected::Deleted, slice) => slice.is_some(),
                (Expected::AtLeast(version), Some(slice)) => SliceVersion::of(slice).is_older_than(version),
                (Expected::AtLeast(_), None) => true,
            };
            behind && (entry.seen || entry.since.after(EXPECTATION_TIMEOUT) > now)
        });
        if entries.is_empty() {
            self.entries.remove(service);
        }
        stale
    }

    pub fn forget(&mut self, service: &ServiceKey) {
        self.entries.remove(service);
    }

    /// Number of Services with expectations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
