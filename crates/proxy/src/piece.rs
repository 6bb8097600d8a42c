//! Pieces of bodies on their way, counted until somebody has taken them, and the bound on all of them together.
//!
//! A body's bytes are held in two places: pieces that were handed on and wait for a socket (`out`), and what was read
//! of a body that nobody asks for, because its last piece still waits (`behind`). Whoever would hand on more waits
//! for room; that depends on nobody but the peers that take pieces, so bodies never wait for each other in a circle.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::SizeHint;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::counts::Count;
use crate::stream::Activity;

/// How many bytes of bodies the proxy holds, of all requests, and how many it may.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    out: AtomicUsize,
    behind: AtomicUsize,
    room: Arc<Notify>,
    /// Clients that were left because they took nothing.
    pub(crate) stalled: Count,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        let (out, behind) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { limit, out, behind, room: Arc::default(), stalled: Count::default() }
    }

    pub(crate) fn held(&self) -> usize {
        self.out.load(Relaxed).saturating_add(self.behind.load(Relaxed))
    }

    /// Whether there is no room for further requests.
    pub(crate) fn is_spent(&self) -> bool {
        self.held() >= self.limit
    }

    /// Half is for pieces; the other half is what lies behind them.
    fn has_room(&self) -> bool {
        self.out.load(Relaxed) <= self.limit / 2
    }

    fn take(&self, bytes: usize) {
        self.out.fetch_add(bytes, Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        let before = self.out.fetch_sub(bytes, Relaxed);
        if before > self.limit / 2 && before - bytes <= self.limit / 2 {
            self.room.notify_waiters();
        }
    }
}

/// Bytes of a body, counted while this lives.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    weight: usize,
    activity: Option<Arc<Activity>>,
    /// Since when the client has had it to take; none where it is for an endpoint.
    epoch: Option<u8>,
}

impl Piece {
    /// For a client, of what is held anyway, as a direct response's text is.
    pub(crate) fn own(bytes: Bytes, activity: &Arc<Activity>) -> Self {
        Self { bytes, weight: 0, activity: Some(activity.clone()), epoch: Some(activity.hand_on()) }
    }

    /// For the client of a connection.
    pub(crate) fn to_client(bytes: Bytes, activity: &Arc<Activity>) -> Self {
        let mut piece = Self::to_endpoint(bytes, activity);
        piece.epoch = Some(activity.hand_on());
        piece
    }

    /// From the client of a connection.
    pub(crate) fn to_endpoint(bytes: Bytes, activity: &Arc<Activity>) -> Self {
        let weight = bytes.len();
        activity.budget.take(weight);
        Self { bytes, weight, activity: Some(activity.clone()), epoch: None }
    }

    /// The same bytes for somebody else, who is not waited for: none if there is no room.
    pub(crate) fn copy(&self) -> Option<Self> {
        let activity = self.activity.as_ref().filter(|activity| activity.budget.has_room())?;
        Some(Self::to_endpoint(self.bytes.clone(), activity))
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(activity) = &self.activity else { return };
        activity.budget.give_back(self.weight);
        if let Some(epoch) = self.epoch {
            activity.taken(epoch);
        }
    }
}

impl Buf for Piece {
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

/// Shorter rests are not counted: a connection's own buffers are larger.
const SHORT: usize = 8 << 10;

/// What may have been read of a body and was not asked for yet; and its place among those that wait for room.
#[derive(Debug)]
pub(crate) struct Behind {
    budget: Arc<Budget>,
    /// What is read ahead at most.
    most: usize,
    counted: usize,
    waiting: Option<Pin<Box<OwnedNotified>>>,
}

impl Behind {
    pub(crate) fn new(budget: &Arc<Budget>, most: usize, rest: &SizeHint) -> Self {
        let mut behind = Self { budget: budget.clone(), most, counted: 0, waiting: None };
        behind.waits(rest);
        behind
    }

    /// The body is not asked until somebody has taken what it gave: so much may come in meanwhile.
    pub(crate) fn waits(&mut self, rest: &SizeHint) {
        let rest = rest.upper().and_then(|rest| usize::try_from(rest).ok()).unwrap_or(usize::MAX);
        self.set(if rest <= SHORT { 0 } else { rest.min(self.most) });
    }

    /// The body was asked and has no more for now: nothing is behind.
    pub(crate) fn is_empty(&mut self) {
        self.set(0);
    }

    fn set(&mut self, bytes: usize) {
        if bytes > self.counted {
            self.budget.behind.fetch_add(bytes - self.counted, Relaxed);
        } else if bytes < self.counted {
            self.budget.behind.fetch_sub(self.counted - bytes, Relaxed);
        }
        self.counted = bytes;
    }

    /// Waits until another piece may be handed on.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.budget.has_room() {
                self.waiting = None;
                return Poll::Ready(());
            }
            let Some(waiting) = &mut self.waiting else {
                let mut waiting = Box::pin(self.budget.room.clone().notified_owned());
                // Before the next look, so that room made in between is not missed.
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

impl Drop for Behind {
    fn drop(&mut self) {
        self.set(0);
    }
}
