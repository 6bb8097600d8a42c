//! What `crate::sync` is for the engine here: shuttle's threads, locks and channels.

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use shuttle::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
pub use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use shuttle::thread::{Builder, JoinHandle, Thread, current, park};

use std::sync::LockResult;
use std::time::Duration;

/// Time stands still, so that a deadline never comes: a missed wake-up is a deadlock, which shuttle reports. Its own function
/// returns at once.
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
