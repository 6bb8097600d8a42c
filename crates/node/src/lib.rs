//! The node proxy: what the cluster wants of this node, in this node's kernel.
//!
//! ```text
//! flags, file -> config ----------------------------\
//! API -> watch -> Snapshot -> forward: table, changes -> kernel: render, diff, apply -> conntrack
//!                                  pace says when        health, metrics, Lease and events say how it went
//! ```
//!
//! `run` ties them together; everything else decides or does one thing.

pub mod addresses;
pub mod checks;
pub mod config;
pub mod effective;
pub mod health;
pub mod kernel;
pub mod metrics;
pub mod offline;
pub mod pace;
pub mod proxy;
pub mod report;
pub mod run;
pub mod sysctl;
pub mod traffic;

use model::{Name, Node};

pub use offline::{NodeChoice, NodeWorld};

/// A node that is known by its name alone.
pub fn unknown(name: &str) -> Node {
    Node {
        name: Name::new(name),
        zone: None,
        region: None,
        ready: true,
        control_plane: false,
        cpu_millis: None,
        deleting: false,
        to_be_deleted: false,
        addresses: Box::default(),
        pod_cidrs: Box::default(),
    }
}
