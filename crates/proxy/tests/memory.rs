//! What requests cost in memory: bodies that nobody takes, and allocations for each request.
//!
//! The allocator of this test counts. The endpoints and clients here are plain sockets that keep nothing, so what is
//! counted is the proxy's.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "memory/allocations.rs"]
mod allocations;
#[path = "proxy/harness.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod harness;
#[path = "memory/slow_readers.rs"]
mod slow_readers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is done by the system's allocator; the counters touch no memory of its.
#[allow(unsafe_code, reason = "an allocator is unsafe by its nature")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are allocated now.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// Allocations so far.
pub fn calls() -> usize {
    CALLS.load(Relaxed)
}
