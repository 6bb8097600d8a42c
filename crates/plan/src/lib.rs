//! All decisions: pure functions from a snapshot to a plan.
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
//! | which Service to sync when | [`work_queue`], with expectations and the Services that a change affects |
//! | cluster IPs and their repair | [`cluster_ips`] |
//! | NodePorts | [`node_port_allocator`] |
//! | endpoints that a node uses for a Service | [`select`]; the forwarding table of a node: [`forward`] |
//! | DNS answers | [`dns`] |
//! | L7 routes and backends | [`routes`], [`backends`]; attachment and statuses of the Gateway API: [`gateway_api`] |
//! | what each mechanism would do for a Service, and which to use | [`what_if`] |
//! | what is measured beside what is planned, and what to change | [`status`] |
//! | whether an object is valid | [`validate`] |
//! | whether a user may do something, and may grant it | [`rbac`] |
//! | tokens of service accounts | [`service_account`] |
//! | what a node serves that starts while the API is away | [`offline_start`] |
//! | machines that join: tokens, credentials, what a node may write | [`join`] |
//! | what the audit log records | [`audit_policy`] |
//! | field ownership and server-side apply | [`managed_fields`] |
//! | what flags say about all of them | [`config`], [`feature_gates`] |
//! | when backups are due, and which expire | [`backups`] |
//! | when exposed processes are checked, and whether they are ready | [`health_checks`] |
//! | traffic by Service and zone, and what it costs | [`ledger`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audit_policy;
pub mod backends;
pub mod backups;
pub mod capacity;
pub mod cluster_ips;
mod condition_status;
pub mod config;
pub mod dns;
pub mod drain;
pub mod feature_gates;
pub mod forward;
pub mod gateway_api;
pub mod health_checks;
pub mod hints;
pub mod join;
pub mod ledger;
pub mod managed_fields;
pub mod node_port_allocator;
pub mod offline_start;
pub mod planner;
pub mod rbac;
pub mod regions;
pub mod routes;
pub mod select;
pub mod service_account;
pub mod slices;
pub mod spill;
pub mod status;
pub mod subsetting;
pub mod validate;
pub mod what_if;
pub mod work_queue;

pub use condition_status::ConditionStatus;
pub use config::PlanningConfig;
pub use feature_gates::{FeatureGates, NodeGates};
