//! What is measured beside what is planned: traffic by Service and zone, what it costs, why it leaves its zone, and what to
//! change.
//!
//! ```text
//! nodes, proxies: traffic_reporter --reports--> traffic_ledger (ledger: sums, prices) --LedgerView--\
//! the controller's loop: snapshot, Leases -----------------------------------------> status_board (status, what_if)
//!                                                                                        |          \-> observations -> conditions
//!                                     /api/status, pages of the dashboard, metrics <-----/
//! ```
//!
//! | pure: no I/O, no clock | |
//! |---|---|
//! | [`ledger`] | traffic by Service and zone, its history, and what it costs |
//! | [`status`] | the report: measured beside planned, why, and what to change |
//! | [`what_if`] | what each mechanism would do for a Service, and which to use |
//! | [`pages`] | the pages of the dashboard as HTML |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod dashboard;
pub mod ledger;
pub mod observations;
pub mod pages;
pub mod service_objects;
pub mod signal_metrics;
pub mod status;
pub mod status_board;
pub mod status_page;
pub mod traffic_ledger;
pub mod traffic_reporter;
pub mod what_if;
