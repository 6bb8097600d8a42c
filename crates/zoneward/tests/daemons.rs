//! What the daemons show to operators: their logs and their metrics, read from running processes. Each test has a network
//! of its own, so that every daemon has its usual ports.

mod exposition;
mod ledger;
mod logs;
mod metrics;
pub(crate) mod reference;
pub(crate) mod world;
