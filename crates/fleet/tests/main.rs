//! The tests of crate `fleet`, as one program: one link instead of 2.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod fleet;
#[cfg(debug_assertions)]
mod planted;
mod store_histories;
