//! The routes and backends of a proxy as Envoy knows them, and the server that brings them to Envoys.
//!
//! ```text
//! RouteTable, BackendTables, certificates --render--> ResourceSet: named, versioned by content
//!    ResourceSet + what one Envoy asked for and has --stream--> responses, in an order that loses no request
//!       server: the same over gRPC, with TLS or a token, bounded
//! ```
//!
//! Nothing here chooses: what hints, Require and Spill say stands in the tables, and is said again in Envoy's words.

pub mod bootstrap;
pub mod identity;
pub mod render;
pub mod resource;
pub mod server;
pub mod show;
pub mod stream;
