//! Encodes watch events in the negotiated form: as lines of JSON, or as frames of protobuf.
//! With a selector, an object that starts to match is ADDED and one that stops is DELETED.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
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
use crate::protobuf::object_encoder::{ObjectEncoder, status_event};
use crate::query::ListOptions;
use crate::status::StatusError;
use crate::table::{self, IncludeObject};

pub(super) struct EventEncoder {
    pub(super) kind: &'static ResourceKind,
    pub(super) options: ListOptions,
    pub(super) accept: Accept,
    pub(super) include: IncludeObject,
    /// For ages in tables.
    pub(super) clock: Clock,
    /// Of a watch in protobuf.
    pub(super) protobuf: Option<ObjectEncoder>,
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
        let mut chunk = Vec::new();
        for object in objects {
            self.put("ADDED", object, &mut chunk);
        }
        chunk.into()
    }

    /// Events that the selectors match.
    pub(super) fn events(&mut self, events: &[Arc<WatchEvent>]) -> Bytes {
        let size: usize = events.iter().map(|event| event.json.len() + 40).sum();
        let mut chunk = Vec::with_capacity(if self.accept.form == ResponseForm::Object { size } else { 0 });
        for event in events {
            if let Some(word) = self.event_type(event) {
                self.put(word, &event.json, &mut chunk);
            }
        }
        chunk.into()
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

    /// One event of an object as it is in JSON.
    pub(super) fn event(&self, word: &str, json: &[u8]) -> Bytes {
        match &self.protobuf {
            Some(encoder) => {
                let mut frame = Vec::new();
                // Of JSON that was made just now.
                let _ = encoder.put_event(&mut frame, word, json);
                frame.into()
            }
            None => line(word, json),
        }
    }

    /// The event that ends a watch with an error.
    pub(super) fn error(&self, error: &StatusError) -> Bytes {
        error_event(error, self.protobuf.is_some())
    }

    fn put(&mut self, word: &str, json: &Bytes, chunk: &mut Vec<u8>) {
        if let Some(encoder) = &self.protobuf {
            // As below: stored bytes that are not JSON are not sent.
            let _ = encoder.put_event(chunk, word, json);
            return;
        }
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
    let mut line = Vec::new();
    put_line(&mut line, word, json);
    line.into()
}

/// An error as an event.
pub(super) fn error_event(error: &StatusError, is_protobuf: bool) -> Bytes {
    let json = error.to_json().to_string();
    if is_protobuf { status_event(json.as_bytes()).into() } else { line("ERROR", json.as_bytes()) }
}

fn put_line(chunk: &mut Vec<u8>, word: &str, json: &[u8]) {
    chunk.reserve(json.len() + 40);
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(word.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(json);
    chunk.put_slice(b"}\n");
}
