//! The tests of crate `dist`, as one program: one link instead of 3.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod image;
mod packages;
mod reproducible;
