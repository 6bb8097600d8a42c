//! The simulator: scores algorithms by in-zone traffic, overload and number of slices, and evaluates changes to a
//! cluster.
//!
//! ```text
//! CSV, data sets -> SimulationInput (zones: nodes, endpoints) -> Algorithm -> SliceGroups -> ScoreMetrics
//! Snapshot -> what-if, replay: the planning functions of the controller, in virtual time
//! ```
//!
//! No I/O and no clock: texts come in as strings, and callers show the progress.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
pub mod algorithm;
pub mod closed_loop;
pub mod dataset;
pub mod fast;
pub mod input;
pub mod metrics;
pub mod replay;
pub mod scoring;
mod slice_group;
mod synthetic;
pub use insight::what_if;

pub use algorithm::{Algorithm, AlgorithmSettings};
pub use dataset::Dataset;
pub use input::{InputError, SimulationInput, Zone};
pub use metrics::{ScoreMetrics, ScoreWeights};
pub use slice_group::SliceGroup;
