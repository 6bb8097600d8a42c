//! The proxy on real sockets: clients and endpoints on loopback, tables made by the plan from policies.

#[path = "proxy/harness.rs"]
mod harness;

#[path = "proxy/attacks.rs"]
mod attacks;
#[path = "proxy/buffer_limit.rs"]
mod buffer_limit;
#[path = "proxy/edge.rs"]
mod edge;
#[path = "proxy/http1.rs"]
mod http1;
#[path = "proxy/http2.rs"]
mod http2;
#[path = "proxy/http2_frames.rs"]
mod http2_frames;
#[path = "proxy/limits.rs"]
mod limits;
#[path = "proxy/malformed_requests.rs"]
mod malformed_requests;
#[path = "proxy/metrics_and_access_log.rs"]
mod metrics_and_access_log;
#[path = "proxy/passthrough.rs"]
mod passthrough;
#[path = "proxy/retry_and_outlier_detection.rs"]
mod retry_and_outlier_detection;
#[path = "proxy/spans.rs"]
mod spans;
#[path = "proxy/table_swap.rs"]
mod table_swap;
#[path = "proxy/tcp.rs"]
mod tcp;
#[path = "proxy/tls.rs"]
mod tls;
#[path = "proxy/upgrade.rs"]
mod upgrade;
#[path = "proxy/vectors.rs"]
mod vectors;
