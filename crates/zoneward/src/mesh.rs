//! The L7 side: the same routes and endpoints for the embedded proxy and for Envoy, kept up to date.
//!
//! ```text
//! watches or files -> TableCache: Snapshot -> affected parts -> the tables of each ProxyIdentity
//!    RouteTable + BackendTable + certificates -> the embedded proxy, or xDS
//! ```

#![allow(missing_docs, reason = "fields and methods are named for what they are")]

pub mod accepted;
pub mod consumer;
pub mod control;
pub mod doors;
pub mod redirect;
pub mod run;
pub mod secret;
pub mod secrets;
pub mod source;
pub mod state;
mod touch;
mod view;

pub use consumer::{ProxyIdentity, ProxyRole};
pub use state::{ChangedTables, MeshTables, TableCache, TableUpdate};
