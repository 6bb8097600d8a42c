//! The watched objects in a file, so that a node that reboots while the API is away serves what it knew.
//!
//! ```text
//! watches --every event--> SnapshotFile --when it changed, every 2 s and 1 s per MB--> FILE (new file, synced, renamed)
//!                                       \\--before the kernel changes--> FILE.mark: FILE is older than the kernel
//! start: no watch has listed after 10 s -> FILE, as if the API had listed it; the API's own list replaces it
//!        (but the kernel stays as it is where it is newer: `offline_start`)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::offline_start::{ChangeMark, OfflineStart, offline_start};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::{InformerEvent, ObjectKind, WatchedObject};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Time for the API to answer before the file is used.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between writes, and what each megabyte adds: a large file is not written for every change.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
const PER_MEGABYTE: Duration = Duration::from_secs(1);

type Key = (ObjectKind, String, String);

/// What is stored.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    /// RFC 3339.
    saved_at: String,
    /// Counts the snapshots, as [`ChangeMark`] does.
    #[serde(default)]
    sequence: u64,
    objects: Vec<StoredEntry>,
}

/// One of the two forms. A program that knows only JSON does not take a file with both for one with fewer objects: for it
/// the field `object` is missing.
#[derive(Serialize, Deserialize)]
struct StoredEntry {
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<Box<RawValue>>,
    /// A message of protobuf, as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl StoredEntry {
    fn new(kind: ObjectKind, content: &StoredContent) -> Option<Self> {
        let kind = kind.as_str().to_owned();
        Some(match content {
            StoredContent::Json(text) => {
                Self { kind, object: Some(RawValue::from_string(text.to_string()).ok()?), message: None }
            }
            StoredContent::Message(message) => {
                Self { kind, object: None, message: Some(STANDARD.encode(message)) }
            }
        })
    }

    fn watched(&self) -> Option<WatchedObject> {
        match (&self.object, &self.message) {
            (Some(object), _) => serde_json::from_str(object.get()).ok(),
            (None, Some(message)) => WatchedObject::from_message(STANDARD.decode(message).ok()?.into()).ok(),
            (None, None) => None,
        }
    }
}

/// An object as it came.
#[derive(PartialEq, Eq)]
enum StoredContent {
    Json(Box<str>),
    Message(Box<[u8]>),
}

impl StoredContent {
    fn of(object: &WatchedObject) -> Self {
        match object.message() {
            Some(message) => Self::Message(message[..].into()),
            None => Self::Json(object.text().into()),
        }
    }
}

/// The number of a stored snapshot, without its objects.
#[derive(Default, Deserialize)]
struct StoredSequence {
    #[serde(default)]
    sequence: u64,
}

/// A stored snapshot.
pub(crate) struct LoadedSnapshot {
    pub saved_at: Timestamp,
    /// The objects as the events of complete lists.
    pub events: Vec<InformerEvent>,
    sequence: u64,
}

/// Follows the watches and keeps the file up to date.
pub(crate) struct SnapshotFile {
    path: PathBuf,
    kinds: Vec<ObjectKind>,
    objects: BTreeMap<Key, StoredContent>,
    /// Objects of lists that are not complete.
    listing: BTreeMap<ObjectKind, BTreeSet<Key>>,
    listed: BTreeSet<ObjectKind>,
    is_changed: bool,
    written_at: Option<Instant>,
    boot_id: String,
    /// The last mark of an earlier process.
    found_mark: Option<ChangeMark>,
    /// The number of the next snapshot; that of the last mark if one was written since the last snapshot.
    sequence: u64,
    is_marked: bool,
    /// Between the last write and the next.
    interval: Duration,
}

impl SnapshotFile {
    pub(crate) fn new(path: &Path, kinds: Vec<ObjectKind>) -> Self {
        let (objects, listing, listed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let found_mark: Option<ChangeMark> =
            fs::read(mark_path(path)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let stored: StoredSequence =
            fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let sequence = found_mark.as_ref().map_or(0, |mark| mark.sequence).max(stored.sequence);
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            path: path.to_owned(),
            kinds,
            objects,
            listing,
            listed,
            is_changed: false,
            written_at: None,
            interval: MIN_INTERVAL,
            boot_id: boot_id.trim().to_owned(),
            found_mark,
            sequence,
            is_marked: false,
        }
    }

    /// Whether the API has listed no kind yet.
    pub(crate) fn is_unheard(&self) -> bool {
        self.listed.is_empty()
    }

    /// Notes an event of the API.
    pub(crate) fn observe(&mut self, event: &InformerEvent) {
        let key = |kind: ObjectKind, object: &WatchedObject| {
            (kind, object.namespace().to_owned(), object.name().to_owned())
        };
        match event {
            InformerEvent::ListStarted(kind) => drop(self.listing.insert(*kind, BTreeSet::new())),
            InformerEvent::Applied(kind, object) => {
                let key = key(*kind, object);
                if let Some(listing) = self.listing.get_mut(kind) {
                    listing.insert(key.clone());
                }
                let content = StoredContent::of(object);
                if self.objects.get(&key) != Some(&content) {
                    self.objects.insert(key, content);
                    self.is_changed = true;
                }
            }
            InformerEvent::Deleted(kind, object) => {
                self.is_changed |= self.objects.remove(&key(*kind, object)).is_some();
            }
            InformerEvent::ListCompleted(kind) => {
                let listing = self.listing.remove(kind).unwrap_or_default();
                let before = self.objects.len();
                self.objects.retain(|key, _| key.0 != *kind || listing.contains(key));
                self.is_changed |= self.listed.insert(*kind) || self.objects.len() != before;
            }
            InformerEvent::Failed(..) => {}
        }
    }

    /// Whether there is something to write: a list that is not complete lacks objects.
    fn is_due(&self) -> bool {
        self.is_changed && self.listing.is_empty() && self.kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// Notes that the kernel is about to get objects that the file does not have. The note has to survive this process,
    /// not the machine: it is not synced.
    pub(crate) fn mark(&mut self) -> io::Result<()> {
        if !self.is_changed || self.is_marked {
            return Ok(());
        }
        let mark = ChangeMark { boot_id: self.boot_id.clone(), sequence: self.sequence + 1 };
        replace(&mark_path(&self.path), &serde_json::to_vec(&mark)?, false)?;
        (self.sequence, self.is_marked) = (mark.sequence, true);
        Ok(())
    }

    /// The content to write, if it is due: the path, and the bytes.
    pub(crate) fn due(&mut self, now: Instant, time: Timestamp) -> Option<(PathBuf, Vec<u8>)> {
        let is_early = self.written_at.is_some_and(|at| now.saturating_duration_since(at) < self.interval);
        if is_early || !self.is_due() {
            return None;
        }
        (self.is_changed, self.is_marked, self.written_at) = (false, false, Some(now));
        let entries =
            self.objects.iter().filter_map(|((kind, ..), content)| StoredEntry::new(*kind, content));
        let (saved_at, sequence) = (time.to_string(), self.sequence);
        let stored = Stored { saved_at, sequence, objects: entries.collect() };
        let content = serde_json::to_vec(&stored).ok()?;
        self.interval = MIN_INTERVAL + PER_MEGABYTE.mul_f64(content.len() as f64 / 1e6);
        Some((self.path.clone(), content))
    }

    /// When the next write is due; `None` if there is nothing to write.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.written_at.filter(|_| self.is_due()).map(|at| at + self.interval)
    }

    /// What is served while the API is away, given whether the kernel holds rules.
    pub(crate) fn offline_start(&self, loaded: &LoadedSnapshot, kernel_has_rules: bool) -> OfflineStart {
        offline_start(loaded.sequence, self.found_mark.as_ref(), &self.boot_id, kernel_has_rules)
    }

    /// The stored objects. `None` without a usable file.
    pub(crate) fn load(&self) -> Option<LoadedSnapshot> {
        let stored: Stored = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        let mut events = Vec::new();
        for kind in &self.kinds {
            events.push(InformerEvent::ListStarted(*kind));
            for entry in stored.objects.iter().filter(|entry| entry.kind == kind.as_str()) {
                if let Some(object) = entry.watched() {
                    events.push(InformerEvent::Applied(*kind, object));
                }
            }
            events.push(InformerEvent::ListCompleted(*kind));
        }
        let saved_at: Timestamp = stored.saved_at.parse().ok()?;
        // Nothing has changed until then: see `touch`.
        let touched = fs::metadata(&self.path).ok()?.modified().ok().and_then(|at| at.try_into().ok());
        let saved_at = touched.map_or(saved_at, |touched: Timestamp| touched.max(saved_at));
        Some(LoadedSnapshot { saved_at, events, sequence: stored.sequence })
    }
}

/// Notes that the file is current.
pub(crate) fn touch(path: &Path, time: Timestamp) {
    // Without a file there is nothing to note, and one that is full or gone shows when it is written.
    if let Ok(file) = fs::OpenOptions::new().append(true).open(path) {
        let _ = file.set_modified(time.into());
    }
}

/// [`write()`], with a warning if it fails.
pub(crate) fn write_logged(path: &Path, content: &[u8]) {
    if let Err(error) = write(path, content) {
        tracing::warn!(file = %path.display(), %error, "the snapshot was not written");
    }
}

/// Writes a new file for its owner alone, and renames it: a crash leaves the previous one.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, content, true)
}

fn mark_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".mark");
    name.into()
}

fn replace(path: &Path, content: &[u8], is_synced: bool) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    if is_synced {
        file.sync_all()?;
    }
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, value: u32) -> WatchedObject {
        let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"d"}},"value":{value}}}"#);
        serde_json::from_str(&text).expect("an object")
    }

    fn names(events: &[InformerEvent]) -> Vec<String> {
        let shown = |event: &InformerEvent| match event {
            InformerEvent::Applied(kind, object) => Some(format!("{} {}", kind.as_str(), object.text())),
            _ => None,
        };
        events.iter().filter_map(shown).collect()
    }

    #[test]
    fn what_was_watched_is_read_back_and_an_incomplete_list_is_not_written() {
        let folder = std::env::temp_dir().join(format!("zoneward-snapshot-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("snapshot.json");
        let kinds = vec![ObjectKind::Service, ObjectKind::Slice];
        let mut file = SnapshotFile::new(&path, kinds.clone());
        let (now, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        assert!(file.is_unheard() && file.load().is_none());
        for kind in &kinds {
            file.observe(&InformerEvent::ListStarted(*kind));
            file.observe(&InformerEvent::Applied(*kind, object("a", 1)));
            assert!(file.due(now, time).is_none());
            file.observe(&InformerEvent::ListCompleted(*kind));
            file.mark().expect("marked");
        }
        let (to, content) = file.due(now, time).expect("complete");
        write(&to, &content).expect("written");
        let later = now + file.interval;
        assert!(file.interval > MIN_INTERVAL && file.due(later, time).is_none(), "unchanged");
        let current_at: Timestamp = "2040-01-01T00:00:00Z".parse().expect("a time");
        touch(&path, current_at);
        let loaded = file.load().expect("stored");
        let (saved, events) = (loaded.saved_at, &loaded.events);
        assert_eq!((saved, names(events).len(), events.len()), (current_at, 2, 6));
        let decide = || {
            let next = SnapshotFile::new(&path, kinds.clone());
            next.offline_start(&next.load().expect("stored"), true)
        };
        assert_eq!(decide(), OfflineStart::Snapshot);

        // A list that lacks an object deletes it; a change in between waits for the interval.
        file.observe(&InformerEvent::ListStarted(ObjectKind::Slice));
        file.observe(&InformerEvent::Applied(ObjectKind::Slice, object("b", 2)));
        file.observe(&InformerEvent::ListCompleted(ObjectKind::Slice));
        assert!(file.due(now, time).is_none() && file.due_at() == Some(later));
        file.mark().expect("marked");
        assert_eq!(decide(), OfflineStart::Kernel, "the kernel may have what the file has not");
        let (to, content) = file.due(later, time).expect("due");
        assert_eq!(decide(), OfflineStart::Kernel, "not written yet");
        write(&to, &content).expect("written");
        assert_eq!(decide(), OfflineStart::Snapshot);
        let stored = names(&file.load().expect("stored").events);
        assert_eq!(stored.len(), 2);
        assert!(stored[1].contains("\"b\""), "{stored:?}");
        // The service of vectors/protobuf.json would do as well: name and namespace in metadata, and a field.
        let message = [&[0x0a, 0x06, 0x0a, 0x01, b'm', 0x1a, 0x01, b'd'][..], &[0x12, 0x00]].concat();
        let object = WatchedObject::from_message(message.clone().into()).expect("a message");
        assert_eq!((object.namespace(), object.name()), ("d", "m"));
        file.observe(&InformerEvent::Applied(ObjectKind::Service, object.clone()));
        let (to, content) = file.due(later + file.interval, time).expect("due");
        write(&to, &content).expect("written");
        file.observe(&InformerEvent::Applied(ObjectKind::Service, object));
        assert!(file.due_at().is_none(), "unchanged");
        let loaded = file.load().expect("stored").events;
        let messages = loaded.iter().filter_map(|event| match event {
            InformerEvent::Applied(_, object) => object.message(),
            _ => None,
        });
        assert_eq!(messages.map(|bytes| bytes.to_vec()).collect::<Vec<_>>(), [message]);
        assert_eq!(names(&loaded).len(), 3, "in both forms");
        fs::write(&path, "half").expect("written");
        assert!(file.load().is_none(), "a damaged file is not used");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
