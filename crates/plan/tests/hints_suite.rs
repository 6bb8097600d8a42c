//! The mechanisms from the outside: Services and nodes in, hints, Notices and conditions out.

mod auto;
mod conditions;
mod precedence;
mod prefer;
mod prefer_same;
mod rebalance;
mod require;
mod spill;
mod stability;
mod untouched;
mod vectors;
mod world;
