//! The command line, as a library: `main.rs` only calls it, so that tests reach its parts.
//!
//! Commands parse their flags, read objects through `cluster`, call `plan` and print through `output`. Nothing is
//! decided here.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod cli;
pub mod commands;
pub mod edge;
pub mod health_checks;
pub mod otlp;
pub mod retries;
pub mod routes;
