//! OpenTelemetry spans: a server span for each request, and a client span for each attempt at an endpoint.
//!
//! ```text
//! request -> trace context (W3C) -> request trace -> encoded spans -> bounded queue -> exporter -> OTLP by HTTP
//! ```
//!
//! Spans are encoded by the request that ends, into one allocation each. Requests never wait for the collector: spans
//! that do not fit into the queue are dropped and counted.

pub(crate) mod encoding;
pub(crate) mod exporter;
pub(crate) mod request_trace;
pub(crate) mod trace_context;
