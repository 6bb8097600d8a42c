//! The iptables backend, and the evaluation of iptables rules.
//!
//! ```text
//! render (chains) -> diff -> input of iptables-restore -> kernel or fake
//!                     ^                                     |
//!                     +------------- saved <- iptables-save +--> ruleset -> trace
//! ```

mod backend;
pub mod cleanup;
pub mod commands;
pub mod diff;
pub mod fake;
pub mod names;
pub mod nfacct;
pub mod render;
pub mod rule;
pub mod ruleset;
pub mod saved;
pub mod tree;

pub use backend::IptablesBackend;
