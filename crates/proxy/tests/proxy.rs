//! The proxy on real sockets: clients and endpoints on loopback, tables made by the plan from policies.

#[path = "proxy/harness.rs"]
mod harness;

#[path = "proxy/accounts.rs"]
mod accounts;
#[path = "proxy/change.rs"]
mod change;
#[path = "proxy/frames.rs"]
mod frames;
#[path = "proxy/health.rs"]
mod health;
#[path = "proxy/held.rs"]
mod held;
#[path = "proxy/http1.rs"]
mod http1;
#[path = "proxy/http2.rs"]
mod http2;
#[path = "proxy/limits.rs"]
mod limits;
#[path = "proxy/malformed.rs"]
mod malformed;
#[path = "proxy/passthrough.rs"]
mod passthrough;
#[path = "proxy/tcp.rs"]
mod tcp;
#[path = "proxy/tls.rs"]
mod tls;
#[path = "proxy/upgrade.rs"]
mod upgrade;
#[path = "proxy/vectors.rs"]
mod vectors;
