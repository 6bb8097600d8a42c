//! Bounds on concurrent requests, of the whole proxy and of one backend (a circuit breaker), shared between clients.
//!
//! The first half of the slots is taken with one atomic. Those of the second half are in a ledger: when all slots are
//! taken, the oldest request there of the client that has most of them gives way to a client that has fewer. So each
//! client has its share of that half, and requests cost nothing more while a backend is not half full.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client_id::ClientId;
use super::eviction::EvictionSignal;
use super::fair_shares::{Claim, FairShares, HolderId};
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::stats::Counter;
use crate::upstream::endpoint::ProxyTime;

/// A request younger than this is evicted only for a client with at least two fewer: a burst of short requests must not
/// evict itself.
const YOUNG: Duration = Duration::from_secs(1);

/// A request in a ledger, as its eviction needs it.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub(crate) signal: EvictionSignal,
    is_streaming: AtomicBool,
    activity: Arc<ConnectionActivity>,
}

impl HeldRequest {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>) -> Self {
        let is_streaming = AtomicBool::new(false);
        Self { signal: EvictionSignal::default(), is_streaming, activity: activity.clone() }
    }

    /// Before the response the request gets 503; afterwards only closing the connection frees what it holds.
    fn evict(&self) {
        self.signal.set();
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

#[derive(Debug, Default)]
pub(crate) struct RequestSlots {
    in_use: AtomicUsize,
    shares: Mutex<FairShares<ClientId, Arc<HeldRequest>>>,
    pub(crate) refused: Counter,
    pub(crate) evicted: Counter,
}

/// One slot, until it is dropped.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    slots: Arc<RequestSlots>,
    recorded: Option<HolderId<ClientId>>,
}

impl RequestSlots {
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// A slot for a request; `None` if all are taken and the client has its share. `held` is created when needed.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        limit: usize,
        now: ProxyTime,
        activity: &Arc<ConnectionActivity>,
        held: &mut Option<Arc<HeldRequest>>,
    ) -> Option<RequestSlot> {
        let others = self.in_use.fetch_add(1, Relaxed);
        let mut slot = RequestSlot { slots: self.clone(), recorded: None };
        if others < limit / 2 {
            return Some(slot);
        }
        let mut shares = self.shares();
        if others >= limit && !self.make_room(&mut shares, limit, others, now, activity) {
            drop(shares);
            self.refused.inc();
            return None;
        }
        let held = held.get_or_insert_with(|| Arc::new(HeldRequest::new(activity)));
        slot.recorded = Some(shares.insert(activity.client, activity.id, 1, now.0, held.clone()));
        Some(slot)
    }

    /// Evicts one request. Its slot is free only when it has ended, so a few more may be in use meanwhile.
    fn make_room(
        &self,
        shares: &mut FairShares<ClientId, Arc<HeldRequest>>,
        limit: usize,
        in_use: usize,
        now: ProxyTime,
        activity: &ConnectionActivity,
    ) -> bool {
        if in_use >= limit.saturating_add((limit / 8).max(1)) {
            return false;
        }
        let old = now.0.checked_sub(YOUNG.as_millis() as u64);
        let claim = Claim { client: activity.client, connection: activity.id, amount: 1, old };
        let Some(victim) = shares.victim(&claim).and_then(|id| shares.remove(id)) else { return false };
        victim.evict();
        self.evicted.inc();
        true
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<ClientId, Arc<HeldRequest>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.slots.in_use.fetch_sub(1, Relaxed);
        if let Some(id) = self.recorded {
            self.slots.shares().remove(id);
        }
    }
}
