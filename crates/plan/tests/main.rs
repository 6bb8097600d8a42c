//! The tests of crate `plan`, as one program: one link instead of 14.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod dns;
mod endpoint_conversion;
mod forward_properties;
mod gateway_api;
mod gateway_properties;
mod hints_suite;
mod l7_routing;
mod routes_properties;
mod slice_packing;
mod slices_properties;
mod spill_measured;
mod spill_rows;
mod subsetting;
mod topology_selection;
