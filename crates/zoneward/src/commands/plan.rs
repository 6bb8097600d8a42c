//! `zoneward plan`: what would be written.

pub(super) mod addresses;
mod envoy;
pub(super) mod node;
pub(super) mod routes;
pub(super) mod slices;
pub(super) mod status;
pub(super) mod validate;
