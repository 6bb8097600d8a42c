//! Encoded batches that equal watches share. Watches of one kind, namespace, selectors and form send the same lines: the
//! first one encodes a batch of events, and the others of the same wave send the same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::super::ResourceRequest;
use super::super::negotiation::ResponseForm;
use super::gzip::EncodedEvents;
use crate::engine::Revision;

/// Batches that are kept: watches that keep up need the newest few of theirs.
const MAX_BATCHES: usize = 256;
const MAX_BYTES: usize = 4 << 20;

/// Watches with equal specs send equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WatchSpec {
    group: &'static str,
    plural: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    labels: String,
    fields: String,
    metadata_only: bool,
    drops_managed_fields: bool,
    gzip: bool,
    protobuf: bool,
}

/// The batches of all watches.
#[derive(Clone, Default)]
pub(in super::super) struct SharedBatches(Arc<Mutex<BatchState>>);

#[derive(Default)]
struct BatchState {
    /// The number of each spec with an open watch.
    specs: BTreeMap<WatchSpec, Weak<u64>>,
    next_spec: u64,
    /// Number of specs at which those without a watch are removed.
    prune_at: usize,
    batches: BTreeMap<BatchKey, (Revision, EncodedEvents)>,
    order: VecDeque<BatchKey>,
    bytes: usize,
}

/// The spec of a batch, the revision before it, and the newest revision when it was encoded. A batch may end earlier, so
/// its end is stored with it.
type BatchKey = (u64, Revision, Revision);

/// The handle of one watch to the batches of its spec.
pub(super) struct BatchHandle {
    batches: SharedBatches,
    spec: Arc<u64>,
}

impl SharedBatches {
    fn lock(&self) -> MutexGuard<'_, BatchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle for a watch. Tables are not shared: the first one differs from the rest, and ages depend on the time.
    pub(super) fn subscribe(&self, request: &ResourceRequest) -> Option<BatchHandle> {
        if request.accept.form == ResponseForm::Table {
            return None;
        }
        let text = |name: &str| request.query.value(name).map(str::to_owned).unwrap_or_default();
        let spec = WatchSpec {
            group: request.info.kind.group,
            plural: request.info.kind.plural,
            namespace: request.info.namespace.clone(),
            name: request.info.name.clone(),
            labels: text("labelSelector"),
            fields: text("fieldSelector"),
            metadata_only: request.accept.form == ResponseForm::Metadata,
            drops_managed_fields: request.accept.drops_managed_fields,
            gzip: request.accept.gzip,
            protobuf: request.accept.protobuf,
        };
        Some(BatchHandle { batches: self.clone(), spec: self.lock().number(spec) })
    }
}

impl BatchState {
    fn number(&mut self, spec: WatchSpec) -> Arc<u64> {
        if let Some(known) = self.specs.get(&spec).and_then(Weak::upgrade) {
            return known;
        }
        if self.specs.len() >= self.prune_at {
            self.specs.retain(|_, number| number.strong_count() > 0);
            self.prune_at = self.specs.len() * 2 + 16;
        }
        let number = Arc::new(self.next_spec);
        self.next_spec += 1;
        self.specs.insert(spec, Arc::downgrade(&number));
        number
    }

    fn keep(&mut self, at: BatchKey, batch: (Revision, EncodedEvents)) {
        if self.batches.contains_key(&at) {
            return;
        }
        self.bytes += batch.1.bytes.len();
        self.batches.insert(at, batch);
        self.order.push_back(at);
        while self.order.len() > MAX_BATCHES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some((_, events)) = self.batches.remove(&oldest) {
                self.bytes -= events.bytes.len();
            }
        }
    }
}

impl BatchHandle {
    /// The end and the events of a batch, if another watch encoded it.
    pub(super) fn between(&self, from: Revision, to: Revision) -> Option<(Revision, EncodedEvents)> {
        self.batches.lock().batches.get(&(*self.spec, from, to)).cloned()
    }

    /// Keeps a batch for equal watches, if there are any.
    pub(super) fn keep(&self, from: Revision, to: Revision, end: Revision, events: &EncodedEvents) {
        if Arc::strong_count(&self.spec) > 1 && end > from {
            self.batches.lock().keep((*self.spec, from, to), (end, events.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn events(bytes: impl Into<Bytes>) -> EncodedEvents {
        EncodedEvents::plain(bytes.into())
    }

    fn spec(name: &str) -> WatchSpec {
        let namespace = Some("default".to_owned());
        let (labels, fields) = (String::new(), String::new());
        let name = Some(name.to_owned());
        let (metadata_only, drops_managed_fields, gzip, protobuf) = (false, false, false, false);
        let (group, plural) = ("", "pods");
        WatchSpec {
            group,
            plural,
            namespace,
            name,
            labels,
            fields,
            metadata_only,
            drops_managed_fields,
            gzip,
            protobuf,
        }
    }

    fn subscribe(batches: &SharedBatches, name: &str) -> BatchHandle {
        BatchHandle { batches: batches.clone(), spec: batches.lock().number(spec(name)) }
    }

    #[test]
    fn equal_watches_share_batches_and_others_do_not() {
        let batches = SharedBatches::default();
        let [first, second, other] = ["a", "a", "b"].map(|name| subscribe(&batches, name));
        let (one, three, nine) = (Revision(1), Revision(3), Revision(9));
        first.keep(one, nine, three, &events("two"));
        let between =
            |handle: &BatchHandle, from, to| handle.between(from, to).map(|(end, e)| (end, e.bytes));
        assert_eq!(between(&second, one, nine), Some((three, Bytes::from_static(b"two"))));
        assert_eq!(between(&second, one, three), None, "there were more events when it was encoded");
        assert_eq!(between(&second, three, nine), None);
        assert_eq!(between(&other, one, nine), None);
        other.keep(one, nine, three, &events("two"));
        assert_eq!(between(&other, one, nine), None, "there is no equal watch");
    }

    #[test]
    fn batches_and_specs_are_bounded() {
        let batches = SharedBatches::default();
        let [first, second] = ["a", "a"].map(|name| subscribe(&batches, name));
        let large = events(vec![0; 1 << 20]);
        for revision in 0..20 {
            first.keep(Revision(revision), Revision(20), Revision(revision + 1), &large);
        }
        assert!(batches.lock().bytes <= MAX_BYTES);
        let has = |from| second.between(Revision(from), Revision(20)).is_some();
        assert!(!has(0) && has(19));
        for revision in 100..1_000 {
            let to = Revision(revision + 1);
            first.keep(Revision(revision), to, to, &events("x"));
        }
        assert_eq!(batches.lock().order.len(), MAX_BATCHES);
        for name in 0..1_000 {
            subscribe(&batches, &format!("gone-{name}"));
        }
        assert!(batches.lock().specs.len() < 64);
    }
}
