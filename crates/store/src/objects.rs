//! The objects as one write would leave them: JSON over a transaction of the engine.
//!
//! What is stored is what clients read, resourceVersion included, so that reads and watches hand bytes out
//! without looking into them.

use bytes::Bytes;
use serde_json::Value;

use crate::draft::Draft;
use crate::engine::{Expect, Failure as DiskFailure, Key, ResourceId, Revision, Stored, Txn, TxnError};
use crate::kinds::Kind;
use crate::meta;
use crate::status::Failure;

/// Locks that are no objects of the API: node ports and addresses of load balancers, each by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A port on every node.
    NodePort,
    /// An address of a load balancer.
    LoadBalancerAddress,
}

impl Lock {
    fn resource(self) -> ResourceId {
        // Far above the kinds' numbers; on disk for ever, as they are.
        ResourceId(match self {
            Self::NodePort => 60_001,
            Self::LoadBalancerAddress => 60_002,
        })
    }
}

/// One write's view of all objects.
pub struct Objects<'a, 't> {
    txn: &'a mut Txn<'t>,
    /// The time of the write, in seconds since 1970.
    pub now: jiff::Timestamp,
}

/// The key of an object.
pub fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
    Key::new(ResourceId(kind.id), namespace, name)
}

/// An object as it was stored.
pub fn parse(stored: &Stored) -> Result<Value, Failure> {
    serde_json::from_slice(&stored.json)
        .map_err(|error| Failure::internal(format!("{} cannot be read: {error}", stored.key)))
}

impl<'a, 't> Objects<'a, 't> {
    /// A view over a transaction.
    pub fn new(txn: &'a mut Txn<'t>, now: jiff::Timestamp) -> Self {
        Self { txn, now }
    }

    /// An object, if there is one.
    pub fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Value>, Failure> {
        self.find_stored(kind, namespace, name)?.as_ref().map(parse).transpose()
    }

    /// All objects of a kind as they are stored, not parsed.
    pub fn stored(&self, kind: &Kind) -> Result<Vec<Stored>, Failure> {
        self.txn.list(ResourceId(kind.id), None).map_err(disk)
    }

    /// An object as it is stored, not parsed, if there is one.
    pub fn find_stored(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Stored>, Failure> {
        self.txn.get(&key(kind, namespace, name)).map_err(disk)
    }

    /// Whether there is such an object.
    pub fn has(&self, kind: &Kind, namespace: &str, name: &str) -> Result<bool, Failure> {
        Ok(self.find_stored(kind, namespace, name)?.is_some())
    }

    /// An object that must be there.
    pub fn fetch(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Value, Failure> {
        self.find(kind, namespace, name)?.ok_or_else(|| Failure::not_found(kind, name))
    }

    /// All objects of a kind, or of one namespace of it.
    pub fn list(&self, kind: &Kind, namespace: Option<&str>) -> Result<Vec<Value>, Failure> {
        let stored = self.txn.list(ResourceId(kind.id), namespace).map_err(disk)?;
        stored.iter().map(parse).collect()
    }

    /// Stores an object in place of what is there; it gets its resourceVersion.
    pub fn put(&mut self, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
        self.store(kind, object).map(drop)
    }

    /// As [`Objects::put`]; the result is what was stored, so that nobody has to write it again for the answer.
    pub fn store(&mut self, kind: &Kind, object: &mut Value) -> Result<Bytes, Failure> {
        self.stamp(object);
        let key = key(kind, meta::text(object, "namespace"), meta::text(object, "name"));
        let json = bytes(object);
        self.txn.put_until(key, json.clone(), Expect::Anything, self.expiry(kind)).map_err(step)?;
        Ok(json)
    }

    /// Stores a draft in place of a version that was read before; nothing if that is not the newest any more.
    pub fn replace(
        &mut self,
        kind: &Kind,
        before: &Stored,
        draft: Draft,
    ) -> Result<Option<(Bytes, Revision)>, Failure> {
        let json = draft.finish(self.txn.next_revision().0);
        self.txn.remember(before);
        let expect = Expect::At(before.revision);
        match self.txn.put_until(before.key.clone(), json.clone(), expect, self.expiry(kind)) {
            Ok(revision) => Ok(Some((json, revision))),
            Err(TxnError::Conflict { .. }) => Ok(None),
            Err(error) => Err(step(error)),
        }
    }

    /// When an object of a kind goes by itself, if it is written now.
    fn expiry(&self, kind: &Kind) -> Option<u64> {
        let now = u64::try_from(self.now.as_second()).unwrap_or(0);
        kind.lifetime.map(|seconds| now.saturating_add(seconds))
    }

    /// Removes an object; watchers see it with the version of the removal.
    pub fn remove(&mut self, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
        self.stamp(object);
        let key = key(kind, meta::text(object, "namespace"), meta::text(object, "name"));
        self.txn.delete(&key, Some(bytes(object)), Expect::Anything).map(drop).map_err(step)
    }

    fn stamp(&self, object: &mut Value) {
        meta::set_resource_version(object, self.txn.next_revision().0);
    }

    /// Who holds a lock.
    pub fn holder(&self, lock: Lock, name: &str) -> Result<Option<String>, Failure> {
        let stored = self.txn.get(&Key::new(lock.resource(), "", name)).map_err(disk)?;
        Ok(stored.map(|stored| String::from_utf8_lossy(&stored.json).into_owned()))
    }

    /// All locks of a sort that are taken: the name of each, and who holds it.
    pub fn locks(&self, lock: Lock) -> Result<Vec<(String, String)>, Failure> {
        let stored = self.txn.list(lock.resource(), None).map_err(disk)?;
        let pair = |stored: Stored| {
            (stored.key.name.to_string(), String::from_utf8_lossy(&stored.json).into_owned())
        };
        Ok(stored.into_iter().map(pair).collect())
    }

    /// Takes a lock; false if somebody else holds it.
    pub fn take(&mut self, lock: Lock, name: &str, holder: &str) -> Result<bool, Failure> {
        if let Some(found) = self.holder(lock, name)? {
            return Ok(found == holder);
        }
        let key = Key::new(lock.resource(), "", name);
        let json = Bytes::copy_from_slice(holder.as_bytes());
        self.txn.put(key, json, Expect::Absent).map_err(step)?;
        Ok(true)
    }

    /// Gives a lock back, if this holder has it.
    pub fn release(&mut self, lock: Lock, name: &str, holder: &str) -> Result<(), Failure> {
        if self.holder(lock, name)?.as_deref() != Some(holder) {
            return Ok(());
        }
        let key = Key::new(lock.resource(), "", name);
        self.txn.delete(&key, None, Expect::Present).map(drop).map_err(step)
    }
}

fn bytes(object: &Value) -> Bytes {
    // Twice as fast as its text.
    let json = serde_json::to_vec(object).unwrap_or_else(|_| object.to_string().into_bytes());
    // Kept for long, in the ring: without the room that it got while it grew.
    Bytes::from(json.into_boxed_slice())
}

/// What a client is told when the disk fails.
pub fn disk(failure: DiskFailure) -> Failure {
    Failure::internal(failure)
}

fn step(error: TxnError) -> Failure {
    match error {
        TxnError::Failed(failure) => disk(failure),
        conflict @ TxnError::Conflict { .. } => Failure::internal(conflict),
    }
}

/// A revision as clients write it.
pub fn revision_of(object: &Value) -> Option<Revision> {
    meta::text(object, "resourceVersion").parse().ok().map(Revision)
}
