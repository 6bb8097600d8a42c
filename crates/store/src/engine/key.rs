//! Keys, revisions, stored objects and watch events. The engine never reads an object's JSON; all it knows is here.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// The resource of a key. The number is written to disk: it stays with its kind forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

/// A point in the history of the whole store, the resourceVersion of Kubernetes. Every put and every delete gets the next
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The key of an object. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    pub resource: ResourceId,
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl StoreKey {
    pub fn new(resource: ResourceId, namespace: &str, name: &str) -> StoreKey {
        StoreKey { resource, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for StoreKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}/{}", self.resource.0, self.namespace, self.name)
    }
}

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    pub key: StoreKey,
    /// The revision that wrote it.
    pub revision: Revision,
    /// When it expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// The bytes that were put. Writers take the resourceVersion inside from
    /// [`Txn::next_revision`](super::Txn::next_revision), so that reads can return the bytes unchanged.
    pub json: Bytes,
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEventType {
    Added,
    Modified,
    Deleted,
}

/// One change of one object, as watchers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    pub key: StoreKey,
    /// The revision of the change, also of a deletion.
    pub revision: Revision,
    pub kind: WatchEventType,
    /// The object after the change; for a deletion, the final state that the writer gave.
    pub json: Bytes,
    /// The object before the change: a selector may have matched it.
    pub before: Option<Bytes>,
    pub(super) expires: Option<u64>,
    pub(super) memo: EventMemo,
}

/// A value that the first reader derived from an event, for the other readers. It is no part of the event, so any two are
/// equal.
#[derive(Clone, Default)]
pub(super) struct EventMemo(OnceLock<Arc<dyn Any + Send + Sync>>);

impl PartialEq for EventMemo {
    fn eq(&self, _: &EventMemo) -> bool {
        true
    }
}

impl Eq for EventMemo {}

impl fmt::Debug for EventMemo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("EventMemo")
    }
}

impl WatchEvent {
    /// The value of `make`, computed once for all readers that ask for this type.
    pub(crate) fn memo<T: Send + Sync + 'static>(&self, make: impl Fn() -> T) -> Arc<T> {
        let memo = self.memo.0.get_or_init(|| Arc::new(make()));
        memo.clone().downcast().unwrap_or_else(|_| Arc::new(make()))
    }

    /// The object after the change; `None` after a deletion.
    pub(super) fn stored(&self) -> Option<StoredObject> {
        (self.kind != WatchEventType::Deleted).then(|| StoredObject {
            key: self.key.clone(),
            revision: self.revision,
            expires: self.expires,
            json: self.json.clone(),
        })
    }

    /// Its size in memory.
    pub(super) fn memory(&self) -> usize {
        let names = self.key.namespace.len() + self.key.name.len();
        size_of::<WatchEvent>() + names + self.json.len() + self.before.as_ref().map_or(0, Bytes::len)
    }
}
