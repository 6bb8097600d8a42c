//! The node proxy: the rules that the cluster's Services need, in this node's kernel.
//!
//! ```text
//! flags, file -> config --------------------------------\
//! API -> watch -> WatchCache -> Forwarder: table, deltas -> kernel: render, diff, apply -> conntrack
//!                                 sync_schedule: when      health, metrics, Lease and Events: the result
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod config;
mod connections;
pub mod dns;
pub mod health;
pub mod health_check_ports;
pub mod kernel;
pub mod kernelspace_preview;
pub mod local_addresses;
pub mod localhost_node_ports;
pub mod metrics;
pub mod node_events;
pub mod node_lease;
pub mod object_contact;
pub mod offline;
mod offline_start;
pub mod run;
pub mod running_config;
pub mod slice_watches;
mod snapshot_file;
pub mod sync_loop;
pub mod sync_schedule;
pub mod sysctl;
pub mod traffic;

pub use offline::{NodeChoice, NodeWorld};
