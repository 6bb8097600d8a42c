//! The tests of crate `xtask`, as one program: one link instead of 4.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod architecture;
mod citations;
mod names;
mod tools;
