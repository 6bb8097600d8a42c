//! One caller's transaction: changes are staged beside the tables and reach them only if the caller's closure
//! agrees. So a closure that refuses, or panics, leaves nothing behind for the others in the same commit.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::failure::{Failure, TxnError};
use super::key::{Key, ResourceId, Revision, Stored};
use super::row::Row;
use super::tables::WriteTables;

/// What the object has to be like for a put or a delete to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever it is.
    Anything,
    /// It must not exist.
    Absent,
    /// It must exist.
    Present,
    /// It must exist at exactly this revision.
    At(Revision),
}

impl Expect {
    fn check(self, found: Option<Revision>) -> Result<(), TxnError> {
        let holds = match self {
            Expect::Anything => true,
            Expect::Absent => found.is_none(),
            Expect::Present => found.is_some(),
            Expect::At(wanted) => found == Some(wanted),
        };
        if holds { Ok(()) } else { Err(TxnError::Conflict { found }) }
    }
}

/// What a transaction can see of the tables.
pub(super) trait View {
    fn revision_of(&self, key: &Key) -> Result<Option<Revision>, Failure>;
    fn object(&self, key: &Key) -> Result<Option<Stored>, Failure>;
    fn objects(&self, resource: ResourceId, namespace: Option<&str>) -> Result<Vec<Stored>, Failure>;
    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Key>, Failure>;
}

impl View for WriteTables<'_> {
    fn revision_of(&self, key: &Key) -> Result<Option<Revision>, Failure> {
        Ok(self.head(key)?.filter(|head| head.alive).map(|head| Revision(head.revision)))
    }

    fn object(&self, key: &Key) -> Result<Option<Stored>, Failure> {
        WriteTables::object(self, key)
    }

    fn objects(&self, resource: ResourceId, namespace: Option<&str>) -> Result<Vec<Stored>, Failure> {
        WriteTables::objects(self, resource, namespace)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Key>, Failure> {
        WriteTables::expired(self, now, limit)
    }
}

/// A transaction over any number of objects. It sees all that was acknowledged before it, and its own changes.
///
/// It runs on the writer's thread while other writes wait: read and write through it, compute little, and
/// wait for nothing.
pub struct Txn<'a> {
    view: &'a dyn View,
    revision: Revision,
    staged: BTreeMap<Key, Option<Stored>>,
    rows: Vec<Row>,
    compact_to: Option<Revision>,
    /// The versions that it read, so that those which it replaces need not be read again.
    seen: RefCell<Vec<Seen>>,
}

/// What a transaction remembers of a version that it read; the revision says which.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub revision: u64,
    pub expires: Option<u64>,
    pub json: Bytes,
}

/// How many versions a transaction remembers: it reads what it will replace last.
const REMEMBERED: usize = 16;

/// What a transaction leaves to be done.
pub(super) struct Parts {
    pub rows: Vec<Row>,
    pub compact_to: Option<Revision>,
    pub seen: Vec<Seen>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(view: &'a dyn View, revision: Revision) -> Txn<'a> {
        let (staged, rows, seen) = (BTreeMap::new(), Vec::new(), RefCell::default());
        Txn { view, revision, staged, rows, compact_to: None, seen }
    }

    /// The revision of the newest change, with those of this transaction.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision that the next put or delete gets. It is final: if the transaction succeeds, it is that one.
    pub fn next_revision(&self) -> Revision {
        self.revision.next()
    }

    /// An object, as this transaction would leave it.
    pub fn get(&self, key: &Key) -> Result<Option<Stored>, Failure> {
        match self.staged.get(key) {
            Some(staged) => Ok(staged.clone()),
            None => {
                let found = self.view.object(key)?;
                if let Some(stored) = &found {
                    self.remember(stored);
                }
                Ok(found)
            }
        }
    }

    /// The revision of an object, as this transaction would leave it; less work than reading the object.
    pub fn revision_of(&self, key: &Key) -> Result<Option<Revision>, Failure> {
        match self.staged.get(key) {
            Some(staged) => Ok(staged.as_ref().map(|stored| stored.revision)),
            None => self.view.revision_of(key),
        }
    }

    /// Tells of a version that was read before, by [`Engine::get`](super::Engine::get): if it is the one that is to be
    /// replaced, it is not read again.
    pub fn remember(&self, stored: &Stored) {
        let mut seen = self.seen.borrow_mut();
        seen.truncate(REMEMBERED - 1);
        let Stored { revision, expires, json, .. } = stored;
        seen.push(Seen { revision: revision.0, expires: *expires, json: json.clone() });
    }

    /// All objects of a resource, or of one namespace of it, in the order of their keys.
    pub fn list(&self, resource: ResourceId, namespace: Option<&str>) -> Result<Vec<Stored>, Failure> {
        let mut objects: BTreeMap<Key, Stored> = BTreeMap::new();
        for stored in self.view.objects(resource, namespace)? {
            objects.insert(stored.key.clone(), stored);
        }
        let wanted =
            |key: &Key| key.resource == resource && namespace.is_none_or(|wanted| *wanted == *key.namespace);
        for (key, staged) in self.staged.iter().filter(|(key, _)| wanted(key)) {
            match staged {
                Some(stored) => objects.insert(key.clone(), stored.clone()),
                None => objects.remove(key),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// Creates or replaces an object. The result is its new revision.
    pub fn put(&mut self, key: Key, json: Bytes, expect: Expect) -> Result<Revision, TxnError> {
        self.put_until(key, json, expect, None)
    }

    /// Creates or replaces an object that goes by itself at `expires`, in seconds since 1970. The time is the
    /// version's and not the object's: a later put says it again, or the object stays.
    pub fn put_until(
        &mut self,
        key: Key,
        json: Bytes,
        expect: Expect,
        expires: Option<u64>,
    ) -> Result<Revision, TxnError> {
        // Whoever takes anything need not have it read.
        if expect != Expect::Anything {
            expect.check(self.revision_of(&key)?)?;
        }
        let revision = self.next_revision();
        // As it is read back: zero means never on disk.
        let expires = expires.map(|at| at.max(1));
        let stored = Stored { key: key.clone(), revision, expires, json: json.clone() };
        self.stage(Row { key, deleted: false, previous: 0, expires, json }, Some(stored));
        Ok(revision)
    }

    /// Deletes an object. `last` is how watchers shall see it go, for instance with the deletion's revision
    /// inside; without it they see its last version.
    pub fn delete(&mut self, key: &Key, last: Option<Bytes>, expect: Expect) -> Result<Revision, TxnError> {
        let Some(found) = self.get(key)? else { return Err(TxnError::Conflict { found: None }) };
        expect.check(Some(found.revision))?;
        let revision = self.next_revision();
        let json = last.unwrap_or(found.json);
        self.stage(Row { key: key.clone(), deleted: true, previous: 0, expires: None, json }, None);
        Ok(revision)
    }

    fn stage(&mut self, row: Row, stored: Option<Stored>) {
        self.revision = self.revision.next();
        self.staged.insert(row.key.clone(), stored);
        self.rows.push(row);
    }

    /// The keys whose time is up, at most `limit`, the longest due first.
    pub fn expired(&self, now: u64, limit: usize) -> Result<Vec<Key>, Failure> {
        self.view.expired(now, limit)
    }

    pub(super) fn compact_to(&mut self, to: Revision) {
        self.compact_to = Some(to);
    }

    pub(super) fn into_parts(self) -> Parts {
        Parts { rows: self.rows, compact_to: self.compact_to, seen: self.seen.into_inner() }
    }
}
