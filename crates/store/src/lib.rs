//! The embedded Kubernetes-compatible API, for machines without Kubernetes: durable storage with revisions and watches
//! ([`engine`]), and the HTTP API on it ([`api`], [`server`]).
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admission;
pub mod api;
pub mod audit;
pub mod authenticator;
mod authorization;
pub mod bootstrap;
pub mod credentials;
mod discovery;
mod dropped_fields;
mod encoded_object;
pub mod engine;
mod field_tracking;
#[doc(hidden)]
pub mod fuzzing;
pub mod garbage_collector;
mod json_diff;
pub mod kinds;
mod meta;
mod name_generator;
mod object_size;
pub mod object_txn;
mod openapi;
mod partial_decode;
mod patch;
mod protobuf;
mod query;
pub mod rbac_controller;
mod reviews;
pub mod schema;
mod selector;
pub mod server;
mod status;
mod strict_json;
mod sync;
mod table;

pub use discovery::version as kubernetes_version;
