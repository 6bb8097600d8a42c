//! Encodes watch events as lines of JSON, in the negotiated form.
//! With a selector, an object that starts to match is ADDED and one that stops is DELETED.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use clock::Clock;
use flate2::Compression;
use serde_json::{Value, json};

use super::super::list::{is_selected, selects};
use super::super::negotiation::{Accept, ResponseForm};
use super::super::parse;
use super::gzip::EncodedEvents;
use super::selectable_fields::SelectableFields;
use crate::engine::{WatchEvent, WatchEventType};
use crate::kinds::ResourceKind;
use crate::query::ListOptions;
use crate::table::{self, IncludeObject};

pub(super) struct EventEncoder {
    pub(super) kind: &'static ResourceKind,
    pub(super) options: ListOptions,
    pub(super) accept: Accept,
    pub(super) include: IncludeObject,
    /// For ages in tables.
    pub(super) clock: Clock,
    /// The first table of a watch describes the columns.
    pub(super) described: bool,
}

/// For how many watches something is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    One,
    Many,
}

impl EventEncoder {
    /// Lines as they are sent: compressed more for many than for one.
    pub(super) fn encoded(&self, lines: Bytes, share: Share) -> EncodedEvents {
        match (self.accept.gzip, share) {
            (false, _) => EncodedEvents::plain(lines),
            (true, Share::One) => EncodedEvents::deflated(&lines, Compression::fast()),
            (true, Share::Many) => EncodedEvents::deflated(&lines, Compression::default()),
        }
    }

    /// The initial objects.
    pub(super) fn objects(&mut self, objects: &[Bytes]) -> Bytes {
        let mut chunk = BytesMut::new();
        for object in objects {
            self.put("ADDED", object, &mut chunk);
        }
        chunk.freeze()
    }

    /// Events that the selectors match.
    pub(super) fn events(&mut self, events: &[Arc<WatchEvent>]) -> Bytes {
        let size: usize = events.iter().map(|event| event.json.len() + 40).sum();
        let mut chunk =
            BytesMut::with_capacity(if self.accept.form == ResponseForm::Object { size } else { 0 });
        for event in events {
            if let Some(word) = self.event_type(event) {
                self.put(word, &event.json, &mut chunk);
            }
        }
        chunk.freeze()
    }

    /// The type of an event for this watch; `None` if the selectors do not match.
    fn event_type(&self, event: &WatchEvent) -> Option<&'static str> {
        if self.options.labels.is_empty() && self.options.fields.is_empty() {
            return Some(match event.kind {
                WatchEventType::Added => "ADDED",
                WatchEventType::Modified => "MODIFIED",
                WatchEventType::Deleted => "DELETED",
            });
        }
        let (before, after) = self.selected(event);
        match (before, after) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }

    /// Whether the selectors match before and after the change.
    fn selected(&self, event: &WatchEvent) -> (bool, bool) {
        if self.kind.is_converted() {
            // The memo is for watches of the stored kind.
            let selected = |json: &[u8]| is_selected(self.kind, &self.options, json).unwrap_or(false);
            let after = event.kind != WatchEventType::Deleted && selected(&event.json);
            return (event.before.as_deref().is_some_and(selected), after);
        }
        let fields = SelectableFields::of(event, self.kind);
        let selected =
            |fields: &Option<Value>| fields.as_ref().is_some_and(|fields| selects(&self.options, fields));
        (selected(&fields.before), selected(&fields.after))
    }

    fn put(&mut self, word: &str, json: &Bytes, chunk: &mut BytesMut) {
        let json = self.accept.shown(json.clone());
        if self.accept.form == ResponseForm::Object && !self.kind.is_converted() {
            return put_line(chunk, word, &json);
        }
        let Ok(object) = parse(&json) else { return };
        let shown = match self.accept.form {
            ResponseForm::Object => self.kind.converted(&object).into_owned(),
            ResponseForm::Metadata => table::partial(&object),
            ResponseForm::Table => self.table(&object),
        };
        put_line(chunk, word, shown.to_string().as_bytes());
    }

    pub(super) fn table(&mut self, object: &Value) -> Value {
        let list = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let now = self.clock.timestamp().as_second();
        let mut table = table::table(self.kind, std::slice::from_ref(object), list, self.include, now);
        if self.described {
            table["columnDefinitions"] = Value::Null;
        }
        self.described = true;
        table
    }
}

/// One event.
pub(super) fn line(word: &str, json: &[u8]) -> Bytes {
    let mut line = BytesMut::new();
    put_line(&mut line, word, json);
    line.freeze()
}

fn put_line(chunk: &mut BytesMut, word: &str, json: &[u8]) {
    chunk.reserve(json.len() + 40);
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(word.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(json);
    chunk.put_slice(b"}\n");
}
