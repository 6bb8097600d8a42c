//! Chunks of bodies, counted while they are buffered, and the limit on all of them together.
//!
//! Body bytes are buffered in two places: chunks that wait for a socket (`queued`), and the read-ahead of a body whose
//! last chunk still waits (`read_ahead`). A body that would queue more waits for room. Room depends only on the peers
//! that read chunks, so bodies cannot wait for each other in a cycle.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::SizeHint;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::downstream::idle_timeout::ConnectionActivity;
use crate::stats::Counter;

/// The limit on buffered body bytes of all requests.
#[derive(Debug)]
pub(crate) struct BufferBudget {
    limit: usize,
    queued: AtomicUsize,
    read_ahead: AtomicUsize,
    room: Arc<Notify>,
    /// Downstream connections closed because the client stalled.
    pub(crate) stalled: Counter,
}

impl BufferBudget {
    pub(crate) fn new(limit: usize) -> Self {
        let (queued, read_ahead) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { limit, queued, read_ahead, room: Arc::default(), stalled: Counter::default() }
    }

    pub(crate) fn held(&self) -> usize {
        self.queued.load(Relaxed).saturating_add(self.read_ahead.load(Relaxed))
    }

    /// Whether new requests are refused.
    pub(crate) fn is_spent(&self) -> bool {
        self.held() >= self.limit
    }

    /// Half is for queued chunks, half for read-ahead.
    fn has_room(&self) -> bool {
        self.queued.load(Relaxed) <= self.limit / 2
    }

    fn add_queued(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Relaxed);
    }

    fn remove_queued(&self, bytes: usize) {
        let before = self.queued.fetch_sub(bytes, Relaxed);
        if before > self.limit / 2 && before - bytes <= self.limit / 2 {
            self.room.notify_waiters();
        }
    }
}

/// Bytes of a body, counted until they are dropped.
#[derive(Debug)]
pub(crate) struct BodyChunk {
    bytes: Bytes,
    weight: usize,
    activity: Option<Arc<ConnectionActivity>>,
    /// The epoch in which it was queued; `None` in requests.
    epoch: Option<u8>,
}

impl BodyChunk {
    /// Of a local reply, whose bytes are in memory anyway.
    pub(crate) fn uncounted(bytes: Bytes, activity: &Arc<ConnectionActivity>) -> Self {
        Self { bytes, weight: 0, activity: Some(activity.clone()), epoch: Some(activity.chunk_queued()) }
    }

    /// Of a response.
    pub(crate) fn to_client(bytes: Bytes, activity: &Arc<ConnectionActivity>) -> Self {
        let mut chunk = Self::to_endpoint(bytes, activity);
        chunk.epoch = Some(activity.chunk_queued());
        chunk
    }

    /// Of a request.
    pub(crate) fn to_endpoint(bytes: Bytes, activity: &Arc<ConnectionActivity>) -> Self {
        let weight = bytes.len();
        activity.budget.add_queued(weight);
        Self { bytes, weight, activity: Some(activity.clone()), epoch: None }
    }

    /// A copy for a mirror; `None` if there is no room.
    pub(crate) fn copy(&self) -> Option<Self> {
        let activity = self.activity.as_ref().filter(|activity| activity.budget.has_room())?;
        Some(Self::to_endpoint(self.bytes.clone(), activity))
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for BodyChunk {
    fn drop(&mut self) {
        let Some(activity) = &self.activity else { return };
        activity.budget.remove_queued(self.weight);
        if let Some(epoch) = self.epoch {
            activity.chunk_done(epoch);
        }
    }
}

impl Buf for BodyChunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.bytes.copy_to_bytes(length)
    }
}

/// Shorter rests of a body are not counted: the buffers of a connection are larger.
const UNCOUNTED_REST: usize = 8 << 10;

/// The read-ahead of one body, and its place in the queue for room.
#[derive(Debug)]
pub(crate) struct BodyReadAhead {
    budget: Arc<BufferBudget>,
    max: usize,
    counted: usize,
    waiting: Option<Pin<Box<OwnedNotified>>>,
}

impl BodyReadAhead {
    pub(crate) fn new(budget: &Arc<BufferBudget>, max: usize, rest: &SizeHint) -> Self {
        let mut read_ahead = Self { budget: budget.clone(), max, counted: 0, waiting: None };
        read_ahead.reserve(rest);
        read_ahead
    }

    /// Counts what may arrive while the last chunk is queued and the body is not polled.
    pub(crate) fn reserve(&mut self, rest: &SizeHint) {
        let rest = rest.upper().and_then(|rest| usize::try_from(rest).ok()).unwrap_or(usize::MAX);
        self.set(if rest <= UNCOUNTED_REST { 0 } else { rest.min(self.max) });
    }

    /// The body was polled and has nothing more for now.
    pub(crate) fn clear(&mut self) {
        self.set(0);
    }

    fn set(&mut self, bytes: usize) {
        if bytes > self.counted {
            self.budget.read_ahead.fetch_add(bytes - self.counted, Relaxed);
        } else if bytes < self.counted {
            self.budget.read_ahead.fetch_sub(self.counted - bytes, Relaxed);
        }
        self.counted = bytes;
    }

    /// Waits until another chunk may be queued.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.budget.has_room() {
                self.waiting = None;
                return Poll::Ready(());
            }
            let Some(waiting) = &mut self.waiting else {
                let mut waiting = Box::pin(self.budget.room.clone().notified_owned());
                // Before the next check, so that no notification is missed.
                waiting.as_mut().enable();
                self.waiting = Some(waiting);
                continue;
            };
            if waiting.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.waiting = None;
        }
    }
}

impl Drop for BodyReadAhead {
    fn drop(&mut self) {
        self.set(0);
    }
}
