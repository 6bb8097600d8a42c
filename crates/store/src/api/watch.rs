//! Watches: a streamed response with one JSON event per line, or with frames of protobuf.
//!
//! ```text
//! current objects as ADDED (without a resourceVersion, or with sendInitialEvents)
//! -> a bookmark that ends them (sendInitialEvents)
//! -> events, each once and in order; bookmarks between them (allowWatchBookmarks)
//! -> the end after timeoutSeconds, or an ERROR with 410 when the client fell too far behind
//! ```
//!
//! A watch is the body of its response: the connection polls it when the client can take more, and it has no task and no
//! queue. For a slow client the server keeps its position in the log and at most one batch, which counts for the memory of
//! its user.

mod bookmark;
mod event_encoder;
mod gzip;
mod selectable_fields;
mod shared_batches;

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::body::FRAME;
use super::fairness::HeldShare;
use super::list::included;
use super::negotiation::Accept;
use super::paged_list::PagedList;
use super::{Api, ResourceRequest, ResponseBody, body, read_error};
use crate::engine::{ResourceId, Revision, StoreReadError, Watcher};
use crate::protobuf::object_encoder::ObjectEncoder;
use crate::query::ListOptions;
use crate::status::StatusError;
use bookmark::BookmarkTimer;
use event_encoder::{EventEncoder, Share, error_event};
use gzip::{EncodedEvents, GzipStream};
use shared_batches::BatchHandle;
pub(super) use shared_batches::SharedBatches;

/// Duration of a watch without timeoutSeconds.
const DEFAULT_SECONDS: u64 = 3_600;
const MAX_SECONDS: u64 = 24 * DEFAULT_SECONDS;

impl Api {
    pub(super) fn watch(
        &self,
        request: &ResourceRequest,
        mut options: ListOptions,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let place = self.fairness.watch(request.flow.as_ref())?;
        let from = options.watch_from.unwrap_or(0);
        let starts_with_objects = options.initial_events || from == 0 && !declines_objects(request);
        if from > self.engine.revision().0 {
            return Err(StatusError::too_large_resource_version(from, self.engine.revision().0));
        }
        let mut first = None;
        let mut revision = Revision(from);
        if starts_with_objects {
            (options.limit, options.continue_token) = (0, None);
            options.version = crate::query::ListVersion::Newest;
            let pages = PagedList::begin(self, &request.info, &options)?;
            revision = pages.revision();
            first = Some(pages);
        } else if from == 0 {
            revision = self.engine.revision();
        }
        let (kind, namespace) = (request.info.kind, request.info.namespace.as_deref());
        let watcher = match self.engine.watch(ResourceId(kind.id), namespace, revision) {
            Ok(watcher) => watcher,
            // As in Kubernetes: the watch starts, and its only event is the error.
            Err(error @ StoreReadError::Gone { .. }) => {
                return Ok(ended(&read_error(error), &request.accept));
            }
            Err(error) => return Err(read_error(error)),
        };
        let batches = self.batches.subscribe(request);
        let (accept, include, clock) = (request.accept.clone(), included(request), self.clock().clone());
        let drops_managed_fields = accept.drops_managed_fields;
        let protobuf = accept.protobuf.then(|| ObjectEncoder::of(kind, drops_managed_fields)).flatten();
        let encoder = EventEncoder { kind, options, accept, include, clock, protobuf, described: false };
        let every = self.limits.bookmark_every;
        Ok(body::watch(WatchStream::new(encoder, first, watcher, revision, batches, every, place)))
    }
}

/// A watch with an error as its only event.
fn ended(error: &StatusError, accept: &Accept) -> Response<ResponseBody> {
    body::watch_event(error_event(error, accept.protobuf), accept.protobuf)
}

/// `sendInitialEvents=false` requests new events only.
fn declines_objects(request: &ResourceRequest) -> bool {
    request.query.value("sendInitialEvents").is_some_and(|value| value == "false")
}

enum Phase {
    /// The initial objects, and their revision.
    Objects(Option<Box<PagedList>>, Revision),
    Events,
    /// A bookmark is due, after all pending events; then the end, or not.
    Bookmark {
        then_end: bool,
    },
    End,
}

/// A watch in progress.
pub struct WatchStream {
    encoder: EventEncoder,
    phase: Phase,
    watcher: Watcher,
    batches: Option<BatchHandle>,
    /// Encoded events that are not sent yet.
    unsent: Bytes,
    gzip: Option<GzipStream>,
    timer: BookmarkTimer,
    /// Counts against the limit of open watches.
    _place: Option<HeldShare>,
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "WatchStream({:?})", self.watcher.position())
    }
}

impl WatchStream {
    fn new(
        encoder: EventEncoder,
        first: Option<PagedList>,
        watcher: Watcher,
        revision: Revision,
        batches: Option<BatchHandle>,
        every: Duration,
        place: Option<HeldShare>,
    ) -> Self {
        let seconds = encoder.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let lasts = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS).min(MAX_SECONDS));
        let timer = BookmarkTimer::new(encoder.options.bookmarks.then_some(every), lasts);
        let phase = Phase::Objects(first.map(Box::new), revision);
        let gzip = encoder.accept.gzip.then(GzipStream::default);
        Self { encoder, phase, watcher, batches, unsent: Bytes::new(), gzip, timer, _place: place }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.gzip.is_some()
    }

    pub(super) fn is_protobuf(&self) -> bool {
        self.encoder.protobuf.is_some()
    }

    fn put(&mut self, events: EncodedEvents) {
        self.unsent = match &mut self.gzip {
            Some(gzip) => gzip.next(events),
            None => events.bytes,
        };
    }

    /// Bytes in memory.
    pub(super) fn held(&self) -> usize {
        let pages = match &self.phase {
            Phase::Objects(Some(pages), _) => pages.held(),
            _ => 0,
        };
        self.unsent.len() + pages
    }

    /// The next chunk; `None` at the end.
    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if !self.unsent.is_empty() {
                let len = self.unsent.len().min(FRAME);
                return Poll::Ready(Some(self.unsent.split_to(len)));
            }
            let step = match &mut self.phase {
                Phase::End => return Poll::Ready(self.gzip.as_mut().and_then(GzipStream::end)),
                Phase::Objects(..) => self.objects(),
                Phase::Events => match self.events(context) {
                    Poll::Ready(step) => step,
                    Poll::Pending => return Poll::Pending,
                },
                Phase::Bookmark { then_end } => {
                    let then_end = *then_end;
                    self.bookmark(then_end, context)
                }
            };
            if let Err(error) = step {
                let error = self.encoder.error(&error);
                self.put(self.encoder.encoded(error, Share::One));
                self.phase = Phase::End;
            }
        }
    }

    /// A page of the initial objects.
    fn objects(&mut self) -> Result<(), StatusError> {
        let Phase::Objects(pages, revision) = &mut self.phase else { return Ok(()) };
        let revision = *revision;
        if let Some(objects) = pages.as_mut().map_or(Ok(None), |pages| pages.next())? {
            let objects = self.encoder.objects(&objects);
            self.put(self.encoder.encoded(objects, Share::One));
            return Ok(());
        }
        self.phase = Phase::Events;
        if self.encoder.options.initial_events {
            let bookmark = self.encoder.bookmark(revision, true);
            self.put(self.encoder.encoded(bookmark, Share::One));
        }
        Ok(())
    }

    fn events(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StatusError>> {
        match self.watcher.poll_notified(context) {
            Poll::Ready(Ok(to)) => return Poll::Ready(self.batch(to).map_err(read_error)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(read_error(error))),
            Poll::Pending => {}
        }
        self.timer.poll(context).map(|then_end| {
            // Also at the end, so that the client can resume without reading anything twice.
            self.phase = match (self.encoder.options.bookmarks, then_end) {
                (true, _) => Phase::Bookmark { then_end },
                (false, true) => Phase::End,
                (false, false) => Phase::Events,
            };
            Ok(())
        })
    }

    /// Pending events come before the bookmark.
    fn bookmark(&mut self, then_end: bool, context: &mut Context<'_>) -> Result<(), StatusError> {
        if let Poll::Ready(notified) = self.watcher.poll_notified(context) {
            return notified.and_then(|to| self.batch(to)).map_err(read_error);
        }
        let revision = self.watcher.progress();
        let bookmark = self.encoder.bookmark(revision, false);
        self.put(self.encoder.encoded(bookmark, Share::One));
        self.phase = if then_end { Phase::End } else { Phase::Events };
        Ok(())
    }

    /// The next events up to a revision, encoded once for all equal watches.
    fn batch(&mut self, to: Revision) -> Result<(), StoreReadError> {
        let from = self.watcher.position();
        if let Some((end, bytes)) = self.batches.as_ref().and_then(|batches| batches.between(from, to)) {
            self.watcher.skip_to(end);
            self.put(bytes);
            return Ok(());
        }
        let events = self.watcher.notified_events()?;
        let events = self.encoder.events(&events);
        let events = self.encoder.encoded(events, Share::Many);
        if let Some(batches) = &self.batches {
            batches.keep(from, to, self.watcher.position(), &events);
        }
        self.put(events);
        Ok(())
    }
}
