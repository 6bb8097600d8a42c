//! Objects in a transaction of the engine. The stored bytes are what clients read, including the resourceVersion, so that
//! reads and watches send them without parsing.

use bytes::Bytes;
use serde_json::Value;

use crate::encoded_object::EncodedObject;
use crate::engine::{Expect, ResourceId, Revision, StorageError, StoreKey, StoredObject, Txn, TxnError};
use crate::kinds::ResourceKind;
use crate::meta;
use crate::name_generator::NameGenerator;
use crate::object_size::{self, MAX_OBJECT};
use crate::status::StatusError;

/// Locks on allocated node ports and load balancer addresses, stored beside the objects of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationLock {
    NodePort,
    LoadBalancerAddress,
}

impl AllocationLock {
    fn resource(self) -> ResourceId {
        // Far above the numbers of kinds, and on disk forever, too.
        ResourceId(match self {
            Self::NodePort => 60_001,
            Self::LoadBalancerAddress => 60_002,
        })
    }
}

/// The objects in one transaction.
pub struct ObjectTxn<'a, 't> {
    txn: &'a mut Txn<'t>,
    /// The time of the write.
    pub now: jiff::Timestamp,
    pub(crate) names: NameGenerator,
}

pub fn key(kind: &ResourceKind, namespace: &str, name: &str) -> StoreKey {
    StoreKey::new(ResourceId(kind.id), namespace, name)
}

pub(crate) fn parse(stored: &StoredObject) -> Result<Value, StatusError> {
    serde_json::from_slice(&stored.json)
        .map_err(|error| StatusError::internal(format!("cannot decode {}: {error}", stored.key)))
}

impl<'a, 't> ObjectTxn<'a, 't> {
    pub(crate) fn new(txn: &'a mut Txn<'t>, now: jiff::Timestamp, names: NameGenerator) -> Self {
        Self { txn, now, names }
    }

    /// An object, if it exists.
    pub fn find(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, StatusError> {
        self.find_stored(kind, namespace, name)?.as_ref().map(parse).transpose()
    }

    /// All objects of a kind, not parsed.
    pub(crate) fn stored(&self, kind: &ResourceKind) -> Result<Vec<StoredObject>, StatusError> {
        self.txn.list(ResourceId(kind.id), None).map_err(storage_error)
    }

    /// An object, not parsed, if it exists.
    pub(crate) fn find_stored(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<StoredObject>, StatusError> {
        self.txn.get(&key(kind, namespace, name)).map_err(storage_error)
    }

    pub(crate) fn has(&self, kind: &ResourceKind, namespace: &str, name: &str) -> Result<bool, StatusError> {
        Ok(self.find_stored(kind, namespace, name)?.is_some())
    }

    /// An object; an error if it does not exist.
    pub fn fetch(&self, kind: &ResourceKind, namespace: &str, name: &str) -> Result<Value, StatusError> {
        self.find(kind, namespace, name)?.ok_or_else(|| StatusError::not_found(kind, name))
    }

    /// All objects of a kind, or of one namespace of it.
    pub fn list(&self, kind: &ResourceKind, namespace: Option<&str>) -> Result<Vec<Value>, StatusError> {
        let stored = self.txn.list(ResourceId(kind.id), namespace).map_err(storage_error)?;
        stored.iter().map(parse).collect()
    }

    /// Creates or replaces an object and sets its resourceVersion.
    pub fn put(&mut self, kind: &ResourceKind, object: &mut Value) -> Result<(), StatusError> {
        self.store(kind, object).map(drop)
    }

    /// As [`ObjectTxn::put`]; returns the stored bytes for the response.
    pub(crate) fn store(&mut self, kind: &ResourceKind, object: &mut Value) -> Result<Bytes, StatusError> {
        self.stamp(object);
        let key = key(kind, meta::text(object, "namespace"), meta::text(object, "name"));
        let json = bytes(object);
        if json.len() > MAX_OBJECT {
            let before = self.txn.get(&key).map_err(storage_error)?.map_or(0, |stored| stored.json.len());
            object_size::check_stored(json.len(), before)?;
        }
        self.txn.put_until(key, json.clone(), Expect::Anything, self.expiry(kind)).map_err(txn_error)?;
        Ok(json)
    }

    /// Replaces a version that was read before; `None` if it is no longer the newest.
    pub(crate) fn replace(
        &mut self,
        kind: &ResourceKind,
        before: &StoredObject,
        encoded: EncodedObject,
    ) -> Result<Option<(Bytes, Revision)>, StatusError> {
        let json = encoded.finish(self.txn.next_revision().0);
        object_size::check_stored(json.len(), before.json.len())?;
        self.txn.remember(before);
        let expect = Expect::At(before.revision);
        match self.txn.put_until(before.key.clone(), json.clone(), expect, self.expiry(kind)) {
            Ok(revision) => Ok(Some((json, revision))),
            Err(TxnError::Conflict { .. }) => Ok(None),
            Err(error) => Err(txn_error(error)),
        }
    }

    /// When an object of a kind that is written now expires.
    fn expiry(&self, kind: &ResourceKind) -> Option<u64> {
        kind.lifetime.map(|lifetime| seconds(self.now).saturating_add(lifetime))
    }

    /// Deletes expired objects, at most `limit`; true if there may be more.
    pub(crate) fn expire(&mut self, limit: usize) -> Result<bool, StatusError> {
        let last = |stored: &StoredObject, revision: Revision| {
            let mut object: Value = serde_json::from_slice(&stored.json).unwrap_or_default();
            meta::set_resource_version(&mut object, revision.0);
            bytes(&object)
        };
        self.txn.expire(seconds(self.now), limit, last).map(|expired| expired == limit).map_err(txn_error)
    }

    /// See [`Txn::allow_on_full_disk`].
    pub(crate) fn allow_on_full_disk(&mut self) {
        self.txn.allow_on_full_disk();
    }

    /// Removes an object; watchers see it with the resourceVersion of the removal.
    pub fn remove(&mut self, kind: &ResourceKind, object: &mut Value) -> Result<(), StatusError> {
        self.stamp(object);
        let key = key(kind, meta::text(object, "namespace"), meta::text(object, "name"));
        self.txn.delete(&key, Some(bytes(object)), Expect::Anything).map(drop).map_err(txn_error)
    }

    fn stamp(&self, object: &mut Value) {
        meta::set_resource_version(object, self.txn.next_revision().0);
    }

    pub(crate) fn holder(&self, lock: AllocationLock, name: &str) -> Result<Option<String>, StatusError> {
        let stored = self.txn.get(&StoreKey::new(lock.resource(), "", name)).map_err(storage_error)?;
        Ok(stored.map(|stored| String::from_utf8_lossy(&stored.json).into_owned()))
    }

    /// All locks of a kind: name and holder of each.
    pub(crate) fn locks(&self, lock: AllocationLock) -> Result<Vec<(String, String)>, StatusError> {
        let stored = self.txn.list(lock.resource(), None).map_err(storage_error)?;
        let pair = |stored: StoredObject| {
            (stored.key.name.to_string(), String::from_utf8_lossy(&stored.json).into_owned())
        };
        Ok(stored.into_iter().map(pair).collect())
    }

    /// Takes a lock; false if another holder has it.
    pub(crate) fn take(
        &mut self,
        lock: AllocationLock,
        name: &str,
        holder: &str,
    ) -> Result<bool, StatusError> {
        if let Some(found) = self.holder(lock, name)? {
            return Ok(found == holder);
        }
        let key = StoreKey::new(lock.resource(), "", name);
        let json = Bytes::copy_from_slice(holder.as_bytes());
        self.txn.put(key, json, Expect::Absent).map_err(txn_error)?;
        Ok(true)
    }

    /// Releases a lock, if this holder has it.
    pub(crate) fn release(
        &mut self,
        lock: AllocationLock,
        name: &str,
        holder: &str,
    ) -> Result<(), StatusError> {
        if self.holder(lock, name)?.as_deref() != Some(holder) {
            return Ok(());
        }
        let key = StoreKey::new(lock.resource(), "", name);
        self.txn.delete(&key, None, Expect::Present).map(drop).map_err(txn_error)
    }
}

fn bytes(object: &Value) -> Bytes {
    // Twice as fast as `to_string`.
    let json = serde_json::to_vec(object).unwrap_or_else(|_| object.to_string().into_bytes());
    // The event history keeps it for long: without spare capacity.
    Bytes::from(json.into_boxed_slice())
}

/// Seconds since 1970.
fn seconds(time: jiff::Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

fn storage_error(error: StorageError) -> StatusError {
    StatusError::internal(error)
}

fn txn_error(error: TxnError) -> StatusError {
    match error {
        TxnError::Failed(error) => storage_error(error),
        conflict @ TxnError::Conflict { .. } => StatusError::internal(conflict),
    }
}

/// The resourceVersion of an object.
pub(crate) fn revision_of(object: &Value) -> Option<Revision> {
    meta::text(object, "resourceVersion").parse().ok().map(Revision)
}
