//! Blocks a plain thread on a poll function, without an async runtime: every wait has one implementation, a poll.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use clock::Clock;

use crate::sync::{Thread, current, park, park_timeout};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls on this thread until there is a result.
pub(super) fn block_on<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    loop_until(poll, || {
        park();
        true
    })
    .expect("without a deadline only a result ends the loop")
}

/// Polls on this thread until there is a result, or until the deadline.
pub(super) fn block_until<T>(
    clock: &Clock,
    deadline: Instant,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    loop_until(poll, || {
        let left = deadline.saturating_duration_since(clock.now());
        park_timeout(left);
        !left.is_zero()
    })
}

fn loop_until<T>(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    mut wait: impl FnMut() -> bool,
) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Some(value);
        }
        if !wait() {
            return None;
        }
    }
}
