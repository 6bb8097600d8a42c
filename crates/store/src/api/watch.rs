//! watch: a response that lasts, with one JSON object per line for every change.
//!
//! ```text
//! objects now, as ADDED (without a version, or with sendInitialEvents)
//! -> a bookmark that ends them (sendInitialEvents)
//! -> changes, each once and in order; bookmarks between them (allowWatchBookmarks)
//! -> the end after timeoutSeconds, or an ERROR with 410 when the client fell too far behind
//! ```
//!
//! A watch is the body of its response: the connection asks it for more when the client has room, and it has no task
//! and no queue of its own. So a slow client costs nothing but its place in the log.

mod batches;
mod view;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use super::pages::Pages;
use super::read::included;
use super::{Api, Body, Call, body, read_failure};
use crate::engine::{ReadError, ResourceId, Revision, Watcher};
use crate::query::ListOptions;
use crate::status::Failure;
pub(super) use batches::Batches;
use batches::Share;
use view::{View, line};

/// How large a frame is at most: with its head one record of TLS, and what HTTP/2 takes in one piece.
const FRAME: usize = (16 << 10) - 9;
/// Clients that say nothing are asked to come again after this time.
const LONGEST_SECONDS: u64 = 3_600;

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
        let watcher = match self.engine.watch(ResourceId(kind.id), namespace, revision) {
            Ok(watcher) => watcher,
            // As API servers do it: the watch begins, and its only event says why it ends.
            Err(error @ ReadError::Gone { .. }) => return Ok(ended(&read_failure(error))),
            Err(error) => return Err(read_failure(error)),
        };
        let share = self.batches.share(call);
        let view = View { kind, options, form: call.accept.form, include: included(call), described: false };
        let every = self.limits.bookmark_every;
        Ok(body::watch(Following::new(view, first, watcher, revision, share, every, permit)))
    }
}

/// A watch that is over before it began.
fn ended(failure: &Failure) -> Response<Body> {
    body::bytes(200, line("ERROR", failure.to_json().to_string().as_bytes()))
}

/// `sendInitialEvents=false` asks for changes alone.
fn has_declined(call: &Call) -> bool {
    call.query.value("sendInitialEvents").is_some_and(|value| value == "false")
}

/// Where a watch is.
enum Phase {
    /// The objects that were there, and the revision that they have together.
    Objects(Option<Box<Pages>>, Revision),
    /// What happens to them.
    Changes,
    /// A bookmark is due, behind all changes that there are; then an end, or not.
    Bookmark { then_end: bool },
    /// Nothing comes any more.
    End,
}

/// A watch under way.
pub struct Following {
    view: View,
    phase: Phase,
    watcher: Watcher,
    share: Option<Share>,
    /// What the client gets next.
    waiting: Bytes,
    /// Rings when something is due by the clock.
    clock: Pin<Box<Sleep>>,
    every: Duration,
    bookmark: Instant,
    end: Instant,
    /// Gives the place among the watches back.
    _permit: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Following {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Following({:?})", self.watcher.position())
    }
}

impl Following {
    fn new(
        view: View,
        first: Option<Pages>,
        watcher: Watcher,
        revision: Revision,
        share: Option<Share>,
        every: Duration,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let seconds = view.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let seconds = seconds.unwrap_or(LONGEST_SECONDS).min(LONGEST_SECONDS * 24);
        let now = Instant::now();
        let (bookmark, end) = (now + every, now + Duration::from_secs(seconds));
        let phase = Phase::Objects(first.map(Box::new), revision);
        let mut following = Self {
            view,
            phase,
            watcher,
            share,
            waiting: Bytes::new(),
            clock: Box::pin(sleep_until(end)),
            every,
            bookmark,
            end,
            _permit: permit,
        };
        following.set_clock();
        following
    }

    fn set_clock(&mut self) {
        let next = if self.view.options.bookmarks { self.bookmark.min(self.end) } else { self.end };
        self.clock.as_mut().reset(next);
    }

    /// The next piece for the client, or nothing at the end.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if !self.waiting.is_empty() {
                let len = self.waiting.len().min(FRAME);
                return Poll::Ready(Some(self.waiting.split_to(len)));
            }
            let step = match &mut self.phase {
                Phase::End => return Poll::Ready(None),
                Phase::Objects(..) => self.objects(),
                Phase::Changes => match self.changes(context) {
                    Poll::Ready(step) => step,
                    Poll::Pending => return Poll::Pending,
                },
                Phase::Bookmark { then_end } => {
                    let then_end = *then_end;
                    self.bookmark(then_end, context)
                }
            };
            if let Err(failure) = step {
                self.waiting = line("ERROR", failure.to_json().to_string().as_bytes());
                self.phase = Phase::End;
            }
        }
    }

    /// Some of the objects with which the watch begins.
    fn objects(&mut self) -> Result<(), Failure> {
        let Phase::Objects(pages, revision) = &mut self.phase else { return Ok(()) };
        let revision = *revision;
        // A page that cannot be read is as with changes: the client fell too far behind, and lists again.
        if let Some(objects) = pages.as_mut().map_or(Ok(None), |pages| pages.next())? {
            self.waiting = self.view.objects(&objects);
            return Ok(());
        }
        self.phase = Phase::Changes;
        if self.view.options.initial_events {
            self.waiting = self.view.bookmark(revision, true);
        }
        Ok(())
    }

    fn changes(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self.watcher.poll_news(context) {
            Poll::Ready(Ok(to)) => return Poll::Ready(self.batch(to).map_err(read_failure)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(read_failure(error))),
            Poll::Pending => {}
        }
        if self.clock.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        let now = Instant::now();
        let then_end = now >= self.end;
        // At the end, too, so that the client can go on from here without reading anything again.
        self.phase = match (self.view.options.bookmarks, then_end) {
            (true, _) => Phase::Bookmark { then_end },
            (false, true) => Phase::End,
            (false, false) => Phase::Changes,
        };
        self.bookmark = now + self.every;
        self.set_clock();
        Poll::Ready(Ok(()))
    }

    /// Changes first, so that the bookmark can say as much as there is to say.
    fn bookmark(&mut self, then_end: bool, context: &mut Context<'_>) -> Result<(), Failure> {
        if let Poll::Ready(news) = self.watcher.poll_news(context) {
            return news.and_then(|to| self.batch(to)).map_err(read_failure);
        }
        let revision = self.watcher.progress();
        self.waiting = self.view.bookmark(revision, false);
        self.phase = if then_end { Phase::End } else { Phase::Changes };
        Ok(())
    }

    /// The next changes up to a revision, as one piece that all watches with the same view share.
    fn batch(&mut self, to: Revision) -> Result<(), ReadError> {
        let from = self.watcher.position();
        if let Some((end, bytes)) = self.share.as_ref().and_then(|share| share.between(from, to)) {
            self.watcher.skip_to(end);
            self.waiting = bytes;
            return Ok(());
        }
        let changes = self.watcher.news()?;
        self.waiting = self.view.changes(&changes);
        if let Some(share) = &self.share {
            share.keep(from, to, self.watcher.position(), &self.waiting);
        }
        Ok(())
    }
}
