//! The whole fleet in one deterministic simulation: store, controllers with leader election, and nodes on fake kernels,
//! in one process, on one thread, with simulated time, disk, network and crashes.
//!
//! ```text
//! seed -> Options
//! users, kubelets --\                                        /-> Truth: the API's log (1, 2, 3, 6, 7, 8, 12)
//! controllers -------+-> Link -> Network (faults) -> API ----+-> WatchChecker (2)
//! nodes, L7 control -/                |              disk     \-> convergence: plan from nothing (5, 13, 18, 20, 23)
//!   kernels -> KernelChecker (9, 11, 12, 13), FlowChecker (10, 14), CounterChecker (17)
//!                                     +-> Story: hash of all events, last lines
//! ```
//!
//! A test tool: no part of the program. docs/benchmarks/simulation.md says which invariants are checked.

mod acknowledgements;
mod confluence;
mod convergence;
mod counters;
mod drains;
mod duplicates;
mod envoys;
mod flows;
mod foreign;
mod kernels;
mod linearizability;
mod link;
mod network;
mod options;
mod parties;
mod sabotage;
mod service_conditions;
mod simulation;
pub mod soak;
mod spill;
pub mod store_histories;
mod story;
mod time;
mod truth;
mod udp_history;
mod upgrade;
mod violation;
mod watches;
mod workload;

/// The allocator of glibc took a fifth of a run.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub use options::{Faults, Options};
pub use sabotage::Sabotage;
pub use simulation::{RunReport, Simulation};
pub use violation::BrokenInvariant;
