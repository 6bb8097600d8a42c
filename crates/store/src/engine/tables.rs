//! The tables on disk, and reads and writes of one transaction.
//!
//! ```text
//!  index     key      -> revision of its newest version, and whether that is alive
//!  versions  revision -> Row (key, json, the revision of the version before)
//!  expiry    time, key                      objects that expire
//!  meta      name     -> number
//! ```
//!
//! The versions of an object form a chain by `previous`. Above the compacted revision no version is missing: the versions
//! are the log that watches read, and every state in that window can be listed. Compaction removes versions that a newer
//! one at or below the compacted revision replaced, and tombstones.

use bytes::Bytes;
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::encryption::EncryptionKeys;
use super::error::StorageError;
use super::journal::RecordBuffer;
use super::key::{EventMemo, ResourceId, Revision, StoreKey, StoredObject, WatchEvent, WatchEventType};
use super::row::Row;
use super::txn::CachedVersion;

// Keys are bytes and not str: redb panics on a damaged str.
type IndexKey = (u16, &'static [u8], &'static [u8]);
type ExpiryKey = (u64, u16, &'static [u8], &'static [u8]);

const INDEX: TableDefinition<IndexKey, (u64, bool)> = TableDefinition::new("index");
const VERSIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("versions");
const EXPIRY: TableDefinition<ExpiryKey, ()> = TableDefinition::new("expiry");
const META: TableDefinition<&[u8], u64> = TableDefinition::new("meta");

/// The tables, open in a transaction. `I`, `V`, `E` and `M` are redb's types for reading or for writing.
pub(super) struct Tables<I, V, E, M> {
    pub index: I,
    pub versions: V,
    pub expiry: E,
    pub meta: M,
    /// Opens sealed rows, and seals new ones.
    pub(super) keys: EncryptionKeys,
}

/// The tables as a read transaction sees them.
pub(super) type ReadTables = Tables<
    ReadOnlyTable<IndexKey, (u64, bool)>,
    ReadOnlyTable<u64, &'static [u8]>,
    ReadOnlyTable<ExpiryKey, ()>,
    ReadOnlyTable<&'static [u8], u64>,
>;

/// The tables as the writer sees them.
pub(super) type WriteTables<'t> = Tables<
    Table<'t, IndexKey, (u64, bool)>,
    Table<'t, u64, &'static [u8]>,
    Table<'t, ExpiryKey, ()>,
    Table<'t, &'static [u8], u64>,
>;

/// The newest version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHead {
    pub revision: u64,
    pub alive: bool,
}

/// Numbers of the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub format: u64,
    pub revision: u64,
    /// Every version above this revision exists; older ones may be removed.
    pub compacted: u64,
    /// Size of the versions above the compacted revision.
    pub log_bytes: u64,
    /// The epoch of the journal that belongs to these tables.
    pub epoch: u64,
    /// The length of that journal with its mark, which never shrinks; 0 in stores of earlier versions.
    pub journal: u64,
    /// The id of the key that seals every row of sealed resources; 0 if none are sealed.
    pub encryption_key: u64,
}

impl Meta {
    fn numbers(&self) -> [(&'static str, u64); 7] {
        let Meta { format, revision, compacted, log_bytes, epoch, journal, encryption_key } = *self;
        [
            ("format", format),
            ("revision", revision),
            ("compacted", compacted),
            ("log_bytes", log_bytes),
            ("epoch", epoch),
            ("journal", journal),
            ("encryption_key", encryption_key),
        ]
    }
}

impl ReadTables {
    pub(super) fn open(txn: &ReadTransaction) -> Result<ReadTables, StorageError> {
        Ok(Tables {
            index: txn.open_table(INDEX)?,
            versions: txn.open_table(VERSIONS)?,
            expiry: txn.open_table(EXPIRY)?,
            meta: txn.open_table(META)?,
            keys: EncryptionKeys::default(),
        })
    }

    /// The newest version of one object; opens only two tables.
    pub(super) fn object_of(
        txn: &ReadTransaction,
        key: &StoreKey,
        keys: &EncryptionKeys,
    ) -> Result<Option<StoredObject>, StorageError> {
        match head(&txn.open_table(INDEX)?, key)? {
            Some(head) if head.alive => {
                alive_version(&txn.open_table(VERSIONS)?, key, head.revision, keys).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn head(
    index: &impl ReadableTable<IndexKey, (u64, bool)>,
    key: &StoreKey,
) -> Result<Option<KeyHead>, StorageError> {
    let found = index.get(parts(key))?;
    Ok(found.map(|found| found.value()).map(|(revision, alive)| KeyHead { revision, alive }))
}

fn version(
    versions: &impl ReadableTable<u64, &'static [u8]>,
    revision: u64,
) -> Result<Option<Row>, StorageError> {
    match versions.get(revision)? {
        Some(bytes) => Row::decode(revision, bytes.value()).map(Some),
        None => Ok(None),
    }
}

fn alive_version(
    versions: &impl ReadableTable<u64, &'static [u8]>,
    key: &StoreKey,
    revision: u64,
    keys: &EncryptionKeys,
) -> Result<StoredObject, StorageError> {
    let row = version(versions, revision)?.filter(|row| row.key == *key);
    let row = row.map(|row| keys.open(revision, row)).transpose()?;
    let stored = row.and_then(|row| row.into_stored(revision));
    stored.ok_or_else(|| StorageError::damaged(format!("{key} is missing at revision {revision}")))
}

impl<I, V, E, M> Tables<I, V, E, M>
where
    I: ReadableTable<IndexKey, (u64, bool)>,
    V: ReadableTable<u64, &'static [u8]>,
    E: ReadableTable<ExpiryKey, ()>,
    M: ReadableTable<&'static [u8], u64>,
{
    pub(super) fn with_keys(self, keys: &EncryptionKeys) -> Self {
        Tables { keys: keys.clone(), ..self }
    }

    pub(super) fn meta(&self) -> Result<Meta, StorageError> {
        let number = |name: &str| -> Result<u64, StorageError> {
            Ok(self.meta.get(name.as_bytes())?.map_or(0, |number| number.value()))
        };
        Ok(Meta {
            format: number("format")?,
            revision: number("revision")?,
            compacted: number("compacted")?,
            log_bytes: number("log_bytes")?,
            epoch: number("epoch")?,
            journal: number("journal")?,
            encryption_key: number("encryption_key")?,
        })
    }

    pub(super) fn head(&self, key: &StoreKey) -> Result<Option<KeyHead>, StorageError> {
        head(&self.index, key)
    }

    /// The row of a revision, sealed if it is.
    pub(super) fn version(&self, revision: u64) -> Result<Option<Row>, StorageError> {
        version(&self.versions, revision)
    }

    /// The newest version of an object.
    pub(super) fn object(&self, key: &StoreKey) -> Result<Option<StoredObject>, StorageError> {
        match self.head(key)? {
            Some(head) if head.alive => {
                alive_version(&self.versions, key, head.revision, &self.keys).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The version of an object at a revision in the window, found along its chain.
    pub(super) fn object_at(
        &self,
        key: &StoreKey,
        head: KeyHead,
        at: u64,
        compacted: u64,
    ) -> Result<Option<StoredObject>, StorageError> {
        let mut revision = head.revision;
        while revision > at {
            let previous = match self.versions.get(revision)? {
                Some(bytes) => Row::previous_of(bytes.value())?,
                None => return Err(StorageError::damaged(format!("revision {revision} is missing"))),
            };
            if previous >= revision {
                return Err(StorageError::damaged(format!("{key}: revision {revision} follows {previous}")));
            }
            revision = previous;
        }
        match self.version(revision)? {
            Some(row) if row.key == *key => Ok(self.keys.open(revision, row)?.into_stored(revision)),
            // A compacted tombstone ends the chain early.
            None if revision <= compacted => Ok(None),
            _ => Err(StorageError::damaged(format!("{key} has no version at revision {revision}"))),
        }
    }

    /// The events after a revision, in order, up to `limit` events or `most` bytes.
    pub(super) fn events_after(
        &self,
        revision: u64,
        limit: usize,
        most: usize,
    ) -> Result<Vec<WatchEvent>, StorageError> {
        let (mut changes, mut total) = (Vec::new(), 0);
        for entry in self.versions.range(revision.saturating_add(1)..)?.take(limit) {
            let (revision, bytes) = entry?;
            let row = self.keys.open(revision.value(), Row::decode(revision.value(), bytes.value())?)?;
            let before = self.version_before(&row)?;
            let before = before.map(|before| self.keys.open(row.previous, before)).transpose()?;
            total += row.json.len();
            changes.push(event(revision.value(), row, before.map(|before| before.json)));
            if total > most {
                break;
            }
        }
        Ok(changes)
    }

    /// The live row that a row replaces, sealed if it is.
    fn version_before(&self, row: &Row) -> Result<Option<Row>, StorageError> {
        let before = self.version(row.previous)?;
        Ok(before.filter(|before| !before.deleted && before.key == row.key))
    }

    /// All objects of a resource, or of one namespace of it, in the order of keys.
    pub(super) fn objects(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
    ) -> Result<Vec<StoredObject>, StorageError> {
        let mut found = Vec::new();
        let (start, end) = bounds(resource, namespace);
        for entry in self.index.range(start.borrowed()..end.borrowed())? {
            let (key, head) = entry?;
            let (revision, alive) = head.value();
            if alive {
                found.push(alive_version(&self.versions, &key_of(key.value())?, revision, &self.keys)?);
            }
        }
        Ok(found)
    }

    /// The expired keys, at most `limit`, oldest first.
    pub(super) fn expired(&self, now: u64, limit: usize) -> Result<Vec<StoreKey>, StorageError> {
        let mut keys = Vec::new();
        let end = now.saturating_add(1);
        for entry in self.expiry.range(..(end, 0, &b""[..], &b""[..]))?.take(limit) {
            let (key, _) = entry?;
            let (_, resource, namespace, name) = key.value();
            keys.push(key_of((resource, namespace, name))?);
        }
        Ok(keys)
    }
}

impl<'t> WriteTables<'t> {
    pub(super) fn open(txn: &'t WriteTransaction) -> Result<WriteTables<'t>, StorageError> {
        Ok(Tables {
            index: txn.open_table(INDEX)?,
            versions: txn.open_table(VERSIONS)?,
            expiry: txn.open_table(EXPIRY)?,
            meta: txn.open_table(META)?,
            keys: EncryptionKeys::default(),
        })
    }

    pub(super) fn set_meta(&mut self, meta: &Meta) -> Result<(), StorageError> {
        for (name, number) in meta.numbers() {
            self.meta.insert(name.as_bytes(), number)?;
        }
        Ok(())
    }

    /// Writes the numbers that changed; most writes change two.
    pub(super) fn update_meta(&mut self, before: &Meta, meta: &Meta) -> Result<(), StorageError> {
        for (before, (name, number)) in before.numbers().into_iter().zip(meta.numbers()) {
            if before.1 != number {
                self.meta.insert(name.as_bytes(), number)?;
            }
        }
        Ok(())
    }

    /// Adds the next version of an object. A `cached` version is not read again. The encoded row is added to the buffer.
    pub(super) fn apply(
        &mut self,
        meta: &mut Meta,
        mut row: Row,
        cached: &[CachedVersion],
        buffer: &mut RecordBuffer,
    ) -> Result<WatchEvent, StorageError> {
        let head = self.head(&row.key)?;
        row.previous = head.map_or(0, |head| head.revision);
        let before = match cached
            .iter()
            .find(|cached| head == Some(KeyHead { revision: cached.revision, alive: true }))
        {
            Some(cached) => Some(cached.clone()),
            None => {
                let before = self.version_before(&row)?;
                let before = before.map(|before| self.keys.open(row.previous, before)).transpose()?;
                before.map(|Row { expires, json, .. }| CachedVersion {
                    revision: row.previous,
                    expires,
                    json,
                })
            }
        };
        self.append(meta, &row, before.as_ref().and_then(|before| before.expires), buffer)?;
        Ok(event(meta.revision, row, before.map(|before| before.json)))
    }

    /// Adds a row of the journal as it is. `previous` comes from the tables and not from the row, so that it is right
    /// even where compaction has to be repeated. Needs no key.
    pub(super) fn replay(
        &mut self,
        meta: &mut Meta,
        mut row: Row,
        buffer: &mut RecordBuffer,
    ) -> Result<(), StorageError> {
        row.previous = self.head(&row.key)?.map_or(0, |head| head.revision);
        let before = self.version_before(&row)?;
        self.append(meta, &row, before.and_then(|before| before.expires), buffer)
    }

    /// Adds a row under the next revision; `replaced` is when the version before expires.
    fn append(
        &mut self,
        meta: &mut Meta,
        row: &Row,
        replaced: Option<u64>,
        buffer: &mut RecordBuffer,
    ) -> Result<(), StorageError> {
        if let Some(at) = replaced {
            self.expiry.remove(expiry_parts(at, &row.key))?;
        }
        let revision = meta.revision.saturating_add(1);
        let len = self.insert(revision, row, buffer)?;
        meta.revision = revision;
        meta.log_bytes = meta.log_bytes.saturating_add(len as u64);
        Ok(())
    }

    /// Makes a version the newest of its object, sealed if its resource is, adds it to the buffer, and returns its encoded
    /// length.
    pub(super) fn insert(
        &mut self,
        revision: u64,
        row: &Row,
        buffer: &mut RecordBuffer,
    ) -> Result<usize, StorageError> {
        self.index.insert(parts(&row.key), (revision, !row.deleted))?;
        let sealed = self.keys.seal(revision, row)?;
        let bytes = buffer.add(revision, sealed.as_ref().unwrap_or(row));
        self.versions.insert(revision, bytes)?;
        if let Some(at) = row.expires.filter(|_| !row.deleted) {
            self.expiry.insert(expiry_parts(at, &row.key), ())?;
        }
        Ok(bytes.len())
    }

    /// Moves the compacted revision up to `to`, at most `limit` revisions.
    pub(super) fn compact(&mut self, meta: &mut Meta, to: u64, limit: u64) -> Result<(), StorageError> {
        let to = to.min(meta.revision).min(meta.compacted.saturating_add(limit));
        for revision in meta.compacted.saturating_add(1)..=to {
            let (row, len) = match self.versions.get(revision)? {
                Some(bytes) => (Row::decode(revision, bytes.value())?, bytes.value().len() as u64),
                None => return Err(StorageError::damaged(format!("revision {revision} is missing"))),
            };
            if row.previous != 0 {
                self.versions.remove(row.previous)?;
            }
            if row.deleted {
                self.versions.remove(revision)?;
                if self.head(&row.key)?.is_some_and(|head| head.revision == revision) {
                    self.index.remove(parts(&row.key))?;
                }
            }
            meta.compacted = revision;
            meta.log_bytes = meta.log_bytes.saturating_sub(len);
        }
        Ok(())
    }
}

fn event(revision: u64, row: Row, before: Option<Bytes>) -> WatchEvent {
    let kind = match (&before, row.deleted) {
        (_, true) => WatchEventType::Deleted,
        (Some(_), false) => WatchEventType::Modified,
        (None, false) => WatchEventType::Added,
    };
    let Row { key, expires, json, .. } = row;
    WatchEvent { key, revision: Revision(revision), kind, json, before, expires, memo: EventMemo::default() }
}

fn parts(key: &StoreKey) -> (u16, &[u8], &[u8]) {
    (key.resource.0, key.namespace.as_bytes(), key.name.as_bytes())
}

fn expiry_parts(at: u64, key: &StoreKey) -> (u64, u16, &[u8], &[u8]) {
    (at, key.resource.0, key.namespace.as_bytes(), key.name.as_bytes())
}

/// The key of an index entry.
pub(super) fn key_of((resource, namespace, name): (u16, &[u8], &[u8])) -> Result<StoreKey, StorageError> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| StorageError::damaged("a name is not text"));
    Ok(StoreKey::new(ResourceId(resource), text(namespace)?, text(name)?))
}

/// A bound of a range of the index that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyBound(u16, Vec<u8>, Vec<u8>);

impl KeyBound {
    /// The bound right after a key: no other key fits between.
    pub(super) fn behind(key: &StoreKey) -> KeyBound {
        let mut name = key.name.as_bytes().to_vec();
        name.push(0);
        KeyBound(key.resource.0, key.namespace.as_bytes().to_vec(), name)
    }

    pub(super) fn borrowed(&self) -> (u16, &[u8], &[u8]) {
        (self.0, &self.1, &self.2)
    }
}

/// The bounds of a resource, or of one namespace of it, in the index; the end is exclusive.
pub(super) fn bounds(resource: ResourceId, namespace: Option<&str>) -> (KeyBound, KeyBound) {
    let start = namespace.unwrap_or_default().as_bytes().to_vec();
    let end = match namespace {
        Some(_) => {
            let mut behind = start.clone();
            behind.push(0);
            KeyBound(resource.0, behind, Vec::new())
        }
        // The last resource has no successor; 0xff is above every UTF-8 text.
        None => match resource.0.checked_add(1) {
            Some(next) => KeyBound(next, Vec::new(), Vec::new()),
            None => KeyBound(resource.0, vec![0xff], Vec::new()),
        },
    };
    (KeyBound(resource.0, start, Vec::new()), end)
}
