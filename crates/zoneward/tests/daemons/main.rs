//! What the daemons show to operators: their logs and their metrics, read from running processes. Each test has a network
//! of its own, so that every daemon has its usual ports.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod exposition;
mod ledger;
mod logs;
mod metrics;
mod reference;
#[path = "../started/up.rs"]
mod started;
mod world;
