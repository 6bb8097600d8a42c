//! watch: a response that lasts, with one JSON object per line for every change.
//!
//! ```text
//! objects now, as ADDED (without a version, or with sendInitialEvents)
//! -> a bookmark that ends them (sendInitialEvents)
//! -> changes, each once and in order; bookmarks between them (allowWatchBookmarks)
//! -> the end after timeoutSeconds, or an ERROR with 410 when the client fell too far behind
//! ```
//!
//! With a selector, an object that comes into view is ADDED and one that leaves it is DELETED.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until};

use super::accept::Form;
use super::basis::Basis;
use super::pages::Pages;
use super::read::{included, now, selects};
use super::{Api, Body, Call, body, parse, read_failure};
use crate::engine::{Change, ChangeKind, ResourceId, Revision, Watcher};
use crate::kinds::Kind;
use crate::query::ListOptions;
use crate::status::Failure;
use crate::table::{self, IncludeObject};

/// How many pieces may wait for a slow client.
const PIECES: usize = 16;
/// How large a piece grows before it is sent.
const PIECE: usize = 64 << 10;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Clients that say nothing are asked to come again after this time.
const LONGEST_SECONDS: u64 = 3_600;

/// How a watch shows its objects.
struct View {
    kind: &'static Kind,
    options: ListOptions,
    form: Form,
    include: IncludeObject,
    /// A table's columns are described once.
    described: bool,
}

impl Api {
    pub(super) async fn watch(
        &self,
        call: &Call,
        mut options: ListOptions,
    ) -> Result<Response<Body>, Failure> {
        let permit = self.watches.clone().try_acquire_owned().map_err(|_| {
            let most = self.limits.watches;
            Failure::too_many_requests(format!("{most} watches are open, which is the most: close some"))
        })?;
        let from = options.watch_from.unwrap_or(0);
        let starts_with_objects = options.initial_events || from == 0 && !has_declined(call);
        if from > self.engine.revision().0 {
            return Err(Failure::too_large_resource_version(from, self.engine.revision().0));
        }
        let mut first = None;
        let mut revision = Revision(from);
        if starts_with_objects {
            (options.limit, options.continue_token) = (0, None);
            options.version = crate::query::ListVersion::Newest;
            let pages = Pages::begin(self, &call.target, &options)?;
            revision = pages.revision();
            first = Some(pages);
        } else if from == 0 {
            revision = self.engine.revision();
        }
        let (kind, namespace) = (call.target.kind, call.target.namespace.as_deref());
        let watcher = self.engine.watch(ResourceId(kind.id), namespace, revision).map_err(read_failure)?;
        let view = View { kind, options, form: call.accept.form, include: included(call), described: false };
        let (sender, pieces) = mpsc::channel(PIECES);
        tokio::spawn(run(view, first, watcher, revision, sender, permit));
        Ok(body::stream(pieces))
    }
}

/// `sendInitialEvents=false` asks for changes alone.
fn has_declined(call: &Call) -> bool {
    call.query.value("sendInitialEvents").is_some_and(|value| value == "false")
}

/// A client that went away.
struct Left;

async fn run(
    mut view: View,
    first: Option<Pages>,
    mut watcher: Watcher,
    revision: Revision,
    sender: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
) {
    if view.begin(first, revision, &sender).await.is_err() {
        return;
    }
    let seconds = view.options.timeout_seconds.filter(|seconds| *seconds > 0);
    let end =
        Instant::now() + Duration::from_secs(seconds.unwrap_or(LONGEST_SECONDS).min(LONGEST_SECONDS * 24));
    let mut bookmark = Instant::now() + BOOKMARK_EVERY;
    loop {
        let sent = tokio::select! {
            changes = watcher.changes() => match changes {
                Ok(changes) => view.send(&changes, &sender).await,
                Err(error) => {
                    let failure = read_failure(error).to_json();
                    let _ = sender.send(line("ERROR", failure.to_string().as_bytes())).await;
                    return;
                }
            },
            () = sleep_until(bookmark), if view.options.bookmarks => {
                bookmark = Instant::now() + BOOKMARK_EVERY;
                view.bookmark(watcher.progress(), false, &sender).await
            }
            () = sleep_until(end) => {
                // So that the client can go on from here without reading anything again.
                if view.options.bookmarks {
                    let _ = view.bookmark(watcher.progress(), false, &sender).await;
                }
                return;
            }
            () = sender.closed() => return,
        };
        if sent.is_err() {
            return;
        }
    }
}

impl View {
    async fn begin(
        &mut self,
        mut first: Option<Pages>,
        revision: Revision,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), Left> {
        let mut piece = BytesMut::new();
        while let Some(pages) = &mut first {
            let objects = match pages.next() {
                Ok(Some(objects)) => objects,
                Ok(None) => break,
                Err(failure) => {
                    // As with changes: the client fell too far behind, and lists again.
                    put_line(&mut piece, "ERROR", failure.to_json().to_string().as_bytes());
                    send(sender, piece.freeze()).await?;
                    return Err(Left);
                }
            };
            for object in objects {
                self.put("ADDED", &object, &mut piece);
                if piece.len() > PIECE {
                    send(sender, piece.split().freeze()).await?;
                }
            }
        }
        send(sender, piece.freeze()).await?;
        if self.options.initial_events {
            self.bookmark(revision, true, sender).await?;
        }
        Ok(())
    }

    async fn send(
        &mut self,
        changes: &[std::sync::Arc<Change>],
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), Left> {
        let mut piece = BytesMut::new();
        for change in changes {
            if let Some(word) = self.event(change) {
                self.put(word, &change.json, &mut piece);
            }
            if piece.len() > PIECE {
                send(sender, piece.split().freeze()).await?;
            }
        }
        send(sender, piece.freeze()).await
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
        let basis = Basis::of(change, self.kind);
        let before = basis.before.as_ref().is_some_and(|object| selects(&self.options, object));
        let after = basis.after.as_ref().is_some_and(|object| selects(&self.options, object));
        match (before, after) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }

    fn put(&mut self, word: &str, json: &[u8], piece: &mut BytesMut) {
        if self.form == Form::Object {
            return put_line(piece, word, json);
        }
        let Ok(object) = parse(json) else { return };
        let shown = match self.form {
            Form::Metadata => table::partial(&object),
            _ => self.table(&object),
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

    async fn bookmark(
        &mut self,
        at: Revision,
        ends_initial: bool,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), Left> {
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
        send(sender, line("BOOKMARK", object.to_string().as_bytes())).await
    }
}

async fn send(sender: &mpsc::Sender<Bytes>, piece: Bytes) -> Result<(), Left> {
    if piece.is_empty() {
        return Ok(());
    }
    sender.send(piece).await.map_err(|_| Left)
}

fn line(word: &str, json: &[u8]) -> Bytes {
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
