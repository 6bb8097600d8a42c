//! Threads, locks and channels of the engine: those of std. `tests/engine_schedules.rs` compiles the engine with others,
//! which run its threads in many orders.

use crate::engine::EngineSabotage;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub(crate) use std::thread::{Builder, JoinHandle, Thread, current, park, park_timeout};

/// Whether the engine is sabotaged: never.
pub(crate) const fn is_sabotaged(_: EngineSabotage) -> bool {
    false
}

/// Runs a test of the engine that waits.
#[cfg(test)]
pub(crate) fn run_test(test: impl Fn() + Send + Sync + 'static) {
    test();
}
