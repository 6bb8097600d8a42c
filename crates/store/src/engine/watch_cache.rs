//! Watch cache: the event history, and the watchers that are notified of new events.
//!
//! ```text
//!  writer --publish--> event history [Arc<WatchEvent>, ...] <--read at own pace-- watcher, watcher, ...
//!         \--notify: a few directly, many by the notifier in waves-------------> watcher, watcher, ...
//! ```
//!
//! A slow watcher never blocks the writer: behind the event history it reads the log on disk.

use std::collections::BTreeMap;
use std::iter::repeat;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use clock::Clock;

use super::CommitMode;
use super::event_history::{EventHistory, HistoryLimits};
use super::key::{ResourceId, Revision, StoreKey, WatchEvent};
use super::sabotage::EngineSabotage;
use crate::sync::{
    AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, RwLock, RwLockReadGuard, is_sabotaged,
};

/// The objects that a watcher sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WatchScope {
    pub resource: ResourceId,
    pub namespace: Option<Box<str>>,
}

impl WatchScope {
    pub(super) fn covers(&self, key: &StoreKey) -> bool {
        self.resource == key.resource && self.namespace.as_ref().is_none_or(|only| *only == key.namespace)
    }
}

/// Up to this many watchers are notified by the writer itself.
const DIRECT: usize = 32;
/// Watchers notified per step of a wave; requests are served between steps.
const STEP: usize = 64;
/// Approximate processor time to deliver a batch to one watcher. A wave takes this long per watcher, so that batches
/// grow with the number of watchers and waves never pile up.
const DELIVERY_COST: Duration = Duration::from_micros(40);
/// With more events than this in a wave, or with watchers that have not seen the wave before, waves slow down. Batches
/// then become larger, and the cost of an event is that of its bytes instead of that of a wake-up.
const CALM_EVENTS: u64 = 4;
const BUSY_SLOWDOWN: u32 = 3;
const MAX_SLOWDOWN: u32 = 12;

/// Where a watcher leaves its waker, and where notifications arrive.
#[derive(Default)]
pub(super) struct WatcherSlot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    waker: Option<Waker>,
    notification: Option<Notification>,
}

/// A range of revisions with new events for a watcher.
#[derive(Clone, Copy)]
pub(super) struct Notification {
    /// The first new event since the watcher last took a notification.
    pub first: Revision,
    /// All events up to here have been notified.
    pub last: Revision,
}

impl WatcherSlot {
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut slot = lock(&self.0);
        if !slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
    }

    pub(super) fn take_notification(&self) -> Option<Notification> {
        lock(&self.0).notification.take()
    }

    pub(super) fn is_notified(&self) -> bool {
        lock(&self.0).notification.is_some()
    }

    /// Wakes the watcher. False if it has not yet taken the notification before.
    fn notify(&self, notification: Notification) -> bool {
        let (waker, keeps_up) = {
            let mut slot = lock(&self.0);
            let keeps_up = slot.notification.is_none();
            slot.notification.get_or_insert(notification).last = notification.last;
            (slot.waker.take(), keeps_up)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        keeps_up
    }
}

/// Scopes with new events, and the first event of each.
type AffectedScopes = BTreeMap<WatchScope, Revision>;

/// The work of the notifier.
#[derive(Default)]
struct PendingNotifications {
    affected: AffectedScopes,
    /// The wave in progress. The writer does not notify its scopes: watchers must learn of events in order.
    wave: AffectedScopes,
    /// The newest revision that was handed over, or notified by the writer itself.
    revision: Revision,
    closed: bool,
}

impl PendingNotifications {
    fn has(&self, scope: &WatchScope) -> bool {
        let is_in_wave = self.wave.contains_key(scope) && !is_sabotaged(EngineSabotage::NotifyPastWave);
        is_in_wave || self.affected.contains_key(scope)
    }
}

pub(super) struct WatchCache {
    history: RwLock<EventHistory>,
    slots: Mutex<BTreeMap<WatchScope, Vec<Arc<WatcherSlot>>>>,
    pending: Mutex<PendingNotifications>,
    work: Condvar,
    /// Watchers were notified of every event up to here.
    notified: AtomicU64,
    /// How many watchers the writer notifies by itself.
    direct: usize,
}

impl WatchCache {
    pub(super) fn new(revision: Revision, limits: HistoryLimits, commit: CommitMode) -> WatchCache {
        WatchCache {
            history: RwLock::new(EventHistory::new(revision, limits)),
            slots: Mutex::new(BTreeMap::new()),
            pending: Mutex::new(PendingNotifications { revision, ..PendingNotifications::default() }),
            work: Condvar::new(),
            notified: AtomicU64::new(revision.0),
            direct: match commit {
                CommitMode::WriterThread => DIRECT,
                // There is no notifier.
                CommitMode::Inline => usize::MAX,
            },
        }
    }

    pub(super) fn history(&self) -> RwLockReadGuard<'_, EventHistory> {
        self.history.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn revision(&self) -> Revision {
        self.history().revision
    }

    /// Adds durable events to the history. [`WatchCache::notify`] follows, after the writers have their answers.
    pub(super) fn publish(&self, events: Vec<WatchEvent>) -> AffectedScopes {
        let mut affected = AffectedScopes::new();
        let events: Vec<_> = events.into_iter().map(Arc::new).collect();
        for event in &events {
            let resource = event.key.resource;
            for namespace in [None, Some(event.key.namespace.clone())] {
                affected.entry(WatchScope { resource, namespace }).or_insert(event.revision);
            }
        }
        let mut history = self.history.write().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            history.push(event);
        }
        affected
    }

    /// The revision up to which all watchers were notified.
    pub(super) fn notified(&self) -> Revision {
        Revision(self.notified.load(Ordering::SeqCst))
    }

    /// Notifies the watchers of published events: a few directly, many by the notifier.
    pub(super) fn notify(&self, affected: AffectedScopes) {
        if affected.is_empty() {
            return;
        }
        let revision = self.revision();
        let mut pending = lock(&self.pending);
        let mut direct = Vec::new();
        for (scope, first) in affected {
            let slots = self.slots_of(&scope, self.direct - direct.len());
            match slots.filter(|_| !pending.has(&scope)) {
                Some(slots) => direct.extend(slots.into_iter().map(|slot| (slot, first))),
                None => {
                    pending.affected.entry(scope).or_insert(first);
                    self.work.notify_one();
                }
            }
        }
        for (slot, first) in direct {
            slot.notify(Notification { first, last: revision });
        }
        pending.revision = revision;
        self.set_notified(&pending);
    }

    /// The watchers of a scope, unless there are more than `most`.
    fn slots_of(&self, scope: &WatchScope, most: usize) -> Option<Vec<Arc<WatcherSlot>>> {
        let slots = lock(&self.slots);
        let slots = slots.get(scope).map_or(&[][..], Vec::as_slice);
        (slots.len() <= most).then(|| slots.to_vec())
    }

    fn set_notified(&self, pending: &PendingNotifications) {
        if pending.affected.is_empty() && pending.wave.is_empty() {
            self.notified.store(pending.revision.0, Ordering::SeqCst);
        }
    }

    /// The notifier thread: notifies many watchers in waves, until [`WatchCache::close`]. Events that are published
    /// during a wave come with the next one: a thousand watchers at a thousand events per second are no million wake-ups.
    pub(super) fn notify_in_waves(&self, clock: &Clock) {
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let (mut last, mut slowdown) = (self.notified(), 1);
        while let Some((affected, revision)) = self.next_wave() {
            let slots = |(scope, first)| (self.slots_of(scope, usize::MAX).unwrap_or_default(), first);
            let each =
                affected.iter().map(slots).flat_map(|(slots, first)| slots.into_iter().zip(repeat(*first)));
            let wave: Vec<(Arc<WatcherSlot>, Revision)> = each.collect();
            let is_calm = revision.0.saturating_sub(last.0) <= CALM_EVENTS;
            let mut behind = 0;
            for step in wave.chunks(STEP) {
                for (slot, first) in step {
                    behind += usize::from(!slot.notify(Notification { first: *first, last: revision }));
                }
                clock.sleep_blocking(DELIVERY_COST * slowdown * step.len() as u32 / processors);
            }
            slowdown = match behind * 8 > wave.len() {
                true => (slowdown * 2).min(MAX_SLOWDOWN),
                false if is_calm => 1,
                false => (slowdown / 2).max(BUSY_SLOWDOWN),
            };
            last = revision;
        }
    }

    /// Waits for work; `None` after [`WatchCache::close`].
    fn next_wave(&self) -> Option<(AffectedScopes, Revision)> {
        let mut pending = lock(&self.pending);
        pending.wave.clear();
        if is_sabotaged(EngineSabotage::DroppedHandover) {
            pending.affected.clear();
        }
        self.set_notified(&pending);
        while pending.affected.is_empty() && !pending.closed {
            pending = self.work.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        pending.wave = std::mem::take(&mut pending.affected);
        (!pending.closed).then(|| (pending.wave.clone(), pending.revision))
    }

    pub(super) fn close(&self) {
        self.history.write().unwrap_or_else(PoisonError::into_inner).closed = true;
        lock(&self.pending).closed = true;
        self.work.notify_all();
        let all: Vec<_> = lock(&self.slots).values().flatten().cloned().collect();
        for slot in all {
            slot.notify(Notification { first: Revision(0), last: self.revision() });
        }
    }

    pub(super) fn subscribe(&self, scope: &WatchScope) -> Arc<WatcherSlot> {
        let slot = Arc::new(WatcherSlot::default());
        lock(&self.slots).entry(scope.clone()).or_default().push(slot.clone());
        slot
    }

    pub(super) fn unsubscribe(&self, scope: &WatchScope, slot: &Arc<WatcherSlot>) {
        let mut slots = lock(&self.slots);
        let Some(group) = slots.get_mut(scope) else { return };
        group.retain(|other| !Arc::ptr_eq(other, slot));
        if group.is_empty() {
            slots.remove(scope);
        }
    }

    pub(super) fn watchers(&self) -> usize {
        lock(&self.slots).values().map(Vec::len).sum()
    }
}

/// Ignores poisoning: every change below these locks is one step, so the content is valid when a holder panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
