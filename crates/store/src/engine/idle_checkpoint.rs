//! Checkpoints while the store is idle. When the journal is half full, the next write has to wait for a checkpoint, which
//! takes as long as everything since the last one takes to reach the disk. Idle checkpoints are earlier and smaller.

use std::time::Duration;

use super::watch_cache::lock;
use crate::sync::{Condvar, Mutex, PoisonError};

/// The store is idle after this long without a commit.
const IDLE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct IdleCheckpoint {
    state: Mutex<CheckpointState>,
    changed: Condvar,
}

#[derive(Default)]
struct CheckpointState {
    requested: bool,
    closed: bool,
}

impl IdleCheckpoint {
    /// Requests a checkpoint as soon as the store is idle.
    pub(super) fn request(&self) {
        lock(&self.state).requested = true;
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_one();
    }

    /// The thread: checkpoints after each request, once the number of `commits` stands still. Returns after
    /// [`IdleCheckpoint::close`].
    pub(super) fn run(&self, commits: impl Fn() -> u64, checkpoint: impl Fn()) {
        while self.next_request() {
            let mut before = commits();
            while self.pause() {
                let now = commits();
                if now == before {
                    checkpoint();
                    break;
                }
                before = now;
            }
        }
    }

    /// Waits for a request; false when closed.
    fn next_request(&self) -> bool {
        let waits = |state: &mut CheckpointState| !state.requested && !state.closed;
        let mut state =
            self.changed.wait_while(lock(&self.state), waits).unwrap_or_else(PoisonError::into_inner);
        state.requested = false;
        !state.closed
    }

    /// Waits for [`IDLE`]; false when closed.
    fn pause(&self) -> bool {
        let open = |state: &mut CheckpointState| !state.closed;
        let waited = self.changed.wait_timeout_while(lock(&self.state), IDLE, open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::sync::run_test;

    #[test]
    fn a_requested_checkpoint_waits_until_the_store_is_idle() {
        run_test(|| {
            let (idle, looks, done) = (IdleCheckpoint::default(), Cell::new(0), Cell::new(0));
            // Commits continue until the third look.
            let commits = || {
                looks.set(looks.get() + 1);
                looks.get().min(3)
            };
            idle.request();
            idle.run(commits, || {
                done.set(done.get() + 1);
                idle.close();
            });
            assert_eq!((looks.get(), done.get()), (4, 1));
        });
    }

    #[test]
    fn closing_ends_the_thread_without_a_checkpoint() {
        run_test(|| {
            let idle = IdleCheckpoint::default();
            idle.request();
            idle.close();
            idle.run(|| 0, || panic!("closed before the checkpoint"));
        });
    }
}
