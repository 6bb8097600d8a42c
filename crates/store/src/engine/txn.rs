//! One caller's transaction. Changes are staged and applied to the tables only if the closure succeeds, so that a closure
//! that refuses or panics does not affect the rest of the group commit.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::error::{StorageError, TxnError};
use super::key::{ResourceId, Revision, StoreKey, StoredObject};
use super::row::Row;
use super::tables::WriteTables;

/// The precondition of a put or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No precondition.
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

/// The reads of a transaction.
pub(super) trait TxnReader {
    fn revision_of(&self, key: &StoreKey) -> Result<Option<Revision>, StorageError>;
    fn object(&self, key: &StoreKey) -> Result<Option<StoredObject>, StorageError>;
    fn objects(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
    ) -> Result<Vec<StoredObject>, StorageError>;
    fn expired(&self, now: u64, limit: usize) -> Result<Vec<StoreKey>, StorageError>;
}

impl TxnReader for WriteTables<'_> {
    fn revision_of(&self, key: &StoreKey) -> Result<Option<Revision>, StorageError> {
        Ok(self.head(key)?.filter(|head| head.alive).map(|head| Revision(head.revision)))
    }

    fn object(&self, key: &StoreKey) -> Result<Option<StoredObject>, StorageError> {
        WriteTables::object(self, key)
    }

    fn objects(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
    ) -> Result<Vec<StoredObject>, StorageError> {
        WriteTables::objects(self, resource, namespace)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<StoreKey>, StorageError> {
        WriteTables::expired(self, now, limit)
    }
}

/// A transaction over any number of objects. It sees every acknowledged write, and its own changes.
///
/// Other writes wait while it runs: compute little, and never block.
pub struct Txn<'a> {
    reader: &'a dyn TxnReader,
    revision: Revision,
    staged: BTreeMap<StoreKey, Option<StoredObject>>,
    rows: Vec<Row>,
    compact_to: Option<Revision>,
    /// Whether it is accepted on a full disk, whatever it does.
    allowed_on_full_disk: bool,
    /// Versions that it read: those that it replaces are not read again.
    cached: RefCell<Vec<CachedVersion>>,
}

/// A version that a transaction read.
#[derive(Clone, Debug)]
pub(super) struct CachedVersion {
    pub revision: u64,
    pub expires: Option<u64>,
    pub json: Bytes,
}

/// Versions that a transaction keeps: it reads what it replaces last.
const CACHED: usize = 16;

/// The result of a transaction.
pub(super) struct StagedWrites {
    pub rows: Vec<Row>,
    pub compact_to: Option<Revision>,
    pub cached: Vec<CachedVersion>,
    /// Whether it is accepted on a full disk: it only deletes, or was allowed.
    pub allowed_on_full_disk: bool,
}

impl<'a> Txn<'a> {
    pub(super) fn new(reader: &'a dyn TxnReader, revision: Revision) -> Txn<'a> {
        let (staged, rows, cached) = (BTreeMap::new(), Vec::new(), RefCell::default());
        Txn { reader, revision, staged, rows, compact_to: None, allowed_on_full_disk: false, cached }
    }

    /// The newest revision, including this transaction's changes.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision of the next put or delete, if the transaction succeeds.
    pub fn next_revision(&self) -> Revision {
        self.revision.next()
    }

    /// An object, including this transaction's changes.
    pub fn get(&self, key: &StoreKey) -> Result<Option<StoredObject>, StorageError> {
        match self.staged.get(key) {
            Some(staged) => Ok(staged.clone()),
            None => {
                let found = self.reader.object(key)?;
                if let Some(stored) = &found {
                    self.remember(stored);
                }
                Ok(found)
            }
        }
    }

    /// The revision of an object, including this transaction's changes; cheaper than reading the object.
    pub fn revision_of(&self, key: &StoreKey) -> Result<Option<Revision>, StorageError> {
        match self.staged.get(key) {
            Some(staged) => Ok(staged.as_ref().map(|stored| stored.revision)),
            None => self.reader.revision_of(key),
        }
    }

    /// Passes a version that was read before the transaction, by [`Engine::get`](super::Engine::get): if the transaction
    /// replaces it, it is not read again.
    pub fn remember(&self, stored: &StoredObject) {
        let mut cached = self.cached.borrow_mut();
        cached.truncate(CACHED - 1);
        let StoredObject { revision, expires, json, .. } = stored;
        cached.push(CachedVersion { revision: revision.0, expires: *expires, json: json.clone() });
    }

    /// All objects of a resource, or of one namespace of it, in the order of their keys.
    pub fn list(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
    ) -> Result<Vec<StoredObject>, StorageError> {
        let mut objects: BTreeMap<StoreKey, StoredObject> = BTreeMap::new();
        for stored in self.reader.objects(resource, namespace)? {
            objects.insert(stored.key.clone(), stored);
        }
        let wanted = |key: &StoreKey| {
            key.resource == resource && namespace.is_none_or(|wanted| *wanted == *key.namespace)
        };
        for (key, staged) in self.staged.iter().filter(|(key, _)| wanted(key)) {
            match staged {
                Some(stored) => objects.insert(key.clone(), stored.clone()),
                None => objects.remove(key),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// Creates or replaces an object; returns its new revision.
    pub fn put(&mut self, key: StoreKey, json: Bytes, expect: Expect) -> Result<Revision, TxnError> {
        self.put_until(key, json, expect, None)
    }

    /// Creates or replaces an object that expires, in seconds since 1970. The expiry belongs to this version: a later put
    /// without one keeps the object.
    pub fn put_until(
        &mut self,
        key: StoreKey,
        json: Bytes,
        expect: Expect,
        expires: Option<u64>,
    ) -> Result<Revision, TxnError> {
        // Without a precondition nothing needs to be read.
        if expect != Expect::Anything {
            expect.check(self.revision_of(&key)?)?;
        }
        let revision = self.next_revision();
        // As it is read back: zero means never on disk.
        let expires = expires.map(|at| at.max(1));
        let stored = StoredObject { key: key.clone(), revision, expires, json: json.clone() };
        self.stage(Row { key, deleted: false, previous: 0, expires, sealed: false, json }, Some(stored));
        Ok(revision)
    }

    /// Deletes an object. `last` is the final state for watchers, for instance with the revision of the deletion inside;
    /// without it they see the last version.
    pub fn delete(
        &mut self,
        key: &StoreKey,
        last: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, TxnError> {
        let Some(found) = self.get(key)? else { return Err(TxnError::Conflict { found: None }) };
        expect.check(Some(found.revision))?;
        let revision = self.next_revision();
        let json = last.unwrap_or(found.json);
        let key = key.clone();
        self.stage(Row { key, deleted: true, previous: 0, expires: None, sealed: false, json }, None);
        Ok(revision)
    }

    fn stage(&mut self, row: Row, stored: Option<StoredObject>) {
        self.revision = self.revision.next();
        self.staged.insert(row.key.clone(), stored);
        self.rows.push(row);
    }

    /// Deletes expired objects, at most `limit`, oldest first; `now` is in seconds since 1970. `last` makes the final
    /// state for watchers, from the last version and the revision of the deletion. Returns how many were deleted.
    pub fn expire(
        &mut self,
        now: u64,
        limit: usize,
        last: impl Fn(&StoredObject, Revision) -> Bytes,
    ) -> Result<usize, TxnError> {
        let keys = self.reader.expired(now, limit)?;
        for key in &keys {
            if let Some(stored) = self.get(key)? {
                let json = last(&stored, self.next_revision());
                self.delete(key, Some(json), Expect::At(stored.revision))?;
            }
        }
        Ok(keys.len())
    }

    /// Says that the changes are accepted on a full disk, as deletes are: they are part of a deletion, or few.
    pub fn allow_on_full_disk(&mut self) {
        self.allowed_on_full_disk = true;
    }

    pub(super) fn compact_to(&mut self, to: Revision) {
        self.compact_to = Some(to);
    }

    pub(super) fn into_parts(self) -> StagedWrites {
        let allowed_on_full_disk = self.allowed_on_full_disk || self.rows.iter().all(|row| row.deleted);
        let cached = self.cached.into_inner();
        StagedWrites { rows: self.rows, compact_to: self.compact_to, cached, allowed_on_full_disk }
    }
}
