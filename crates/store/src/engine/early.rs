//! Checkpoints ahead of time. When the journal is half full a write has to wait until the tables are durable, and that
//! takes as long as all that was written since takes to reach the disk. So it is done earlier and in smaller parts, in
//! moments in which nobody writes.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::hub::lock;

/// How long nobody has to have written.
const QUIET: Duration = Duration::from_millis(5);

/// Who waits for a quiet moment.
#[derive(Default)]
pub(super) struct Early {
    wish: Mutex<Wish>,
    bell: Condvar,
}

#[derive(Default)]
struct Wish {
    wanted: bool,
    closed: bool,
}

impl Early {
    /// Asks for a checkpoint at the next quiet moment.
    pub fn ask(&self) {
        lock(&self.wish).wanted = true;
        self.bell.notify_one();
    }

    /// Ends the thread that waits.
    pub fn close(&self) {
        lock(&self.wish).closed = true;
        self.bell.notify_one();
    }

    /// The thread: does a checkpoint after each wish as soon as `commits`, which counts writes, stands still.
    pub fn run(&self, commits: impl Fn() -> u64, checkpoint: impl Fn()) {
        while self.next() {
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

    /// Waits for a wish; false at the end.
    fn next(&self) -> bool {
        let idle = |wish: &mut Wish| !wish.wanted && !wish.closed;
        let mut wish = self.bell.wait_while(lock(&self.wish), idle).unwrap_or_else(PoisonError::into_inner);
        wish.wanted = false;
        !wish.closed
    }

    /// Lets a little time pass; false at the end.
    fn pause(&self) -> bool {
        let open = |wish: &mut Wish| !wish.closed;
        let waited = self.bell.wait_timeout_while(lock(&self.wish), QUIET, open);
        let (wish, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !wish.closed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_wish_waits_until_nobody_writes() {
        let (early, looks, done) = (Early::default(), Cell::new(0), Cell::new(0));
        // Somebody writes until the third look.
        let commits = || {
            looks.set(looks.get() + 1);
            looks.get().min(3)
        };
        early.ask();
        early.run(commits, || {
            done.set(done.get() + 1);
            early.close();
        });
        assert_eq!((looks.get(), done.get()), (4, 1));
    }

    #[test]
    fn the_end_ends_it_without_a_checkpoint() {
        let early = Early::default();
        early.ask();
        early.close();
        early.run(|| 0, || panic!("nobody waits for it"));
    }
}
