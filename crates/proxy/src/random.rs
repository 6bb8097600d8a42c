//! Chance from a seed: a counter through a mixing function, shared by all threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers. The same seed gives the same numbers in the order of asking.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

/// The odd number nearest to 2^64 divided by the golden ratio: steps of it visit every number once.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(mixed(seed)))
    }

    pub(crate) fn next(&self) -> u64 {
        mixed(self.0.fetch_add(STEP, Ordering::Relaxed))
    }
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
