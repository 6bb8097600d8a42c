//! Fan-out: the newest changes in a bounded ring in memory, shared by all watchers, and who wants to be woken.
//!
//! ```text
//!  writer --publish--> ring [Arc<Change>, ...] <--read at own pace-- watcher, watcher, ...
//!         \--wake: a few at once, many by the pacer in waves--------> watcher, watcher, ...
//! ```
//!
//! Nobody holds the writer up: a watcher that falls behind the ring reads the log on disk.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::iter::repeat;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;
use std::thread;
use std::time::Duration;

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
    /// The last change of each object among them; asked for by every update, and never gone through.
    last_by_key: HashMap<Key, Arc<Change>>,
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

    /// The last change of an object, if it is among the newest of all.
    pub fn last_of(&self, key: &Key) -> Option<&Arc<Change>> {
        self.last_by_key.get(key)
    }

    fn push(&mut self, change: Arc<Change>) {
        self.revision = change.revision;
        self.weight += change.weight();
        match self.last_by_key.get_mut(&change.key) {
            Some(last) => *last = change.clone(),
            None => drop(self.last_by_key.insert(change.key.clone(), change.clone())),
        }
        self.changes.push_back(change);
        while self.changes.len() > self.limits.changes || self.weight > self.limits.bytes {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.weight -= oldest.weight();
            if self.last_by_key.get(&oldest.key).is_some_and(|last| last.revision == oldest.revision) {
                self.last_by_key.remove(&oldest.key);
            }
        }
    }
}

/// Up to so many watchers are woken by the writer himself, without a detour.
const FEW: usize = 32;
/// How many watchers a wave wakes at once, so that requests find their place between them.
const WAKE_STEP: usize = 64;
/// What it costs about to bring a batch to one watcher, in time of one processor. A wave takes this for each, so
/// that more changes share a batch the more watchers there are, and waves never queue up behind each other.
const WAKE_COST: Duration = Duration::from_micros(40);
/// With more changes than this in a wave, or with watchers that had not come to the one before, waves take longer,
/// so that batches become larger: then the cost of a change is that of its bytes, and no longer that of waking
/// somebody for it.
const CALM: u64 = 4;
const SLOWER: u32 = 3;
const SLOWEST: u32 = 12;

/// Where a watcher leaves its waker before it sleeps, and where it finds out what woke it.
#[derive(Default)]
pub(super) struct Sleeper(Mutex<Bed>);

#[derive(Default)]
struct Bed {
    waker: Option<Waker>,
    rung: Option<News>,
}

/// What a watcher was woken for.
#[derive(Clone, Copy)]
pub(super) struct News {
    /// The first change of interest since the watcher last asked.
    pub first: Revision,
    /// All that there is of interest up to here has been told.
    pub last: Revision,
}

impl Sleeper {
    pub fn sleep(&self, waker: &Waker) {
        let mut bed = lock(&self.0);
        if !bed.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            bed.waker = Some(waker.clone());
        }
    }

    /// What there is of interest since this was asked before.
    pub fn take_news(&self) -> Option<News> {
        lock(&self.0).rung.take()
    }

    pub fn is_rung(&self) -> bool {
        lock(&self.0).rung.is_some()
    }

    /// Wakes the watcher; the result is whether it had come to what it was woken for before.
    fn wake(&self, news: News) -> bool {
        let (waker, keeps_up) = {
            let mut bed = lock(&self.0);
            let keeps_up = bed.rung.is_none();
            bed.rung.get_or_insert(news).last = news.last;
            (bed.waker.take(), keeps_up)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        keeps_up
    }
}

/// Who is to be woken, and the first change for each.
type Touched = BTreeMap<Interest, Revision>;

type Sleepers = BTreeMap<Interest, Vec<Arc<Sleeper>>>;

/// What the pacer has to do.
#[derive(Default)]
struct Due {
    touched: Touched,
    /// The wave that is under way. Nobody else wakes whom it wakes: each watcher has to hear of changes in their order.
    wave: Touched,
    /// The newest revision that was handed to us, or whose watchers were woken by the writer.
    revision: Revision,
    closed: bool,
}

impl Due {
    fn has(&self, interest: &Interest) -> bool {
        self.touched.contains_key(interest) || self.wave.contains_key(interest)
    }
}

pub(super) struct Hub {
    ring: RwLock<Ring>,
    sleepers: Mutex<Sleepers>,
    due: Mutex<Due>,
    bell: Condvar,
    /// Whoever is interested in a change up to here has been woken for it.
    announced: AtomicU64,
}

impl Hub {
    pub fn new(revision: Revision, limits: RingLimits) -> Hub {
        let changes = VecDeque::new();
        let last_by_key = HashMap::new();
        let ring = Ring { changes, last_by_key, weight: 0, limits, revision, closed: false };
        Hub {
            ring: RwLock::new(ring),
            sleepers: Mutex::new(BTreeMap::new()),
            due: Mutex::new(Due { revision, ..Due::default() }),
            bell: Condvar::new(),
            announced: AtomicU64::new(revision.0),
        }
    }

    pub fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn revision(&self) -> Revision {
        self.ring().revision
    }

    /// Lets watchers see changes that are durable. Waking them is [`Hub::wake`]'s part, so that the writers
    /// of the changes need not wait for it.
    pub fn publish(&self, changes: Vec<Change>) -> Touched {
        let mut touched = Touched::new();
        let changes: Vec<_> = changes.into_iter().map(Arc::new).collect();
        for change in &changes {
            let resource = change.key.resource;
            for namespace in [None, Some(change.key.namespace.clone())] {
                touched.entry(Interest { resource, namespace }).or_insert(change.revision);
            }
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            ring.push(change);
        }
        touched
    }

    /// The revision up to which whoever is interested has been woken.
    pub fn announced(&self) -> Revision {
        Revision(self.announced.load(Ordering::SeqCst))
    }

    /// Wakes who is interested in changes that were just published: a few at once, many by the pacer.
    pub fn wake(&self, touched: Touched) {
        if touched.is_empty() {
            return;
        }
        let revision = self.revision();
        let mut due = lock(&self.due);
        let mut few = Vec::new();
        for (interest, first) in touched {
            let group = self.group(&interest, FEW - few.len());
            match group.filter(|_| !due.has(&interest)) {
                Some(group) => few.extend(group.into_iter().map(|sleeper| (sleeper, first))),
                None => {
                    due.touched.entry(interest).or_insert(first);
                    self.bell.notify_one();
                }
            }
        }
        for (sleeper, first) in few {
            sleeper.wake(News { first, last: revision });
        }
        due.revision = revision;
        self.announce(&due);
    }

    /// The watchers with an interest, unless there are more than so many.
    fn group(&self, interest: &Interest, most: usize) -> Option<Vec<Arc<Sleeper>>> {
        let sleepers = lock(&self.sleepers);
        let group = sleepers.get(interest).map_or(&[][..], Vec::as_slice);
        (group.len() <= most).then(|| group.to_vec())
    }

    /// Says that everybody was woken, if nobody has to be.
    fn announce(&self, due: &Due) {
        if due.touched.is_empty() && due.wave.is_empty() {
            self.announced.store(due.revision.0, Ordering::SeqCst);
        }
    }

    /// The pacer's thread: wakes many watchers in waves, until the end. What is published during a wave comes with the
    /// next one, so that a thousand watchers at a thousand changes per second are no million wake-ups.
    pub fn pace(&self) {
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let (mut last, mut slower) = (self.announced(), 1);
        while let Some((touched, revision)) = self.next_wave() {
            let group = |(interest, first)| (self.group(interest, usize::MAX).unwrap_or_default(), first);
            let each =
                touched.iter().map(group).flat_map(|(group, first)| group.into_iter().zip(repeat(*first)));
            let wave: Vec<(Arc<Sleeper>, Revision)> = each.collect();
            let is_calm = revision.0.saturating_sub(last.0) <= CALM;
            let mut behind = 0;
            for step in wave.chunks(WAKE_STEP) {
                for (sleeper, first) in step {
                    behind += usize::from(!sleeper.wake(News { first: *first, last: revision }));
                }
                thread::sleep(WAKE_COST * slower * step.len() as u32 / processors);
            }
            slower = match behind * 8 > wave.len() {
                true => (slower * 2).min(SLOWEST),
                false if is_calm => 1,
                false => (slower / 2).max(SLOWER),
            };
            last = revision;
        }
    }

    /// Waits for something to do; nothing at the end.
    fn next_wave(&self) -> Option<(Touched, Revision)> {
        let mut due = lock(&self.due);
        due.wave.clear();
        self.announce(&due);
        while due.touched.is_empty() && !due.closed {
            due = self.bell.wait(due).unwrap_or_else(PoisonError::into_inner);
        }
        due.wave = std::mem::take(&mut due.touched);
        (!due.closed).then(|| (due.wave.clone(), due.revision))
    }

    pub fn close(&self) {
        self.ring.write().unwrap_or_else(PoisonError::into_inner).closed = true;
        lock(&self.due).closed = true;
        self.bell.notify_all();
        let everyone: Vec<_> = lock(&self.sleepers).values().flatten().cloned().collect();
        for sleeper in everyone {
            sleeper.wake(News { first: Revision(0), last: self.revision() });
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
