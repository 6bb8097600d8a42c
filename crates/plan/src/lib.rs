//! All decisions about traffic: pure functions from a snapshot to a plan. What the API decides is in crate `apimachinery`.
//!
//! Controllers, the node proxy, the simulator and the commands that explain call the same functions, so they cannot
//! disagree. No I/O, no clock, no random source, no hash-map order: inputs are arguments, and state for the next call is
//! part of the result.
//!
//! | decision | where |
//! |---|---|
//! | EndpointSlices of a Service | [`slices`]; with hints, as the controller writes them: [`planner`] |
//! | slices by zone, and which of them a node sees | [`subsetting`] |
//! | hints for zones and nodes | [`hints`], [`spill`] (by load), [`regions`] |
//! | shares of single endpoints: slow start, drains, capacities | [`capacity`], [`drain`] |
//! | what a change of an object affects | [`dependents`]; which Service to sync when: [`work_queue`], with expectations |
//! | endpoints that a node uses for a Service | [`select`]; the forwarding table of a node: [`forward`] |
//! | DNS answers | [`dns`] |
//! | L7 routes and backends | [`routes`], [`backends`]; attachment and statuses of the Gateway API: [`gateway_api`] |
//! | what flags say about all of them | [`config`], [`feature_gates`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod backends;
pub mod capacity;
mod condition_status;
pub mod config;
pub mod dependents;
pub mod dns;
pub mod drain;
pub mod feature_gates;
pub mod forward;
pub mod gateway_api;
pub mod hints;
pub mod planner;
pub mod regions;
pub mod routes;
pub mod select;
pub mod slices;
pub mod spill;
pub mod subsetting;
pub mod work_queue;

pub use condition_status::ConditionStatus;
pub use config::PlanningConfig;
pub use feature_gates::{FeatureGates, NodeGates};
