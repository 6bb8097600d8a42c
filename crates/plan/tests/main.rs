//! The tests of crate `plan`, as one program: one link instead of 20.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod cluster_ips_properties;
mod dns;
mod endpoint_conversion;
mod forward_properties;
mod fuzz;
mod gateway_api;
mod gateway_properties;
mod hints_suite;
mod ip_allocation;
mod l7_routing;
mod rbac;
mod routes_properties;
mod server_side_apply;
mod slice_packing;
mod slices_properties;
mod spill_measured;
mod spill_rows;
mod subsetting;
mod topology_selection;
mod validate;
