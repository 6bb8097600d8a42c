//! What `crate::sync` is for the engine here: shuttle's threads, locks and channels.

use std::cell::Cell;
use std::sync::{Arc, LockResult};
use std::time::Duration;

use crate::engine::EngineSabotage;

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use shuttle::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
pub use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use shuttle::thread::{Builder, JoinHandle};

thread_local! {
    /// All threads of a schedule run on the thread of their test.
    static SABOTAGE: Cell<Option<EngineSabotage>> = const { Cell::new(None) };
}

/// Sabotages the engines of this test, or none.
pub fn sabotage(sabotage: Option<EngineSabotage>) {
    SABOTAGE.set(sabotage);
}

pub fn is_sabotaged(sabotage: EngineSabotage) -> bool {
    SABOTAGE.get() == Some(sabotage)
}

/// A thread that can be parked. Not shuttle's: a thread in its `park` may be woken for no reason as long as another thread
/// runs, and a poll for no reason hides a lost wake-up. Here, only `unpark` wakes.
#[derive(Clone, Default)]
pub struct Thread(Arc<ParkToken>);

#[derive(Default)]
struct ParkToken {
    is_set: Mutex<bool>,
    changed: shuttle::sync::Condvar,
}

impl Thread {
    pub fn unpark(&self) {
        *self.0.is_set.lock().expect("no holder panics") = true;
        self.0.changed.notify_one();
    }
}

shuttle::thread_local! {
    static CURRENT: Thread = Thread::default();
}

pub fn current() -> Thread {
    CURRENT.with(Clone::clone)
}

pub fn park() {
    let Thread(token) = current();
    let is_set = token.is_set.lock().expect("no holder panics");
    *token.changed.wait_while(is_set, |is_set| !*is_set).expect("no holder panics") = false;
}

/// Time stands still, so that a deadline never comes: a missed wake-up is a deadlock, which shuttle reports.
pub fn park_timeout(_: Duration) {
    park();
}

/// As shuttle's; but a wait with a timeout, which never ends there without a notification, times out after other threads
/// had a turn.
#[derive(Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait_while(guard, condition)
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
        _: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        shuttle::thread::yield_now();
        Ok((guard, ()))
    }
}

/// The engine's own tests run in a few schedules.
pub fn run_test(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(test, 10);
}
