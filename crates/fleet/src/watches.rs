//! Invariant 2 at the clients' side: a watch shows every change of its kind once and in order, or ends with 410.

use std::borrow::Cow;
use std::collections::BTreeMap;

use model::protobuf::{self, FRAME_HEADER};
use serde::Deserialize;
use store::kinds;

use crate::truth::Truth;
use crate::violation::BrokenInvariant;

#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    object: WatchLineObject<'a>,
}

#[derive(Deserialize)]
struct WatchLineObject<'a> {
    #[serde(default, borrow)]
    metadata: WatchLineMetadata<'a>,
}

/// Everything else in an object is skipped, not stored.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchLineMetadata<'a> {
    #[serde(default, borrow)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    annotations: Option<WatchLineAnnotations<'a>>,
}

#[derive(Deserialize)]
struct WatchLineAnnotations<'a> {
    #[serde(default, borrow, rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<Cow<'a, str>>,
}

/// What an event says, as a line of JSON or as a frame of protobuf.
struct ReceivedEvent<'a> {
    word: Cow<'a, str>,
    revision: Option<u64>,
    ends_initial_events: bool,
}

impl<'a> ReceivedEvent<'a> {
    fn of_line(line: &'a [u8]) -> Option<Self> {
        let line = serde_json::from_slice::<WatchLine<'_>>(line).ok()?;
        let WatchLineMetadata { resource_version, annotations } = line.object.metadata;
        let ends = annotations.and_then(|all| all.initial_events_end);
        Some(Self {
            word: line.r#type,
            revision: resource_version.and_then(|text| text.parse().ok()),
            ends_initial_events: ends.as_deref() == Some("true"),
        })
    }

    fn of_frame(frame: &'a [u8]) -> Option<Self> {
        let (word, object) = protobuf::watch_event(frame).ok()?;
        let envelope = protobuf::envelope(object).ok()?;
        let head = protobuf::head(envelope.raw).ok()?;
        let revision = head.resource_version.parse().ok();
        Some(Self { word: word.into(), revision, ends_initial_events: head.ends_initial_events })
    }

    /// The first event, and how many bytes it has; `None` if it is not complete. The length before a frame begins with a
    /// zero, because no frame is that long.
    fn first(bytes: &'a [u8]) -> Option<(usize, Option<Self>)> {
        if bytes.first() == Some(&0) {
            let end = FRAME_HEADER + protobuf::frame_length(bytes).ok()??;
            return Some((end, Self::of_frame(bytes.get(FRAME_HEADER..end)?)));
        }
        let len = bytes.iter().position(|byte| *byte == b'\n')?;
        Some((len + 1, Self::of_line(&bytes[..len])))
    }
}

struct WatchPosition {
    kind: u16,
    namespace: Option<String>,
    /// Selectors hide changes: only the order is checked.
    is_filtered: bool,
    /// `None` while the initial objects are sent.
    position: Option<u64>,
    unread: Vec<u8>,
}

/// The watches that are open, by call.
#[derive(Default)]
pub(crate) struct WatchChecker {
    open: BTreeMap<u64, WatchPosition>,
    pub events: u64,
}

impl WatchChecker {
    /// A watch starts; its request is `GET /apis/...?watch=true&...`.
    pub(crate) fn start(&mut self, id: u64, line: &str) {
        let Some((path, query)) = line.strip_prefix("GET ").and_then(|line| line.split_once('?')) else {
            return;
        };
        let words: Vec<&str> = path.split('/').collect();
        let Some(plural) = words.last() else { return };
        let Some(kind) = kinds::stored().find(|kind| kind.plural == *plural) else { return };
        let namespace = words.iter().position(|word| *word == "namespaces").and_then(|at| words.get(at + 1));
        let namespace = namespace.filter(|_| *plural != "namespaces").map(|name| (*name).to_owned());
        let value = |name: &str| {
            let parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
            parameters.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        let initial = value("sendInitialEvents").is_some_and(|value| value == "true");
        let from = value("resourceVersion").and_then(|text| text.parse().ok()).filter(|from| *from > 0);
        let is_filtered = value("labelSelector").is_some() || value("fieldSelector").is_some();
        let position = from.filter(|_| !initial);
        self.open.insert(
            id,
            WatchPosition { kind: kind.id, namespace, is_filtered, position, unread: Vec::new() },
        );
    }

    pub(crate) fn end(&mut self, id: u64) {
        self.open.remove(&id);
    }

    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// The API sent a frame.
    pub(crate) fn frame(&mut self, id: u64, bytes: &[u8], truth: &Truth) -> Result<(), BrokenInvariant> {
        let Some(watch) = self.open.get_mut(&id) else { return Ok(()) };
        let mut unread = std::mem::take(&mut watch.unread);
        unread.extend_from_slice(bytes);
        let mut start = 0;
        while let Some((len, event)) = ReceivedEvent::first(&unread[start..]) {
            start += len;
            let Some(event) = event else { continue };
            self.events += 1;
            watch.event(&event, truth)?;
        }
        unread.drain(..start);
        watch.unread = unread;
        Ok(())
    }
}

impl WatchPosition {
    fn event(&mut self, event: &ReceivedEvent<'_>, truth: &Truth) -> Result<(), BrokenInvariant> {
        let is_bookmark = event.word == "BOOKMARK";
        let Some(revision) = event.revision.filter(|_| event.word != "ERROR") else { return Ok(()) };
        let Some(position) = self.position else {
            self.position = Some(revision).filter(|_| is_bookmark && event.ends_initial_events);
            return Ok(());
        };
        let is_late = if is_bookmark { revision < position } else { revision <= position };
        if is_late {
            return Err(BrokenInvariant::new(
                2,
                format!("a watch at revision {position} got {} {revision}", event.word),
            ));
        }
        let until = if is_bookmark { revision + 1 } else { revision };
        let missed = truth.changed_between(self.kind, self.namespace.as_deref(), position, until);
        if let Some(missed) = missed.filter(|_| !self.is_filtered) {
            return Err(BrokenInvariant::new(
                2,
                format!("a watch went from {position} to {revision} without {missed}"),
            ));
        }
        self.position = Some(revision);
        Ok(())
    }
}
