//! The tests of crate `sim`, as one program: one link instead of 5.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod best;
mod closed_loop;
mod fast;
mod vectors;
mod what_if;
