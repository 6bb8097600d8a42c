//! The watched objects in a file, so that a node that reboots while the API is away serves what it knew.
//!
//! ```text
//! watches --every event--> SnapshotFile --when it changed, every 2 s and 1 s per MB--> FILE (new file, synced, renamed)
//! start: no watch has listed after 10 s -> FILE, as if the API had listed it; the API's own list replaces it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::{InformerEvent, ObjectKind, WatchedObject};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Time for the API to answer before the file is used.
pub const API_TIMEOUT: Duration = Duration::from_secs(10);
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
    objects: Vec<StoredEntry>,
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    kind: String,
    object: Box<RawValue>,
}

/// Follows the watches and keeps the file up to date.
pub struct SnapshotFile {
    path: PathBuf,
    kinds: Vec<ObjectKind>,
    objects: BTreeMap<Key, Box<str>>,
    /// Objects of lists that are not complete.
    listing: BTreeMap<ObjectKind, BTreeSet<Key>>,
    listed: BTreeSet<ObjectKind>,
    is_changed: bool,
    written_at: Option<Instant>,
    /// Between the last write and the next.
    interval: Duration,
}

impl SnapshotFile {
    pub fn new(path: &Path, kinds: Vec<ObjectKind>) -> Self {
        let (objects, listing, listed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (path, interval) = (path.to_owned(), MIN_INTERVAL);
        Self { path, kinds, objects, listing, listed, is_changed: false, written_at: None, interval }
    }

    /// Whether the API has listed no kind yet.
    pub fn is_unheard(&self) -> bool {
        self.listed.is_empty()
    }

    /// Notes an event of the API.
    pub fn observe(&mut self, event: &InformerEvent) {
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
                self.is_changed |=
                    self.objects.insert(key, object.text().into()).as_deref() != Some(object.text());
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

    /// The content to write, if it is due: the path, and the bytes.
    pub fn due(&mut self, now: Instant, time: Timestamp) -> Option<(PathBuf, Vec<u8>)> {
        let is_early = self.written_at.is_some_and(|at| now.saturating_duration_since(at) < self.interval);
        if is_early || !self.is_due() {
            return None;
        }
        (self.is_changed, self.written_at) = (false, Some(now));
        let entries = self.objects.iter().filter_map(|((kind, ..), text)| {
            let object = RawValue::from_string(text.to_string()).ok()?;
            Some(StoredEntry { kind: kind.as_str().to_owned(), object })
        });
        let stored = Stored { saved_at: time.to_string(), objects: entries.collect() };
        let content = serde_json::to_vec(&stored).ok()?;
        self.interval = MIN_INTERVAL + PER_MEGABYTE.mul_f64(content.len() as f64 / 1e6);
        Some((self.path.clone(), content))
    }

    /// When the next write is due; `None` if there is nothing to write.
    pub fn due_at(&self) -> Option<Instant> {
        self.written_at.filter(|_| self.is_due()).map(|at| at + self.interval)
    }

    /// The stored objects as the events of complete lists, and when they were stored. `None` without a usable file.
    pub fn load(&self) -> Option<(Timestamp, Vec<InformerEvent>)> {
        let stored: Stored = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        let mut events = Vec::new();
        for kind in &self.kinds {
            events.push(InformerEvent::ListStarted(*kind));
            for entry in stored.objects.iter().filter(|entry| entry.kind == kind.as_str()) {
                if let Ok(object) = serde_json::from_str(entry.object.get()) {
                    events.push(InformerEvent::Applied(*kind, object));
                }
            }
            events.push(InformerEvent::ListCompleted(*kind));
        }
        Some((stored.saved_at.parse().ok()?, events))
    }
}

/// Writes a new file for its owner alone, and renames it: a crash leaves the previous one.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
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
        }
        let (to, content) = file.due(now, time).expect("complete");
        write(&to, &content).expect("written");
        let later = now + file.interval;
        assert!(file.interval > MIN_INTERVAL && file.due(later, time).is_none(), "unchanged");
        let (saved, events) = file.load().expect("stored");
        assert_eq!((saved, names(&events).len(), events.len()), (time, 2, 6));

        // A list that lacks an object deletes it; a change in between waits for the interval.
        file.observe(&InformerEvent::ListStarted(ObjectKind::Slice));
        file.observe(&InformerEvent::Applied(ObjectKind::Slice, object("b", 2)));
        file.observe(&InformerEvent::ListCompleted(ObjectKind::Slice));
        assert!(file.due(now, time).is_none() && file.due_at() == Some(later));
        let (to, content) = file.due(later, time).expect("due");
        write(&to, &content).expect("written");
        let stored = names(&file.load().expect("stored").1);
        assert_eq!(stored.len(), 2);
        assert!(stored[1].contains("\"b\""), "{stored:?}");
        fs::write(&path, "half").expect("written");
        assert!(file.load().is_none(), "a damaged file is not used");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
