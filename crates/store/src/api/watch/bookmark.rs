//! Watch bookmarks: events that carry only the resourceVersion up to which a client has everything, and the timer that
//! sends them and ends the watch.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep_until};

use super::super::negotiation::ResponseForm;
use super::event_encoder::EventEncoder;
use crate::engine::Revision;
use crate::table;

impl EventEncoder {
    /// A bookmark; the one after the initial objects has an annotation.
    pub(super) fn bookmark(&mut self, at: Revision, ends_initial: bool) -> Bytes {
        let mut meta = json!({"resourceVersion": at.to_string(), "creationTimestamp": null});
        if ends_initial {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({"metadata": meta});
        match self.accept.form {
            ResponseForm::Object => self.kind.stamp(&mut object),
            ResponseForm::Metadata => object = table::partial(&object),
            ResponseForm::Table => object = self.table(&object),
        }
        self.event("BOOKMARK", object.to_string().as_bytes())
    }
}

/// Fires when a bookmark is due, and at the end of a watch.
pub(super) struct BookmarkTimer {
    sleep: Pin<Box<Sleep>>,
    /// The interval of bookmarks; `None` if the client does not allow them.
    every: Option<Duration>,
    end: Instant,
}

impl BookmarkTimer {
    pub(super) fn new(every: Option<Duration>, lasts: Duration) -> Self {
        let end = Instant::now() + lasts;
        let mut timer = Self { sleep: Box::pin(sleep_until(end)), every, end };
        timer.restart();
        timer
    }

    fn restart(&mut self) {
        let next = self.every.map_or(self.end, |every| self.end.min(Instant::now() + every));
        self.sleep.as_mut().reset(next);
    }

    /// True at the end of the watch, false when only a bookmark is due.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.sleep.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.restart();
        Poll::Ready(Instant::now() >= self.end)
    }
}
