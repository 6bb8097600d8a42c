//! The embedded Kubernetes-compatible API.
pub mod continuation;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod patch;
pub mod query;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
