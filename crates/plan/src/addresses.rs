//! Which addresses Services have: ranges with a static and a dynamic band, and an allocator over them.
//!
//! The static band has `min(max(16, size / 16), 256)` addresses and none in a range of 16 or fewer (seed 002).

pub mod allocator;
pub mod range;
mod runs;

pub use allocator::{AllocateError, Allocator, Pool, start_offset};
pub use range::{Band, Range, visits};
