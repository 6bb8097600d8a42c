//! Which mechanism holds for a Service, and the hints that its endpoints get from it.

pub mod mechanism;

pub use mechanism::{Mechanism, Scope};
