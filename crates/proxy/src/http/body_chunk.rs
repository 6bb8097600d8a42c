//! Chunks of bodies, counted while they are buffered, and the limit on all of them together.
//!
//! Body bytes are buffered in two places: chunks that wait for a socket (`queued`), and the read-ahead of a body whose
//! last chunk still waits (`read_ahead`). A body that would queue more waits for room. Room depends only on the peers
//! that read chunks, so bodies cannot wait for each other in a cycle. Clients share the bytes: for a body that waits, the
//! connections of the clients that hold most are closed (`overload`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use clock::Clock;
use hyper::body::SizeHint;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Sleep, sleep};

use crate::downstream::idle_timeout::ConnectionActivity;
use crate::overload::open_connections::{OpenConnections, PressureRelief, RELIEF_PAUSE};
use crate::stats::Counter;

/// The limit on buffered body bytes of all requests.
#[derive(Debug)]
pub(crate) struct BufferBudget {
    limit: usize,
    queued: AtomicUsize,
    read_ahead: AtomicUsize,
    room: Arc<Notify>,
    relief: PressureRelief,
    pub(crate) connections: OpenConnections,
    /// Downstream connections closed because the client stalled.
    pub(crate) stalled: Counter,
    /// Downstream connections closed for the bodies of other clients.
    pub(crate) evicted: Counter,
}

/// Until connections that were told to close have closed.
const CLOSING: Duration = Duration::from_millis(5);

impl BufferBudget {
    pub(crate) fn new(limit: usize, clock: Clock) -> Self {
        Self {
            limit,
            queued: AtomicUsize::new(0),
            read_ahead: AtomicUsize::new(0),
            room: Arc::default(),
            relief: PressureRelief::new(clock, CLOSING),
            connections: OpenConnections::default(),
            stalled: Counter::default(),
            evicted: Counter::default(),
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.queued.load(Relaxed).saturating_add(self.read_ahead.load(Relaxed))
    }

    /// Whether new requests need a relief, or are refused.
    pub(crate) fn is_spent(&self) -> bool {
        self.held() >= self.limit
    }

    /// Whether bodies wait for room.
    pub(crate) fn is_pressed(&self) -> bool {
        !self.has_room() || self.is_spent()
    }

    /// Closes connections of the clients that hold most, until a quarter of what is full is free. Returns whether the
    /// claimant need not wait until they are closed, because it holds clearly less.
    pub(crate) fn relieve(&self, claimant: &ConnectionActivity) -> bool {
        let of_queued = self.queued.load(Relaxed).saturating_sub(self.limit / 8 * 3);
        let of_all = self.held().saturating_sub(self.limit / 4 * 3);
        let goal = if self.is_spent() { of_all.max(of_queued) } else { of_queued };
        let relief = self.relief.relieve(&self.connections, claimant, goal, ConnectionActivity::held);
        if relief.closed > 0 {
            self.evicted.inc_by(relief.closed as u64);
            let (connections, bytes) = (relief.closed, relief.freed);
            tracing::info!(connections, bytes, "closed connections that held most body bytes");
        }
        relief.is_entitled
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
        activity.add_held(weight);
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

    fn count_taken(&self, count: usize) {
        if let (Some(activity), Some(_)) = (&self.activity, self.epoch) {
            activity.add_taken(count);
        }
    }
}

impl Drop for BodyChunk {
    fn drop(&mut self) {
        let Some(activity) = &self.activity else { return };
        // First the connection's, so that a relief never counts more than there is.
        activity.remove_held(self.weight);
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
        self.count_taken(count);
        self.bytes.advance(count);
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.count_taken(length);
        self.bytes.copy_to_bytes(length)
    }
}

/// Shorter rests of a body are not counted: the buffers of a connection are larger.
const UNCOUNTED_REST: usize = 8 << 10;

/// The read-ahead of one body, and its place in the queue for room.
#[derive(Debug)]
pub(crate) struct BodyReadAhead {
    activity: Arc<ConnectionActivity>,
    max: usize,
    counted: usize,
    waiting: Option<Pin<Box<OwnedNotified>>>,
    /// Until the next try for relief.
    retry: Option<Pin<Box<Sleep>>>,
}

impl BodyReadAhead {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>, max: usize, rest: &SizeHint) -> Self {
        let mut read_ahead = Self { activity: activity.clone(), max, counted: 0, waiting: None, retry: None };
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
        let budget = &self.activity.budget;
        if bytes > self.counted {
            budget.read_ahead.fetch_add(bytes - self.counted, Relaxed);
            self.activity.add_held(bytes - self.counted);
        } else if bytes < self.counted {
            self.activity.remove_held(self.counted - bytes);
            budget.read_ahead.fetch_sub(self.counted - bytes, Relaxed);
        }
        self.counted = bytes;
    }

    /// Waits until another chunk may be queued.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let budget = &self.activity.budget;
            if budget.has_room() {
                (self.waiting, self.retry) = (None, None);
                return Poll::Ready(());
            }
            let Some(waiting) = &mut self.waiting else {
                let mut waiting = Box::pin(budget.room.clone().notified_owned());
                // Before the next check, so that no notification is missed.
                waiting.as_mut().enable();
                // Up to the limit, a client that holds little goes before those that wait for room.
                if budget.relieve(&self.activity) && budget.queued.load(Relaxed) < budget.limit {
                    return Poll::Ready(());
                }
                self.waiting = Some(waiting);
                self.retry = Some(Box::pin(sleep(RELIEF_PAUSE)));
                continue;
            };
            let is_notified = waiting.as_mut().poll(cx).is_ready();
            let is_due = self.retry.as_mut().is_some_and(|retry| retry.as_mut().poll(cx).is_ready());
            if !is_notified && !is_due {
                return Poll::Pending;
            }
            (self.waiting, self.retry) = (None, None);
        }
    }
}

impl Drop for BodyReadAhead {
    fn drop(&mut self) {
        self.set(0);
    }
}
