//! How a watch shows objects and changes: as lines of JSON, in the form that the client asked for.
//! With a selector, an object that comes into view is ADDED and one that leaves it is DELETED.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::super::accept::Form;
use super::super::basis::Basis;
use super::super::parse;
use super::super::read::{is_selected, now, selects};
use crate::engine::{Change, ChangeKind, Revision};
use crate::kinds::Kind;
use crate::query::ListOptions;
use crate::table::{self, IncludeObject};

/// How a watch shows its objects.
pub(super) struct View {
    pub(super) kind: &'static Kind,
    pub(super) options: ListOptions,
    pub(super) form: Form,
    pub(super) include: IncludeObject,
    /// A table's columns are described once.
    pub(super) described: bool,
}

impl View {
    /// Objects that are there when the watch begins.
    pub(super) fn objects(&mut self, objects: &[Bytes]) -> Bytes {
        let mut piece = BytesMut::new();
        for object in objects {
            self.put("ADDED", object, &mut piece);
        }
        piece.freeze()
    }

    /// What happened; nothing for what happened out of view.
    pub(super) fn changes(&mut self, changes: &[Arc<Change>]) -> Bytes {
        let size: usize = changes.iter().map(|change| change.json.len() + 40).sum();
        let mut piece = BytesMut::with_capacity(if self.form == Form::Object { size } else { 0 });
        for change in changes {
            if let Some(word) = self.event(change) {
                self.put(word, &change.json, &mut piece);
            }
        }
        piece.freeze()
    }

    /// What the change is to this watcher; nothing if it happened outside of its view.
    fn event(&self, change: &Change) -> Option<&'static str> {
        if self.options.labels.is_empty() && self.options.fields.is_empty() {
            return Some(match change.kind {
                ChangeKind::Added => "ADDED",
                ChangeKind::Modified => "MODIFIED",
                ChangeKind::Deleted => "DELETED",
            });
        }
        let (before, after) = self.selected(change);
        match (before, after) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }

    /// Whether the object is asked for before and after a change.
    fn selected(&self, change: &Change) -> (bool, bool) {
        if self.kind.is_view() {
            // What is noted of a change is for those who watch it as it is stored.
            let selected = |json: &[u8]| is_selected(self.kind, &self.options, json).unwrap_or(false);
            let after = change.kind != ChangeKind::Deleted && selected(&change.json);
            return (change.before.as_deref().is_some_and(selected), after);
        }
        let basis = Basis::of(change, self.kind);
        let selected = |part: &Option<Value>| part.as_ref().is_some_and(|part| selects(&self.options, part));
        (selected(&basis.before), selected(&basis.after))
    }

    fn put(&mut self, word: &str, json: &[u8], piece: &mut BytesMut) {
        if self.form == Form::Object && !self.kind.is_view() {
            return put_line(piece, word, json);
        }
        let Ok(object) = parse(json) else { return };
        let shown = match self.form {
            Form::Object => self.kind.shown(&object).into_owned(),
            Form::Metadata => table::partial(&object),
            Form::Table => self.table(&object),
        };
        put_line(piece, word, shown.to_string().as_bytes());
    }

    fn table(&mut self, object: &Value) -> Value {
        let list = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let mut table = table::table(self.kind, std::slice::from_ref(object), list, self.include, now());
        if self.described {
            table["columnDefinitions"] = Value::Null;
        }
        self.described = true;
        table
    }

    /// Says up to where the client has everything.
    pub(super) fn bookmark(&mut self, at: Revision, ends_initial: bool) -> Bytes {
        let mut meta = json!({"resourceVersion": at.to_string(), "creationTimestamp": null});
        if ends_initial {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({"metadata": meta});
        match self.form {
            Form::Object => self.kind.stamp(&mut object),
            Form::Metadata => object = table::partial(&object),
            Form::Table => object = self.table(&object),
        }
        line("BOOKMARK", object.to_string().as_bytes())
    }
}

/// One event.
pub(super) fn line(word: &str, json: &[u8]) -> Bytes {
    let mut line = BytesMut::new();
    put_line(&mut line, word, json);
    line.freeze()
}

fn put_line(piece: &mut BytesMut, word: &str, json: &[u8]) {
    piece.reserve(json.len() + 40);
    piece.put_slice(b"{\"type\":\"");
    piece.put_slice(word.as_bytes());
    piece.put_slice(b"\",\"object\":");
    piece.put_slice(json);
    piece.put_slice(b"}\n");
}
