//! The simulator: how well an algorithm keeps traffic in its zone, at what overload and in how many slices.
//!
//! ```text
//! CSV, data sets -> Input (zones: nodes, endpoints) -> Algorithm -> groups -> Metrics -> Summary
//! Snapshot -> what-if, replay: the controller's own planning functions, with time as a number
//! ```
//!
//! No I/O and no clock: texts come in as strings, and whoever calls shows the progress.

pub mod algorithm;
pub mod dataset;
pub mod fast;
pub mod groups;
pub mod input;
pub mod replay;
pub mod report;
pub mod run;
pub mod score;
pub mod whatif;
mod world;

pub use algorithm::{Algorithm, Settings};
pub use dataset::Dataset;
pub use groups::Group;
pub use input::{Input, Rejection, Zone};
pub use score::{Metrics, ScoreWeights, Status};
