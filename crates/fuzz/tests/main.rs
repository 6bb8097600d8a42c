//! The tests of crate `fuzz`, as one program: one link instead of 2.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod corpus;
mod planning;
