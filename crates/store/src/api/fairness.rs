//! What clients of the API share, and how: connections, seats for requests, watches, bytes of bodies and responses.
//!
//! ```text
//! exempt     system:masters (the admin, the unix socket, controllers of this process), health: no queue and no share
//! reads      get, list, watch, reviews, discovery \
//! writes     create, update, patch, delete         > seats in turns of users, then of their connections
//! full lists without a limit, in memory           /
//! ```
//!
//! Watches and bytes have fair shares ([`FairShares`]): a user may use everything until another needs it; then the user
//! that holds most loses the connection whose client has taken nothing for longest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::listener::{AtShare, ConnectionHandle, FairConnections, FairShares, HolderId};
use apimachinery::rbac;
use clock::Clock;

pub use super::request_queue::QueueStats;
use super::request_queue::{RequestQueue, RequestSeat, SeatError};
use super::{ApiLimits, Caller};
use crate::status::StatusError;

/// Time for requests in progress after the stop.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Charged for a body or response in addition to its bytes: its state and buffers.
const BASE_BYTES: usize = 4 << 10;

/// Bounds of what one kind of request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorityLevel {
    Reads,
    Writes,
    /// Lists that are complete in memory before they are sent.
    FullLists,
}

/// The user and connection that a request counts for.
#[derive(Clone, Debug)]
pub(crate) struct RequestFlow {
    user: Arc<str>,
    connection: Option<ConnectionHandle>,
}

impl RequestFlow {
    /// `None`: the caller is exempt.
    pub(crate) fn of(caller: &Caller) -> Option<Self> {
        let user = &caller.user;
        if is_exempt(caller) {
            return None;
        }
        let user = match caller.source {
            // Anonymous clients are told apart by their addresses.
            Some(source) if user.name == rbac::ANONYMOUS => format!("{} {source}", user.name).into(),
            _ => user.name.as_str().into(),
        };
        Some(Self { user, connection: caller.connection.clone() })
    }

    fn connection_id(&self) -> u64 {
        self.connection.as_ref().map_or(0, ConnectionHandle::id)
    }
}

/// Whether a caller has reserved places and no queue, as `system:masters` has in Kubernetes.
pub(crate) fn is_exempt(caller: &Caller) -> bool {
    caller.user.groups.iter().any(|group| group == rbac::MASTERS)
}

/// A bounded resource with fair shares per user and connection.
#[derive(Debug)]
pub(crate) struct SharedResource {
    capacity: usize,
    pool: Mutex<FairShares<Arc<str>, Option<ConnectionHandle>>>,
    evicted: AtomicU64,
    refused: AtomicU64,
}

impl SharedResource {
    fn new(capacity: usize) -> Arc<Self> {
        let pool = Mutex::new(FairShares::new(capacity.max(1) as u64));
        Arc::new(Self {
            capacity: capacity.max(1),
            pool,
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    fn take(self: &Arc<Self>, flow: &RequestFlow, at_share: AtShare) -> Option<HeldShare> {
        let owner = (flow.user.clone(), flow.connection_id());
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = pool.take(owner, flow.connection.clone(), at_share);
        drop(pool);
        let Some((id, evicted)) = taken else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.close(evicted);
        Some(HeldShare { resource: self.clone(), id, bytes: 1 })
    }

    fn close(&self, evicted: impl IntoIterator<Item = Option<ConnectionHandle>>) {
        for handle in evicted {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            if let Some(handle) = handle {
                handle.close();
            }
        }
    }

    fn used(&self) -> u64 {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).used()
    }
}

/// A part of a [`SharedResource`], given back when it is dropped.
#[derive(Debug)]
pub(crate) struct HeldShare {
    resource: Arc<SharedResource>,
    id: HolderId,
    bytes: u64,
}

impl HeldShare {
    /// Charges bytes in place of those before. Who holds most may lose its connection, this one included.
    pub(crate) fn charge(&mut self, bytes: usize) {
        // One that is larger than the share of a few users must be possible while there is room.
        let bytes = (BASE_BYTES + bytes).min(self.resource.capacity / 4).max(1) as u64;
        if bytes == self.bytes {
            return;
        }
        self.bytes = bytes;
        let mut pool = self.resource.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let evicted = pool.resize(self.id, bytes);
        drop(pool);
        self.resource.close(evicted);
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        let mut pool = self.resource.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.release(self.id);
    }
}

/// What clients used, waited for, lost and were refused, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FairnessStats {
    pub queue: QueueStats,
    pub open_connections: u64,
    pub response_bytes: u64,
    pub body_bytes: u64,
    pub evicted_connections: u64,
    pub evicted_watches: u64,
    pub evicted_responses: u64,
    pub evicted_bodies: u64,
    pub refused_watches: u64,
}

/// The shared resources of an API.
#[derive(Debug)]
pub(crate) struct Fairness {
    /// Of clients that are not exempt, or not known yet.
    pub(crate) connections: FairConnections,
    /// Of the unix socket and of exempt users.
    pub(crate) reserved: FairConnections,
    queues: [(PriorityLevel, Arc<RequestQueue>); 3],
    watches: Arc<SharedResource>,
    responses: Arc<SharedResource>,
    bodies: Arc<SharedResource>,
}

impl Fairness {
    pub(crate) fn new(limits: &ApiLimits, clock: &Clock) -> Self {
        let queue = |seats| Arc::new(RequestQueue::new(seats, limits.queue_per_user, clock.clone()));
        Self {
            connections: FairConnections::new(limits.connections, DRAIN_TIMEOUT),
            reserved: FairConnections::new(limits.reserved_connections, DRAIN_TIMEOUT),
            queues: [
                (PriorityLevel::Reads, queue(limits.reads_at_once)),
                (PriorityLevel::Writes, queue(limits.writes_at_once)),
                (PriorityLevel::FullLists, queue(limits.full_lists_at_once)),
            ],
            watches: SharedResource::new(limits.watches),
            responses: SharedResource::new(limits.response_bytes),
            bodies: SharedResource::new(limits.body_bytes),
        }
    }

    /// Waits for a seat; exempt callers need none.
    pub(crate) async fn seat(
        &self,
        level: PriorityLevel,
        flow: Option<&RequestFlow>,
    ) -> Result<Option<RequestSeat>, StatusError> {
        let Some(flow) = flow else { return Ok(None) };
        let queue = self.queues.iter().find(|(of, _)| *of == level).map(|(_, queue)| queue);
        let Some(queue) = queue else { return Ok(None) };
        match queue.seat(&flow.user, flow.connection_id()).await {
            Ok(seat) => Ok(Some(seat)),
            Err(SeatError::QueueFull) => Err(StatusError::too_many_requests(
                "too many requests of this user are queued: retry after a second",
            )),
            Err(SeatError::TimedOut) => {
                Err(StatusError::too_many_requests("the request waited for too long: retry after a second"))
            }
        }
    }

    /// A place for a watch.
    pub(crate) fn watch(&self, flow: Option<&RequestFlow>) -> Result<Option<HeldShare>, StatusError> {
        let Some(flow) = flow else { return Ok(None) };
        let held = self.watches.take(flow, AtShare::Refuse);
        held.map(Some).ok_or_else(|| {
            let most = self.watches.capacity;
            let why = format!("{most} watches are open, the maximum, and this user has the most: close some");
            StatusError::too_many_requests(why)
        })
    }

    /// A share of the bytes of responses.
    pub(crate) fn response(&self, flow: Option<&RequestFlow>) -> Option<HeldShare> {
        self.responses.take(flow?, AtShare::EvictOldest)
    }

    /// A share of the bytes of request bodies.
    pub(crate) fn body(&self, flow: Option<&RequestFlow>) -> Option<HeldShare> {
        self.bodies.take(flow?, AtShare::EvictOldest)
    }

    pub(crate) fn stats(&self) -> FairnessStats {
        let evicted = |resource: &SharedResource| resource.evicted.load(Ordering::Relaxed);
        let mut queue = QueueStats::default();
        for stats in self.queues.iter().map(|(_, queue)| queue.stats()) {
            queue.executing += stats.executing;
            queue.waiting += stats.waiting;
            queue.waited += stats.waited;
            queue.wait_seconds += stats.wait_seconds;
            queue.queue_full += stats.queue_full;
            queue.timed_out += stats.timed_out;
        }
        FairnessStats {
            queue,
            open_connections: self.connections.open() + self.reserved.open(),
            response_bytes: self.responses.used(),
            body_bytes: self.bodies.used(),
            evicted_connections: self.connections.evicted() + self.reserved.evicted(),
            evicted_watches: evicted(&self.watches),
            evicted_responses: evicted(&self.responses),
            evicted_bodies: evicted(&self.bodies),
            refused_watches: self.watches.refused.load(Ordering::Relaxed),
        }
    }
}
