//! The tables on disk and what may be done to them in one transaction.
//!
//! ```text
//!  index     key      -> revision of its newest version, and whether that is alive
//!  versions  revision -> Row (key, json, the revision of the version before)
//!  expiry    time, key                      what goes by itself
//!  meta      name     -> number
//! ```
//!
//! An object's versions form a chain by `previous`. Above the compacted revision no version is missing, so the
//! versions are the log that watches read, and any state in that window can be listed. Compaction removes what
//! a younger version at or below that revision has replaced, and deletions.

use bytes::Bytes;
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::failure::Failure;
use super::journal::Sheet;
use super::key::{Change, ChangeKind, Key, Note, ResourceId, Revision, Stored};
use super::row::Row;
use super::txn::Seen;

// Keys are bytes and not str: redb would panic on a damaged str, we make it an error.
type IndexKey = (u16, &'static [u8], &'static [u8]);
type ExpiryKey = (u64, u16, &'static [u8], &'static [u8]);

const INDEX: TableDefinition<IndexKey, (u64, bool)> = TableDefinition::new("index");
const VERSIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("versions");
const EXPIRY: TableDefinition<ExpiryKey, ()> = TableDefinition::new("expiry");
const META: TableDefinition<&[u8], u64> = TableDefinition::new("meta");

/// The layout that this program writes.
pub(super) const FORMAT: u64 = 1;

/// The tables, open in a transaction. `I`, `V`, `E` and `M` are redb's types for reading or for writing.
pub(super) struct Tables<I, V, E, M> {
    pub index: I,
    pub versions: V,
    pub expiry: E,
    pub meta: M,
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
pub(super) struct Head {
    pub revision: u64,
    pub alive: bool,
}

/// The few numbers that belong to the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub format: u64,
    pub revision: u64,
    /// Every version above this one is there; what lies at or below it may have gone.
    pub compacted: u64,
    /// How many bytes the versions above the compacted one take.
    pub log_bytes: u64,
    /// Which filling of the journal belongs to these tables.
    pub epoch: u64,
}

impl Meta {
    fn numbers(&self) -> [(&'static str, u64); 5] {
        let Meta { format, revision, compacted, log_bytes, epoch } = *self;
        [
            ("format", format),
            ("revision", revision),
            ("compacted", compacted),
            ("log_bytes", log_bytes),
            ("epoch", epoch),
        ]
    }
}

impl ReadTables {
    pub fn open(txn: &ReadTransaction) -> Result<ReadTables, Failure> {
        Ok(Tables {
            index: txn.open_table(INDEX)?,
            versions: txn.open_table(VERSIONS)?,
            expiry: txn.open_table(EXPIRY)?,
            meta: txn.open_table(META)?,
        })
    }

    /// One object as it is now, from the two tables that know of it.
    pub fn object_of(txn: &ReadTransaction, key: &Key) -> Result<Option<Stored>, Failure> {
        match head(&txn.open_table(INDEX)?, key)? {
            Some(head) if head.alive => {
                alive_version(&txn.open_table(VERSIONS)?, key, head.revision).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn head(index: &impl ReadableTable<IndexKey, (u64, bool)>, key: &Key) -> Result<Option<Head>, Failure> {
    let found = index.get(parts(key))?;
    Ok(found.map(|found| found.value()).map(|(revision, alive)| Head { revision, alive }))
}

fn version(versions: &impl ReadableTable<u64, &'static [u8]>, revision: u64) -> Result<Option<Row>, Failure> {
    match versions.get(revision)? {
        Some(bytes) => Row::decode(revision, bytes.value()).map(Some),
        None => Ok(None),
    }
}

fn alive_version(
    versions: &impl ReadableTable<u64, &'static [u8]>,
    key: &Key,
    revision: u64,
) -> Result<Stored, Failure> {
    let row = version(versions, revision)?.filter(|row| row.key == *key);
    let stored = row.and_then(|row| row.into_stored(revision));
    stored.ok_or_else(|| Failure::damaged(format!("{key} should be at revision {revision} and is not")))
}

impl<I, V, E, M> Tables<I, V, E, M>
where
    I: ReadableTable<IndexKey, (u64, bool)>,
    V: ReadableTable<u64, &'static [u8]>,
    E: ReadableTable<ExpiryKey, ()>,
    M: ReadableTable<&'static [u8], u64>,
{
    pub fn meta(&self) -> Result<Meta, Failure> {
        let number = |name: &str| -> Result<u64, Failure> {
            Ok(self.meta.get(name.as_bytes())?.map_or(0, |number| number.value()))
        };
        Ok(Meta {
            format: number("format")?,
            revision: number("revision")?,
            compacted: number("compacted")?,
            log_bytes: number("log_bytes")?,
            epoch: number("epoch")?,
        })
    }

    pub fn head(&self, key: &Key) -> Result<Option<Head>, Failure> {
        head(&self.index, key)
    }

    pub fn version(&self, revision: u64) -> Result<Option<Row>, Failure> {
        version(&self.versions, revision)
    }

    /// The object as it is now.
    pub fn object(&self, key: &Key) -> Result<Option<Stored>, Failure> {
        match self.head(key)? {
            Some(head) if head.alive => alive_version(&self.versions, key, head.revision).map(Some),
            _ => Ok(None),
        }
    }

    /// The object as it was at a revision in the window, found down its chain of versions.
    pub fn object_at(
        &self,
        key: &Key,
        head: Head,
        at: u64,
        compacted: u64,
    ) -> Result<Option<Stored>, Failure> {
        let mut revision = head.revision;
        while revision > at {
            let previous = match self.versions.get(revision)? {
                Some(bytes) => Row::previous_of(bytes.value())?,
                None => return Err(Failure::damaged(format!("revision {revision} is missing"))),
            };
            if previous >= revision {
                return Err(Failure::damaged(format!("{key}: revision {revision} follows {previous}")));
            }
            revision = previous;
        }
        match self.version(revision)? {
            Some(row) if row.key == *key => Ok(row.into_stored(revision)),
            // A deletion that is compacted leaves a chain that ends early.
            None if revision <= compacted => Ok(None),
            _ => Err(Failure::damaged(format!("{key} was at revision {revision}, which is not there"))),
        }
    }

    /// The changes after a revision, in order, at most `limit`.
    /// The changes after a revision, until there are so many of them or they have so many bytes.
    pub fn changes_after(&self, revision: u64, limit: usize, most: usize) -> Result<Vec<Change>, Failure> {
        let (mut changes, mut total) = (Vec::new(), 0);
        for entry in self.versions.range(revision.saturating_add(1)..)?.take(limit) {
            let (revision, bytes) = entry?;
            let row = Row::decode(revision.value(), bytes.value())?;
            let before = self.version_before(&row)?;
            total += row.json.len();
            changes.push(change(revision.value(), row, before.map(|before| before.json)));
            if total > most {
                break;
            }
        }
        Ok(changes)
    }

    fn version_before(&self, row: &Row) -> Result<Option<Row>, Failure> {
        let before = self.version(row.previous)?;
        Ok(before.filter(|before| !before.deleted && before.key == row.key))
    }

    /// Every object that is alive, of one resource and maybe one namespace, in the order of keys.
    pub fn objects(&self, resource: ResourceId, namespace: Option<&str>) -> Result<Vec<Stored>, Failure> {
        let mut found = Vec::new();
        let (start, end) = bounds(resource, namespace);
        for entry in self.index.range(start.borrowed()..end.borrowed())? {
            let (key, head) = entry?;
            let (revision, alive) = head.value();
            if alive {
                found.push(alive_version(&self.versions, &key_of(key.value())?, revision)?);
            }
        }
        Ok(found)
    }

    /// The keys whose time is up, at most `limit`, the oldest first.
    pub fn expired(&self, now: u64, limit: usize) -> Result<Vec<Key>, Failure> {
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
    pub fn open(txn: &'t WriteTransaction) -> Result<WriteTables<'t>, Failure> {
        Ok(Tables {
            index: txn.open_table(INDEX)?,
            versions: txn.open_table(VERSIONS)?,
            expiry: txn.open_table(EXPIRY)?,
            meta: txn.open_table(META)?,
        })
    }

    pub fn set_meta(&mut self, meta: &Meta) -> Result<(), Failure> {
        for (name, number) in meta.numbers() {
            self.meta.insert(name.as_bytes(), number)?;
        }
        Ok(())
    }

    /// Writes those numbers that are not what they were: most writes change two of them.
    pub fn update_meta(&mut self, before: &Meta, meta: &Meta) -> Result<(), Failure> {
        for (before, (name, number)) in before.numbers().into_iter().zip(meta.numbers()) {
            if before.1 != number {
                self.meta.insert(name.as_bytes(), number)?;
            }
        }
        Ok(())
    }

    /// Adds the next version of an object. Its place in the chain comes from the tables and not from the row, so
    /// that a row from the journal lands right even where compaction has to be done again. A version that was `seen`
    /// is not read again. The row as it was written is added to the sheet.
    pub fn apply(
        &mut self,
        meta: &mut Meta,
        mut row: Row,
        seen: &[Seen],
        sheet: &mut Sheet,
    ) -> Result<Change, Failure> {
        let revision = meta.revision.saturating_add(1);
        let head = self.head(&row.key)?;
        row.previous = head.map_or(0, |head| head.revision);
        let before =
            match seen.iter().find(|seen| head == Some(Head { revision: seen.revision, alive: true })) {
                Some(seen) => Some(seen.clone()),
                None => self.version_before(&row)?.map(|before| Seen {
                    revision: row.previous,
                    expires: before.expires,
                    json: before.json,
                }),
            };
        if let Some(at) = before.as_ref().and_then(|before| before.expires) {
            self.expiry.remove(expiry_parts(at, &row.key))?;
        }
        let len = self.insert(revision, &row, sheet)?;
        meta.revision = revision;
        meta.log_bytes = meta.log_bytes.saturating_add(len as u64);
        Ok(change(revision, row, before.map(|before| before.json)))
    }

    /// Makes a version the newest of its object. It is written on the sheet; the result is how long it became.
    pub fn insert(&mut self, revision: u64, row: &Row, sheet: &mut Sheet) -> Result<usize, Failure> {
        self.index.insert(parts(&row.key), (revision, !row.deleted))?;
        let bytes = sheet.add(revision, row);
        self.versions.insert(revision, bytes)?;
        if let Some(at) = row.expires.filter(|_| !row.deleted) {
            self.expiry.insert(expiry_parts(at, &row.key), ())?;
        }
        Ok(bytes.len())
    }

    /// Moves the compacted revision up to `to`, at most `limit` steps; the rest is for the next time.
    pub fn compact(&mut self, meta: &mut Meta, to: u64, limit: u64) -> Result<(), Failure> {
        let to = to.min(meta.revision).min(meta.compacted.saturating_add(limit));
        for revision in meta.compacted.saturating_add(1)..=to {
            let (row, len) = match self.versions.get(revision)? {
                Some(bytes) => (Row::decode(revision, bytes.value())?, bytes.value().len() as u64),
                None => return Err(Failure::damaged(format!("revision {revision} is missing"))),
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

fn change(revision: u64, row: Row, before: Option<Bytes>) -> Change {
    let kind = match (&before, row.deleted) {
        (_, true) => ChangeKind::Deleted,
        (Some(_), false) => ChangeKind::Modified,
        (None, false) => ChangeKind::Added,
    };
    let Row { key, expires, json, .. } = row;
    Change { key, revision: Revision(revision), kind, json, before, expires, note: Note::default() }
}

fn parts(key: &Key) -> (u16, &[u8], &[u8]) {
    (key.resource.0, key.namespace.as_bytes(), key.name.as_bytes())
}

fn expiry_parts(at: u64, key: &Key) -> (u64, u16, &[u8], &[u8]) {
    (at, key.resource.0, key.namespace.as_bytes(), key.name.as_bytes())
}

/// The key of an index entry.
pub(super) fn key_of((resource, namespace, name): (u16, &[u8], &[u8])) -> Result<Key, Failure> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Failure::damaged("a name is not text"));
    Ok(Key::new(ResourceId(resource), text(namespace)?, text(name)?))
}

/// An end of a range of the index that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge(u16, Vec<u8>, Vec<u8>);

impl Edge {
    /// The place right behind a key: no other key fits between.
    pub fn behind(key: &Key) -> Edge {
        let mut name = key.name.as_bytes().to_vec();
        name.push(0);
        Edge(key.resource.0, key.namespace.as_bytes().to_vec(), name)
    }

    pub fn borrowed(&self) -> (u16, &[u8], &[u8]) {
        (self.0, &self.1, &self.2)
    }
}

/// Where a resource, or one namespace of it, begins and ends (exclusively) in the index.
pub(super) fn bounds(resource: ResourceId, namespace: Option<&str>) -> (Edge, Edge) {
    let start = namespace.unwrap_or_default().as_bytes().to_vec();
    let end = match namespace {
        Some(_) => {
            let mut behind = start.clone();
            behind.push(0);
            Edge(resource.0, behind, Vec::new())
        }
        // The last number has no next one; no namespace begins with a byte that no text has.
        None => match resource.0.checked_add(1) {
            Some(next) => Edge(next, Vec::new(), Vec::new()),
            None => Edge(resource.0, vec![0xff], Vec::new()),
        },
    };
    (Edge(resource.0, start, Vec::new()), end)
}
