//! The embedded Kubernetes-compatible API: a durable store with revisions and watches, and the HTTP API on it.
//! A machine without Kubernetes gets the same product by it.

pub mod engine;
// The HTTP API's modules go below this line.
