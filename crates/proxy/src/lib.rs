//! The embedded HTTP, TCP and UDP proxy over a RouteTable and a BackendTable.
//!
//! ```text
//! downstream: listener -> connection (TLS, protocol detection, idle timeout)
//!      |                          \-> tcp: split by weight or passed through, in a tunnel
//!      v
//! http: router (the rule) -> forward -> retry -> response body, request log
//!                              |
//! upstream: weighted backends -> load balancer -> endpoint (outlier detection) -> connection pool
//! ```
//!
//! The tables decide. The proxy itself chooses only by load among the endpoints that the plan weighted, and ejects
//! endpoints that fail.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod access_log;
mod active_tables;
mod certificates;
mod downstream;
mod http;
mod metrics;
mod overload;
mod proxy;
mod proxy_protocol;
mod random;
mod registry;
mod request_log;
mod settings;
mod spans;
mod stats;
mod tcp;
mod udp;
mod upstream;
mod zone_traffic;

pub use access_log::AccessLog;
pub use certificates::{
    CertificateAuthorities, CertificateAuthoritiesError, ServerCertificate, ServerCertificateError,
};
pub use downstream::listener::ListenerKind;
pub use overload::descriptors::raise_descriptor_limit;
pub use proxy::{Proxy, ProxyTables};
pub use settings::{
    CircuitBreakerLimits, DirectResponseSources, LoadBalancerSettings, ProxyLimits, ProxyOptions,
    ProxyTimeouts,
};
pub use spans::exporter::{SpanExporter, SpanExporterError, SpanExporterOptions};
pub use zone_traffic::ServiceZoneTraffic;
