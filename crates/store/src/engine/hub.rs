//! Fan-out: the newest changes in a bounded ring in memory, shared by all watchers, and who wants to be woken.
//!
//! ```text
//!  writer --publish--> ring [Arc<Change>, ...] <--read at own pace-- watcher, watcher, ...
//! ```
//!
//! Nobody holds the writer up: a watcher that falls behind the ring reads the log on disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;

use super::key::{Change, Key, ResourceId, Revision};

/// How much the ring may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLimits {
    pub changes: usize,
    pub bytes: usize,
}

/// What a watcher wants to see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interest {
    pub resource: ResourceId,
    pub namespace: Option<Box<str>>,
}

impl Interest {
    pub fn covers(&self, key: &Key) -> bool {
        self.resource == key.resource && self.namespace.as_ref().is_none_or(|only| *only == key.namespace)
    }
}

/// The newest changes, without a gap.
pub(super) struct Ring {
    changes: VecDeque<Arc<Change>>,
    weight: usize,
    limits: RingLimits,
    /// The newest revision that watchers may know of.
    pub revision: Revision,
    /// The engine has ended; nothing will follow.
    pub closed: bool,
}

impl Ring {
    /// The changes after a revision, or `None` if the ring does not reach back that far.
    pub fn after(&self, revision: Revision) -> Option<impl Iterator<Item = &Arc<Change>>> {
        let missing = self.revision.0.saturating_sub(revision.0);
        let skip = (self.changes.len() as u64).checked_sub(missing)?;
        Some(self.changes.range(skip as usize..))
    }

    fn push(&mut self, change: Arc<Change>) {
        self.revision = change.revision;
        self.weight += change.weight();
        self.changes.push_back(change);
        while self.changes.len() > self.limits.changes || self.weight > self.limits.bytes {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.weight -= oldest.weight();
        }
    }
}

/// Where a watcher leaves its waker before it sleeps.
#[derive(Default)]
pub(super) struct Sleeper(Mutex<Option<Waker>>);

impl Sleeper {
    pub fn sleep(&self, waker: &Waker) {
        let mut place = lock(&self.0);
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

type Sleepers = BTreeMap<Interest, Vec<Arc<Sleeper>>>;

pub(super) struct Hub {
    ring: RwLock<Ring>,
    sleepers: Mutex<Sleepers>,
}

impl Hub {
    pub fn new(revision: Revision, limits: RingLimits) -> Hub {
        let changes = VecDeque::new();
        let ring = Ring { changes, weight: 0, limits, revision, closed: false };
        Hub { ring: RwLock::new(ring), sleepers: Mutex::new(BTreeMap::new()) }
    }

    pub fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn revision(&self) -> Revision {
        self.ring().revision
    }

    /// Lets watchers see changes that are durable. Waking them is [`Hub::wake`]'s part, so that the writers
    /// of the changes need not wait for it.
    pub fn publish(&self, changes: Vec<Change>) -> BTreeSet<Interest> {
        let mut touched = BTreeSet::new();
        let changes: Vec<_> = changes.into_iter().map(Arc::new).collect();
        for change in &changes {
            let resource = change.key.resource;
            touched.insert(Interest { resource, namespace: None });
            touched.insert(Interest { resource, namespace: Some(change.key.namespace.clone()) });
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            ring.push(change);
        }
        touched
    }

    pub fn wake(&self, touched: &BTreeSet<Interest>) {
        let wakeful: Vec<_> = {
            let sleepers = lock(&self.sleepers);
            touched.iter().filter_map(|interest| sleepers.get(interest)).flatten().cloned().collect()
        };
        for sleeper in wakeful {
            sleeper.wake();
        }
    }

    pub fn close(&self) {
        self.ring.write().unwrap_or_else(PoisonError::into_inner).closed = true;
        let everyone: Vec<_> = lock(&self.sleepers).values().flatten().cloned().collect();
        for sleeper in everyone {
            sleeper.wake();
        }
    }

    pub fn enter(&self, interest: &Interest) -> Arc<Sleeper> {
        let sleeper = Arc::new(Sleeper::default());
        lock(&self.sleepers).entry(interest.clone()).or_default().push(sleeper.clone());
        sleeper
    }

    pub fn leave(&self, interest: &Interest, sleeper: &Arc<Sleeper>) {
        let mut sleepers = lock(&self.sleepers);
        let Some(group) = sleepers.get_mut(interest) else { return };
        group.retain(|other| !Arc::ptr_eq(other, sleeper));
        if group.is_empty() {
            sleepers.remove(interest);
        }
    }

    pub fn watchers(&self) -> usize {
        lock(&self.sleepers).values().map(Vec::len).sum()
    }
}

/// A lock whose content stays whole when a holder panics: every change to it is one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
