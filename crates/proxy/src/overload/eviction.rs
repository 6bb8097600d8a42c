//! The signal that ends a request or a connection for the sake of others.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Set once; one task waits for it.
#[derive(Debug, Default)]
pub(crate) struct EvictionSignal {
    is_set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl EvictionSignal {
    /// Returns false if it was set before.
    pub(crate) fn set(&self) -> bool {
        let is_first = !self.is_set.swap(true, SeqCst);
        if let Some(waker) = self.waker().take() {
            waker.wake();
        }
        is_first
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(SeqCst)
    }

    pub(crate) fn wait(&self) -> EvictionWait<'_> {
        EvictionWait { signal: self, registered: None }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers its waker once: polled again by the same task, it only reads a flag.
pub(crate) struct EvictionWait<'s> {
    signal: &'s EvictionSignal,
    registered: Option<Waker>,
}

impl Future for EvictionWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.is_set() {
            return Poll::Ready(());
        }
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        *self.signal.waker() = Some(cx.waker().clone());
        self.registered = Some(cx.waker().clone());
        // Again, because it may have been set before the waker was there.
        if self.signal.is_set() { Poll::Ready(()) } else { Poll::Pending }
    }
}
