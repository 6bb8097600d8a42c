//! The mechanisms from the outside: Services and nodes in, hints, Notices and conditions out.

#[path = "hints_suite/auto.rs"]
mod auto;
#[path = "hints_suite/conditions.rs"]
mod conditions;
#[path = "hints_suite/precedence.rs"]
mod precedence;
#[path = "hints_suite/prefer.rs"]
mod prefer;
#[path = "hints_suite/prefer_same.rs"]
mod prefer_same;
#[path = "hints_suite/rebalance.rs"]
mod rebalance;
#[path = "hints_suite/require.rs"]
mod require;
#[path = "hints_suite/spill.rs"]
mod spill;
#[path = "hints_suite/stability.rs"]
mod stability;
#[path = "hints_suite/untouched.rs"]
mod untouched;
#[path = "hints_suite/vectors.rs"]
mod vectors;
#[path = "hints_suite/world.rs"]
mod world;
