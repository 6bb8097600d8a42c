//! The random source of the request path: one atomic counter through splitmix64, shared by all threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use model::random::{GOLDEN_STEP, Random, mix};

#[derive(Debug)]
pub(crate) struct SharedRandom(AtomicU64);

impl SharedRandom {
    pub(crate) fn new(mut source: Random) -> Self {
        Self(AtomicU64::new(source.next_u64()))
    }

    pub(crate) fn next(&self) -> u64 {
        mix(self.0.fetch_add(GOLDEN_STEP, Ordering::Relaxed))
    }
}
