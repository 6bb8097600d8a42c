//! Memory that streams hold: unfinished requests, names that no resource has, and responses that were not read.
//!
//! All streams share a pool with fair shares per peer and connection. When it is full, responses wait; a peer that holds
//! much more than the one that waits loses a connection, and so does one that takes next to nothing of its response.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use listener::{FairShares, HolderId, ShareClaim};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tonic::Status;

/// Larger requests count; smaller ones are bounded by the number of streams.
const SMALL_REQUEST_BYTES: u64 = 64 << 10;
/// What a client takes at least of a response in each period.
const MIN_TAKEN_BYTES: u64 = 64 << 10;
/// A response is handed to HTTP/2 in pieces, as the client opens its window.
const PIECE_BYTES: usize = 16 << 10;
/// The prefix of a gRPC message.
const PREFIX_BYTES: u64 = 5;

#[derive(Debug)]
pub(super) struct MemoryPool {
    capacity: u64,
    shares: Mutex<FairShares<Arc<str>, Arc<Notify>>>,
    freed: Notify,
}

impl MemoryPool {
    pub(super) fn new(capacity: u64) -> Arc<Self> {
        // The pool decides when it is full: a response is sent as a whole.
        let shares = Mutex::new(FairShares::new(u64::MAX));
        Arc::new(Self { capacity, shares, freed: Notify::new() })
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<Arc<str>, Arc<Notify>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.shares().used()
    }
}

/// What one stream holds.
#[derive(Debug)]
pub(super) struct StreamMemory {
    pool: Arc<MemoryPool>,
    peer: Arc<str>,
    connection: u64,
    id: HolderId,
    usage: Mutex<MemoryUsage>,
    /// Notified when HTTP/2 has taken the whole response, or the stream was reset.
    pub(super) response_ended: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct MemoryUsage {
    request: u64,
    names: u64,
    unread: u64,
    /// Bytes of responses that HTTP/2 has taken.
    taken: u64,
}

impl MemoryUsage {
    fn units(&self) -> u64 {
        let request = if self.request > SMALL_REQUEST_BYTES { self.request } else { 0 };
        request + self.names + self.unread
    }
}

impl StreamMemory {
    /// `close` is notified when the connection loses its share.
    pub(super) fn new(
        pool: &Arc<MemoryPool>,
        (peer, connection): (Arc<str>, u64),
        close: Arc<Notify>,
    ) -> Arc<Self> {
        let id = pool.shares().add((peer.clone(), connection), 0, close);
        let (usage, response_ended) = (Mutex::default(), Notify::new());
        Arc::new(Self { pool: pool.clone(), peer, connection, id, usage, response_ended })
    }

    fn usage(&self) -> MutexGuard<'_, MemoryUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the stream holds more than before.
    fn change(&self, change: impl FnOnce(&mut MemoryUsage)) -> bool {
        let mut usage = self.usage();
        let before = usage.units();
        change(&mut usage);
        let after = usage.units();
        if before != after {
            self.pool.shares().resize(self.id, after);
        }
        if after < before {
            self.pool.freed.notify_waiters();
        }
        after > before
    }

    /// Changes what the client sent. If that is too much, the peer that holds most loses a connection.
    fn change_received(&self, change: impl FnOnce(&mut MemoryUsage)) {
        if !self.change(change) {
            return;
        }
        let mut shares = self.pool.shares();
        while shares.used() > self.pool.capacity
            && let Some(close) = shares.evict_one()
        {
            close.notify_one();
        }
    }

    fn request_bytes(&self) -> u64 {
        self.usage().request
    }

    pub(super) fn request_completed(&self) {
        self.change(|usage| usage.request = 0);
    }

    pub(super) fn set_names(&self, bytes: usize) {
        self.change_received(|usage| usage.names = bytes as u64);
    }

    pub(super) fn response_sent(&self, bytes: usize) {
        self.change(|usage| usage.unread += bytes as u64 + PREFIX_BYTES);
    }

    /// Waits until there is room for a response. A peer that holds more than this one, by a sixteenth of the pool,
    /// loses a connection.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let freed = self.pool.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut shares = self.pool.shares();
                let units = self.pool.capacity / 16;
                let claim = ShareClaim { group: &self.peer, member: self.connection, units, newest: 0 };
                while shares.used() >= self.pool.capacity
                    && let Some(close) = shares.give_way(&claim, |_| false)
                {
                    close.notify_one();
                }
                if shares.used() < self.pool.capacity {
                    return;
                }
            }
            freed.await;
        }
    }

    /// Returns when the client took next to nothing of a response for a period.
    pub(super) async fn stalled(&self, period: Duration) {
        let mut before = *self.usage();
        loop {
            tokio::time::sleep(period).await;
            let now = *self.usage();
            if now.taken - before.taken < before.unread.min(MIN_TAKEN_BYTES) {
                return;
            }
            before = now;
        }
    }
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        self.pool.shares().release(self.id);
        self.pool.freed.notify_waiters();
    }
}

/// The requests of a stream, whose bytes are counted.
pub(super) struct RequestBody<B = Incoming> {
    body: B,
    memory: Arc<StreamMemory>,
    /// How long a large request may take: a slow one must not hold its memory for ever.
    timeout: Duration,
    /// Set while a large request is not complete.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B, memory: Arc<StreamMemory>, timeout: Duration) -> Self {
        Self { body, memory, timeout, deadline: None }
    }

    /// Fails when a large request takes too long.
    fn check_deadline(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if self.memory.request_bytes() <= SMALL_REQUEST_BYTES {
            self.deadline = None;
            return Ok(());
        }
        let timeout = self.timeout;
        let sleep = || Box::pin(tokio::time::sleep(timeout));
        if self.deadline.get_or_insert_with(sleep).as_mut().poll(context).is_ready() {
            return Err(Status::deadline_exceeded("a large request took too long; reconnect"));
        }
        Ok(())
    }
}

impl<B> Drop for RequestBody<B> {
    fn drop(&mut self) {
        self.memory.request_completed();
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Err(status) = self.check_deadline(context) {
            return Poll::Ready(Some(Err(status)));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|error| Status::unavailable(error.to_string()))?;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.memory.change_received(|usage| usage.request += bytes as u64);
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The responses of a stream, in pieces.
pub(super) struct ResponseBody<B> {
    body: B,
    /// What is left of a frame.
    rest: Bytes,
    memory: Arc<StreamMemory>,
}

impl<B> ResponseBody<B> {
    pub(super) fn new(body: B, memory: Arc<StreamMemory>) -> Self {
        Self { body, rest: Bytes::new(), memory }
    }
}

impl<B> Drop for ResponseBody<B> {
    fn drop(&mut self) {
        self.memory.change(|usage| usage.unread = 0);
        self.memory.response_ended.notify_one();
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.memory.change(|usage| {
            usage.unread = usage.unread.saturating_sub(length as u64);
            usage.taken += length as u64;
        });
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that sends its chunks and then neither ends nor sends more.
    struct StalledBody(Vec<usize>);

    impl Body for StalledBody {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.pop() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(vec![0; bytes].into())))),
                None => Poll::Pending,
            }
        }
    }

    async fn next(body: &mut RequestBody<StalledBody>) -> Result<usize, Status> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        frame.expect("the body does not end").map(|frame| frame.data_ref().map_or(0, Bytes::len))
    }

    const SHORT: Duration = Duration::from_millis(50);
    const SMALL: usize = SMALL_REQUEST_BYTES as usize;

    fn memory(pool: &Arc<MemoryPool>, peer: &str) -> (Arc<StreamMemory>, Arc<Notify>) {
        let close = Arc::new(Notify::new());
        (StreamMemory::new(pool, (peer.into(), 1), close.clone()), close)
    }

    async fn is_closed(close: &Notify) -> bool {
        tokio::select! {
            biased;
            () = close.notified() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn large_request_that_stalls_ends_and_gives_its_memory_back() {
        let pool = MemoryPool::new(1 << 20);
        let (held, _) = memory(&pool, "a");
        let mut body = RequestBody::new(StalledBody(vec![2, SMALL]), held, SHORT);
        assert_eq!(next(&mut body).await.unwrap(), SMALL);
        assert_eq!(next(&mut body).await.unwrap(), 2);
        assert_eq!(pool.used(), SMALL_REQUEST_BYTES + 2);
        assert_eq!(next(&mut body).await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        drop(body);
        assert_eq!(pool.used(), 0);
        // A small request may wait, and a complete one counts no more.
        for (chunks, is_complete) in [(vec![SMALL], false), (vec![2 * SMALL], true)] {
            let (held, _) = memory(&pool, "a");
            let mut body = RequestBody::new(StalledBody(chunks), held.clone(), SHORT);
            next(&mut body).await.unwrap();
            if is_complete {
                held.request_completed();
            }
            let waits = tokio::time::timeout(SHORT * 10, next(&mut body)).await;
            assert!(waits.is_err(), "{waits:?}");
        }
    }

    #[tokio::test]
    async fn peer_that_holds_the_most_gives_way_and_equal_ones_wait() {
        let pool = MemoryPool::new(160);
        let ((hostile, hostile_close), (honest, honest_close)) = (memory(&pool, "a"), memory(&pool, "b"));
        hostile.set_names(160);
        honest.wait_for_room().await;
        assert!(is_closed(&hostile_close).await && pool.used() == 0);
        let (again, again_close) = memory(&pool, "a");
        again.set_names(80);
        honest.set_names(80);
        let room = honest.wait_for_room();
        tokio::pin!(room);
        tokio::select! {
            biased;
            () = room.as_mut() => panic!("both hold as much"),
            () = tokio::task::yield_now() => {}
        }
        assert!(!is_closed(&again_close).await && !is_closed(&honest_close).await);
        again.set_names(79);
        room.await;
        // More than the capacity is not waited for: the largest loses.
        again.set_names(100);
        assert!(is_closed(&again_close).await && !is_closed(&honest_close).await);
    }
}
