//! A real Envoy, configured by nothing but our server: it does what the policies say, and goes on doing so while
//! everything around it changes.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod changes;
mod differential;
mod edge;
mod gateway_api;
mod harness;
#[allow(dead_code, reason = "others use the rest of it")]
mod http;
mod load_balancing;
mod localities;
mod precedence;
#[allow(dead_code, reason = "others use the rest of it")]
mod process;
mod protocols;
mod retries;
mod tls;
mod vectors;
mod world;
mod zones;
