//! The proxy on real sockets: clients and endpoints on loopback, tables made by the plan from policies.

mod attacks;
mod buffer_limit;
mod edge;
mod harness;
mod http1;
mod http2;
mod http2_frames;
mod limits;
mod malformed_requests;
mod metrics_and_access_log;
mod passthrough;
mod retry_and_outlier_detection;
mod spans;
mod table_swap;
mod tcp;
mod tls;
mod upgrade;
mod vectors;
