//! Bounds on concurrent requests, of the whole proxy and of one backend (a circuit breaker), shared between clients.
//!
//! The first half of the slots is taken with one atomic. Those of the second half are in a ledger: when all slots are
//! taken, the oldest request there of the client that has most of them gives way to a client that has fewer. So each
//! client has its share of that half, and requests cost nothing more while a backend is not half full.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use listener::{ConnectionOwner, FairShares, HolderId, ShareClaim};

use super::eviction::EvictionSignal;
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::stats::Counter;
use crate::upstream::endpoint::ProxyTime;

/// A request of this age gives way to a client that has one fewer. Younger ones give way only to a client that has at
/// least two fewer: a burst of short requests must not evict itself. One that has none evicts the newest of equals, but
/// not again before a request of its connection was served.
pub(crate) const OLD: Duration = Duration::from_secs(1);

/// An eighth of the slots, and at most so many, is where equals evict each other's newest requests.
const MAX_NEWEST: usize = 256;

/// What a claim finds.
#[derive(Clone, Copy)]
struct Room {
    limit: usize,
    in_use: usize,
    now: ProxyTime,
    /// The last request of the connection was refused or evicted.
    is_refused: bool,
}

/// A request in a ledger, as its eviction needs it.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub(crate) signal: EvictionSignal,
    since: ProxyTime,
    is_streaming: AtomicBool,
    activity: Arc<ConnectionActivity>,
}

impl HeldRequest {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>, since: ProxyTime) -> Self {
        let (signal, is_streaming) = (EvictionSignal::default(), AtomicBool::new(false));
        Self { signal, since, is_streaming, activity: activity.clone() }
    }

    /// Before the response the request gets 503; afterwards only closing the connection frees what it holds.
    fn evict(&self) {
        self.signal.set();
        self.activity.set_refused(true);
        if self.is_streaming.load(SeqCst) {
            self.activity.evict();
        }
    }

    /// The response has begun.
    pub(crate) fn begin_streaming(&self) {
        self.is_streaming.store(true, SeqCst);
        if self.signal.is_set() {
            self.activity.evict();
        }
    }
}

#[derive(Debug)]
pub(crate) struct RequestSlots {
    in_use: AtomicUsize,
    /// Its capacity is the limit of each claim, less the slots that are not in it.
    shares: Mutex<FairShares<ConnectionOwner, Arc<HeldRequest>>>,
    pub(crate) refused: Counter,
    pub(crate) evicted: Counter,
}

/// One slot; [`RequestSlots::release`] gives it back. Not a guard: a request has two, and knows their owners.
#[derive(Debug)]
#[must_use]
pub(crate) struct RequestSlot {
    recorded: Option<HolderId>,
}

impl Default for RequestSlots {
    fn default() -> Self {
        Self {
            in_use: AtomicUsize::new(0),
            shares: Mutex::new(FairShares::new(u64::MAX)),
            refused: Counter::default(),
            evicted: Counter::default(),
        }
    }
}

impl RequestSlots {
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// A slot for a request of `client`; `None` if all are taken and it has its share. `held` is created when needed.
    pub(crate) fn acquire(
        &self,
        limit: usize,
        now: ProxyTime,
        client: &ConnectionOwner,
        activity: &Arc<ConnectionActivity>,
        held: &mut Option<Arc<HeldRequest>>,
    ) -> Option<RequestSlot> {
        let others = self.in_use.fetch_add(1, Relaxed);
        if others < limit / 2 {
            return Some(RequestSlot { recorded: None });
        }
        let mut shares = self.shares();
        let room = Room { limit, in_use: others, now, is_refused: activity.is_refused() };
        if others >= limit && !self.make_room(&mut shares, room, (client, activity.id)) {
            drop(shares);
            self.in_use.fetch_sub(1, Relaxed);
            self.refused.inc();
            activity.set_refused(true);
            return None;
        }
        let held = held.get_or_insert_with(|| Arc::new(HeldRequest::new(activity, now)));
        let id = shares.add((client.clone(), activity.id), 1, held.clone());
        Some(RequestSlot { recorded: Some(id) })
    }

    /// The response has begun: a request that still waits for its endpoint gives way before it.
    pub(crate) fn begin_streaming(&self, slot: &RequestSlot) {
        if let Some(id) = slot.recorded {
            self.shares().touch(id, true);
        }
    }

    pub(crate) fn release(&self, slot: RequestSlot) {
        self.in_use.fetch_sub(1, Relaxed);
        // An evicted one is not there any more.
        if let Some(id) = slot.recorded {
            self.shares().release(id);
        }
    }

    /// Evicts one request. Its slot is free only when it has ended, so a few more may be in use meanwhile: an eighth,
    /// and another one for connections that have none and were not refused before, which retries cannot use up.
    fn make_room(
        &self,
        shares: &mut FairShares<ConnectionOwner, Arc<HeldRequest>>,
        Room { limit, in_use, now, is_refused }: Room,
        (client, connection): (&ConnectionOwner, u64),
    ) -> bool {
        let has_none = shares.used_by_member(client, connection) == 0;
        let ending = (limit / 8).max(1) * if has_none && !is_refused { 2 } else { 1 };
        if in_use >= limit.saturating_add(ending) {
            return false;
        }
        let newest = if is_refused { 0 } else { (limit / 8).min(MAX_NEWEST) };
        let claim = ShareClaim { group: client, member: connection, units: 1, newest };
        let Some(victim) = shares.give_way(&claim, |held| held.since.plus(OLD) <= now) else { return false };
        victim.evict();
        self.evicted.inc();
        true
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<ConnectionOwner, Arc<HeldRequest>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
