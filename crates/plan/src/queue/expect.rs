//! What we wrote and the cache has not shown yet (semantics B6, pitfall 36).
//!
//! A plan made from a cache that lags behind our own writes would make slices a second time. So each write is
//! remembered until the cache shows it, or something newer, or until it has had time enough.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{ServiceKey, Slice, Uid};

use super::Moment;

/// After this time a write that never showed up counts as undone by somebody: while a watch was down, a slice can
/// come and go unseen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which version of an object: by its resourceVersion where that is a number, else by its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub revision: Option<u64>,
}

impl Version {
    /// The version of a stored slice.
    pub fn of(slice: &Slice) -> Self {
        let revision = slice.resource_version.as_ref().and_then(|version| version.parse().ok());
        Self { generation: slice.generation, revision }
    }

    fn is_older_than(self, other: Self) -> bool {
        match (self.revision, other.revision) {
            (Some(a), Some(b)) => a < b,
            _ => self.generation < other.generation,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The slice, at least as new as this.
    Version(Version),
    /// No slice.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    expected: Expected,
    since: Moment,
    /// Whether the cache has shown it.
    seen: bool,
}

/// Our writes, by Service and by the slice's identity.
#[derive(Debug, Default)]
pub struct Expectations {
    entries: BTreeMap<ServiceKey, BTreeMap<Uid, Entry>>,
    /// Everything up to this version has been shown.
    newest: Option<u64>,
}

impl Expectations {
    /// We wrote a slice, and the API answered with this version of it.
    pub fn wrote(&mut self, service: &ServiceKey, slice: Uid, version: Version, now: Moment) {
        // The watch was quicker than the answer, and may have told of the slice's end since then.
        if version.revision.is_some() && version.revision <= self.newest {
            self.saw_gone(service, Some(&slice));
            return;
        }
        self.expect(service, slice, Entry { expected: Expected::Version(version), since: now, seen: false });
    }

    /// We deleted a slice.
    pub fn deleted(&mut self, service: &ServiceKey, slice: Uid, now: Moment) {
        self.expect(service, slice, Entry { expected: Expected::Gone, since: now, seen: false });
    }

    fn expect(&mut self, service: &ServiceKey, slice: Uid, entry: Entry) {
        self.entries.entry(service.clone()).or_default().insert(slice, entry);
    }

    /// A watch has told everything up to this version. What a list shows while it comes is in no such order.
    pub fn reached(&mut self, version: Version) {
        self.newest = self.newest.max(version.revision);
    }

    /// The cache shows a slice. True: it is none of what we wrote, so somebody else did.
    pub fn saw(&mut self, service: &ServiceKey, slice: &Slice) -> bool {
        let uid = slice.uid.as_ref();
        let entry = uid.and_then(|uid| self.entries.get_mut(service)?.get_mut(uid));
        let Some(entry) = entry else { return true };
        let shown = Version::of(slice);
        match entry.expected {
            // Its last versions may still come by before it goes.
            Expected::Gone => false,
            Expected::Version(version) if shown.is_older_than(version) => false,
            Expected::Version(version) => {
                let foreign = version != shown;
                entry.expected = Expected::Version(shown);
                entry.seen = true;
                foreign
            }
        }
    }

    /// The cache lost a slice. True: we did not delete it.
    pub fn saw_gone(&mut self, service: &ServiceKey, slice: Option<&Uid>) -> bool {
        let Some(entries) = self.entries.get_mut(service) else { return true };
        let entry = slice.and_then(|uid| entries.remove(uid));
        if entries.is_empty() {
            self.entries.remove(service);
        }
        !matches!(entry, Some(Entry { expected: Expected::Gone, .. }))
    }

    /// Whether the cached slices of a Service are older than what we wrote: then planning has to wait.
    pub fn is_stale(&mut self, service: &ServiceKey, cached: &[Slice], now: Moment) -> bool {
        let Some(entries) = self.entries.get_mut(service) else { return false };
        let shown = |uid: &Uid| cached.iter().find(|slice| slice.uid.as_ref() == Some(uid));
        // Gone as expected: its end came by before we wrote down that we wanted it.
        entries.retain(|uid, entry| !matches!(entry.expected, Expected::Gone) || shown(uid).is_some());
        let stale = entries.iter().any(|(uid, entry)| {
            let behind = match (entry.expected, shown(uid)) {
                // Semantics B6: a slice that is being deleted is nothing to wait for.
                (_, Some(slice)) if slice.deleting => false,
                (Expected::Gone, slice) => slice.is_some(),
                (Expected::Version(version), Some(slice)) => Version::of(slice).is_older_than(version),
                (Expected::Version(_), None) => true,
            };
            behind && (entry.seen || entry.since.after(PATIENCE) > now)
        });
        if entries.is_empty() {
            self.entries.remove(service);
        }
        stale
    }

    /// The Service and its slices are gone.
    pub fn forget(&mut self, service: &ServiceKey) {
        self.entries.remove(service);
    }

    /// How many Services have entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
