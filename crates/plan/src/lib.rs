//! The brain: snapshot in, decision out.
//!
//! Everything that chooses is here and only here, so that the controllers, the node proxy, the simulator and
//! the commands that explain cannot disagree. No I/O, no clock, no randomness, no hash-map order: what a
//! function needs is an argument, what it has to remember is a result.

#![allow(missing_docs)]

pub mod addresses;
pub mod backends;
mod condition_status;
pub mod feature_gates;
pub mod forward;
pub mod hints;
pub mod node_ports;
pub mod planner;
pub mod queue;
pub mod regions;
pub mod routes;
pub mod select;
pub mod slices;
pub mod spill;
pub mod validate;

pub use condition_status::ConditionStatus;
pub use feature_gates::{FeatureGates, NodeGates};
