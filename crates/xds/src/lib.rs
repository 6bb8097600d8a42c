//! The tables of a proxy as xDS resources, and the server that sends them to Envoys.
//!
//! ```text
//! RouteTable, BackendTables, certificates --render--> ResourceSet: named, versioned by content
//!    ResourceSet + subscriptions and acknowledged versions of one Envoy --stream--> responses, in an order without downtime
//!       server: the same over gRPC, with TLS or a token, bounded
//! ```
//!
//! Nothing here chooses endpoints: hints, Require and Spill are in the tables, and are translated to Envoy's terms.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod bootstrap;
pub mod config_dump;
pub mod identity;
pub mod render;
pub mod resource;
pub mod server;
pub mod stream;
