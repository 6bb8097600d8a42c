//! The nouns of the engine: what an object is called, which revision it has, and what a change is.
//! The engine never looks into an object's JSON; all that it has to know is here.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// Which kind of object a key belongs to.
///
/// The number is written to disk: once given to a kind it stays that kind's for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

/// A point in the history of the whole store; Kubernetes says resourceVersion.
///
/// Every put and every delete gets the next number, so between two revisions no change can hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of the change after this one.
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The name of an object. Objects outside of namespaces have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind of object.
    pub resource: ResourceId,
    /// Its namespace, or nothing.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl Key {
    /// A key from its parts.
    pub fn new(resource: ResourceId, namespace: &str, name: &str) -> Key {
        Key { resource, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}/{}", self.resource.0, self.namespace, self.name)
    }
}

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub key: Key,
    /// The revision that wrote it.
    pub revision: Revision,
    /// When it goes by itself, in seconds since 1970; `None` for objects that stay.
    pub expires: Option<u64>,
    /// The bytes that were put. A writer that wants the resourceVersion inside takes it from
    /// [`Txn::next_revision`](super::Txn::next_revision); then reads can hand the bytes out as they are.
    pub json: Bytes,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It was there before.
    Modified,
    /// It is gone.
    Deleted,
}

/// One change, as watchers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub key: Key,
    /// The revision of the change itself; also for a deletion.
    pub revision: Revision,
    /// What happened.
    pub kind: ChangeKind,
    /// The object after the change; for a deletion, its last state as the deleter wanted it shown.
    pub json: Bytes,
    /// The object before the change, so that a selector can tell who leaves its view.
    pub before: Option<Bytes>,
    /// When the object goes by itself.
    pub(super) expires: Option<u64>,
    /// What the first reader made of it.
    pub(super) note: Note,
}

/// A place for what a reader made of a change, so that the other readers need not make it again. Says nothing about
/// the change itself, so any two are equal.
#[derive(Clone, Default)]
pub(super) struct Note(OnceLock<Arc<dyn Any + Send + Sync>>);

impl PartialEq for Note {
    fn eq(&self, _: &Note) -> bool {
        true
    }
}

impl Eq for Note {}

impl fmt::Debug for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Note")
    }
}

impl Change {
    /// What `make` makes of the change, made once for all who ask. Whoever asks for another type makes his own.
    pub fn noted<T: Send + Sync + 'static>(&self, make: impl Fn() -> T) -> Arc<T> {
        let note = self.note.0.get_or_init(|| Arc::new(make()));
        note.clone().downcast().unwrap_or_else(|_| Arc::new(make()))
    }

    /// The object as the change left it, if it did.
    pub(super) fn stored(&self) -> Option<Stored> {
        (self.kind != ChangeKind::Deleted).then(|| Stored {
            key: self.key.clone(),
            revision: self.revision,
            expires: self.expires,
            json: self.json.clone(),
        })
    }

    /// What the change costs in memory.
    pub(super) fn weight(&self) -> usize {
        let names = self.key.namespace.len() + self.key.name.len();
        size_of::<Change>() + names + self.json.len() + self.before.as_ref().map_or(0, Bytes::len)
    }
}
