//! Chunks of bodies, counted while they are buffered, and the limit on all of them together.
//!
//! Body bytes are buffered in two places: chunks that wait for a socket (`queued`), and the read-ahead of a body whose
//! last chunk still waits (`read_ahead`). Each has half of the limit, and a body is read only when there is room in both.
//! Room depends only on the peers that read chunks, so bodies cannot wait for each other in a cycle: one that has its
//! read-ahead waits for no other's. Clients share the bytes: for a body that waits, the connections of the clients that
//! hold most are closed (`overload`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use clock::Clock;
use hyper::body::SizeHint;
use listener::{ConnectionOwner, FairShares, HolderId};
use tokio::sync::oneshot;
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
    /// Bodies that wait for room, by what their connections hold: the smallest is next.
    waiting: Mutex<FairShares<ConnectionOwner, oneshot::Sender<()>>>,
    waiting_count: AtomicUsize,
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
            waiting: Mutex::new(FairShares::new(u64::MAX)),
            waiting_count: AtomicUsize::new(0),
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
        !self.has_room() || self.read_ahead.load(Relaxed) >= self.limit / 2
    }

    /// Closes connections of the clients that hold most, until a quarter of each half is free. Returns whether the
    /// claimant need not wait until they are closed, because it holds clearly less.
    pub(crate) fn relieve(&self, claimant: &ConnectionActivity) -> bool {
        let above = |bytes: &AtomicUsize| bytes.load(Relaxed).saturating_sub(self.limit / 8 * 3);
        let goal = above(&self.queued).max(above(&self.read_ahead));
        let relief =
            self.relief.relieve(&self.connections, claimant, goal, ConnectionActivity::held, |_| true);
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

    /// Takes read-ahead while there is less than `limit`: a body that is about to be read may exceed it by its own.
    fn reserve(&self, bytes: usize, limit: usize) -> bool {
        let before = self.read_ahead.fetch_add(bytes, Relaxed);
        if before >= limit {
            self.read_ahead.fetch_sub(bytes, Relaxed);
        }
        before < limit
    }

    fn remove_read_ahead(&self, bytes: usize) {
        let before = self.read_ahead.fetch_sub(bytes, Relaxed);
        if before >= self.limit / 2 && before - bytes < self.limit / 2 {
            self.wake_next();
        }
    }

    fn add_queued(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Relaxed);
    }

    fn remove_queued(&self, bytes: usize) {
        let before = self.queued.fetch_sub(bytes, Relaxed);
        if before > self.limit / 2 && before - bytes <= self.limit / 2 {
            self.wake_next();
        }
    }

    /// Wakes the body that is next, if there is room. When it has taken its part, it wakes the next one.
    fn wake_next(&self) {
        while self.waiting_count.load(Relaxed) > 0 && !self.is_pressed() {
            // Dropped after the lock: a receiver may be waking, too.
            let next = self.waiting().pop_smallest();
            let Some(next) = next else { return };
            self.waiting_count.fetch_sub(1, Relaxed);
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, FairShares<ConnectionOwner, oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
    max: usize,
    /// What is reserved, and of which connection.
    reserved: Option<(usize, Arc<ConnectionActivity>)>,
    waiting: Option<Box<WaitForRoom>>,
}

/// In the queue for room until it is dropped.
#[derive(Debug)]
struct WaitForRoom {
    activity: Arc<ConnectionActivity>,
    id: HolderId,
    next: oneshot::Receiver<()>,
    /// Until the next try for relief.
    retry: Pin<Box<Sleep>>,
}

impl WaitForRoom {
    fn new(activity: &Arc<ConnectionActivity>) -> Self {
        let (sender, next) = oneshot::channel();
        let owner = (activity.client().clone(), activity.id);
        let budget = &activity.budget;
        let id = budget.waiting().add(owner, activity.held().max(1) as u64, sender);
        budget.waiting_count.fetch_add(1, Relaxed);
        Self { activity: activity.clone(), id, next, retry: Box::pin(sleep(RELIEF_PAUSE)) }
    }
}

impl Drop for WaitForRoom {
    fn drop(&mut self) {
        let budget = &self.activity.budget;
        if budget.waiting().release(self.id).is_some() {
            budget.waiting_count.fetch_sub(1, Relaxed);
        }
    }
}

impl BodyReadAhead {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, reserved: None, waiting: None }
    }

    /// The body was polled and has nothing more for now.
    pub(crate) fn clear(&mut self) {
        if let Some((bytes, activity)) = self.reserved.take() {
            activity.remove_held(bytes);
            activity.budget.remove_read_ahead(bytes);
        }
    }

    /// Reserves what may arrive while the next chunk is queued and the body is not polled.
    fn reserve(&mut self, activity: &Arc<ConnectionActivity>, rest: &SizeHint, limit: usize) -> bool {
        let rest = rest.upper().and_then(|rest| usize::try_from(rest).ok()).unwrap_or(usize::MAX);
        if rest <= UNCOUNTED_REST {
            self.clear();
            return true;
        }
        // What is reserved stays as it is until the end is near: the next chunk may be as large.
        if self.reserved.is_some() {
            return true;
        }
        let bytes = rest.min(self.max);
        let is_reserved = activity.budget.reserve(bytes, limit);
        if is_reserved {
            activity.add_held(bytes);
            self.reserved = Some((bytes, activity.clone()));
        }
        is_reserved
    }

    /// Waits until the body may be read: until another chunk may be queued, with its read-ahead.
    pub(crate) fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        activity: &Arc<ConnectionActivity>,
        rest: &SizeHint,
    ) -> Poll<()> {
        let budget = &activity.budget;
        let mut is_next = false;
        loop {
            // One that has its read-ahead needs no more, and others wait for their turn.
            let may_go = is_next || self.reserved.is_some() || budget.waiting_count.load(Relaxed) == 0;
            if may_go && budget.has_room() && self.reserve(activity, rest, budget.limit / 2) {
                if is_next {
                    budget.wake_next();
                }
                return Poll::Ready(());
            }
            let waiting = match &mut self.waiting {
                Some(waiting) => waiting,
                None => {
                    // A client that holds little goes before those that wait for room: a little above a half, with what it
                    // may take itself.
                    let above = (budget.limit / 8 * 5).saturating_sub(self.max).max(budget.limit / 2);
                    if budget.relieve(activity)
                        && budget.queued.load(Relaxed) < above
                        && self.reserve(activity, rest, above)
                    {
                        return Poll::Ready(());
                    }
                    let waiting = self.waiting.insert(Box::new(WaitForRoom::new(activity)));
                    // There may be room since the check.
                    budget.wake_next();
                    waiting
                }
            };
            if Pin::new(&mut waiting.next).poll(cx).is_pending()
                && waiting.retry.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            (self.waiting, is_next) = (None, true);
        }
    }
}

impl Drop for BodyReadAhead {
    fn drop(&mut self) {
        self.clear();
    }
}
