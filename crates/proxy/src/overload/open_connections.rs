//! The open downstream connections, and the choice of those that are closed to make room.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use clock::Clock;
use listener::{ConnectionOwner, FairShares, ShareClaim};

use crate::downstream::idle_timeout::ConnectionActivity;

#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    next: AtomicU64,
    by_id: Mutex<BTreeMap<u64, Weak<ConnectionActivity>>>,
}

/// What a relief closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relief {
    pub(crate) closed: usize,
    /// What was closed now, or is being closed.
    pub(crate) freed: usize,
    /// What the last one that was closed held.
    level: usize,
    /// The claimant holds clearly less than those that are closed: it need not wait until they are.
    pub(crate) is_entitled: bool,
}

impl OpenConnections {
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    pub(crate) fn add(&self, activity: &Arc<ConnectionActivity>) {
        self.by_id().insert(activity.id, Arc::downgrade(activity));
    }

    pub(crate) fn remove(&self, id: u64) {
        self.by_id().remove(&id);
    }

    /// Closes connections of the clients that hold most, by `weigh`, until `goal` is freed, as long as they hold more
    /// than the claimant: by one only if they are old. Connections that are closing already count as freed.
    fn relieve(
        &self,
        claimant: &ConnectionActivity,
        goal: usize,
        weigh: impl Fn(&ConnectionActivity) -> usize,
        is_old: impl Fn(&ConnectionActivity) -> bool,
    ) -> Relief {
        let by_id = self.by_id();
        let (mut shares, mut relief) = (FairShares::new(u64::MAX), Relief::default());
        // In the order of their age.
        for activity in by_id.values().filter_map(Weak::upgrade) {
            let weight = weigh(&activity);
            if activity.is_evicted() {
                relief.freed += weight;
            } else if weight > 0 {
                shares.add((activity.client().clone(), activity.id), weight as u64, activity);
            }
        }
        let claim = ShareClaim { group: claimant.client(), member: claimant.id, units: 1, newest: 0 };
        while relief.freed < goal {
            let before = shares.used();
            let Some(victim) = shares.give_way(&claim, |victim| is_old(victim)) else { break };
            relief.level = usize::try_from(before - shares.used()).unwrap_or(usize::MAX);
            relief.freed += relief.level;
            relief.closed += 1;
            victim.evict();
        }
        relief
    }

    fn by_id(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<ConnectionActivity>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two reliefs that a client asks for in vain: a relief reads all connections.
pub(crate) const RELIEF_PAUSE: Duration = Duration::from_millis(100);
const MAX_UNRELIEVED: usize = 64;

/// The relief of one resource, at a bounded cost.
#[derive(Debug)]
pub(crate) struct PressureRelief {
    clock: Clock,
    /// Until connections that were told to close have closed: until then nothing more is closed.
    pause: Duration,
    state: Mutex<ReliefState>,
}

#[derive(Debug, Default)]
struct ReliefState {
    relieved_at: Option<Instant>,
    level: usize,
    /// Clients that got no relief: when, and what the connection held. Those that hold as much need not try again.
    unrelieved: BTreeMap<ConnectionOwner, (Instant, usize)>,
}

impl PressureRelief {
    pub(crate) fn new(clock: Clock, pause: Duration) -> Self {
        Self { clock, pause, state: Mutex::default() }
    }

    /// Closes connections of the clients that hold most, by `weigh`, until `goal` is freed, as long as they hold more
    /// than the claimant: by one only if they are old.
    pub(crate) fn relieve(
        &self,
        connections: &OpenConnections,
        claimant: &ConnectionActivity,
        goal: usize,
        weigh: impl Fn(&ConnectionActivity) -> usize,
        is_old: impl Fn(&ConnectionActivity) -> bool,
    ) -> Relief {
        let (now, own) = (self.clock.now(), weigh(claimant));
        // Locked throughout: two at once would close twice as much.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: Instant| now.saturating_duration_since(at);
        if state.relieved_at.is_some_and(|at| since(at) < self.pause) {
            return Relief { freed: goal, is_entitled: is_below(own, state.level), ..Relief::default() };
        }
        let known = state.unrelieved.get(claimant.client());
        if known.is_some_and(|(at, held)| since(*at) < RELIEF_PAUSE && *held <= own) {
            return Relief::default();
        }
        let mut relief = connections.relieve(claimant, goal, weigh, is_old);
        if relief.closed > 0 {
            (state.relieved_at, state.level) = (Some(now), relief.level);
        } else if relief.freed == 0 {
            if state.unrelieved.len() >= MAX_UNRELIEVED {
                state.unrelieved.clear();
            }
            state.unrelieved.insert(claimant.client().clone(), (now, own));
        }
        relief.is_entitled = relief.freed > 0 && is_below(own, state.level);
        relief
    }
}

/// Three quarters: those that were not closed hold little less than those that were.
fn is_below(own: usize, level: usize) -> bool {
    own.saturating_mul(4) < level.saturating_mul(3)
}
