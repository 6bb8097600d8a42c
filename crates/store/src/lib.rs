//! The embedded Kubernetes-compatible API: a durable store with revisions and watches, and the HTTP API on it.
//! A machine without Kubernetes gets the same product by it.

pub mod engine;
// The HTTP API's modules go below this line.
pub mod admission;
pub mod api;
pub mod collect;
pub mod continuation;
pub mod credentials;
pub mod difference;
pub mod discovery;
pub mod document;
mod draft;
pub mod first_start;
mod glance;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod objects;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod query;
pub mod reviews;
pub mod schema;
pub mod selector;
pub mod server;
pub mod status;
pub mod table;
