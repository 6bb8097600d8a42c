//! The Gateway API on the embedded proxy: tables by the plan, real clients, and echo servers on loopback.

#[path = "gateway_api/certificate_changes.rs"]
mod certificate_changes;
#[path = "gateway_api/check.rs"]
mod check;
#[path = "gateway_api/client.rs"]
mod client;
#[path = "gateway_api/echo.rs"]
mod echo;
#[path = "gateway_api/features.rs"]
mod features;
#[path = "gateway_api/serving.rs"]
mod serving;
#[path = "gateway_api/udp.rs"]
mod udp;
#[path = "gateway_api/vectors.rs"]
mod vectors;
#[path = "gateway_api/world.rs"]
mod world;
