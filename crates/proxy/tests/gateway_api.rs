//! The Gateway API on the embedded proxy: tables by the plan, real clients, and echo servers on loopback.

mod certificate_changes;
mod check;
mod client;
mod echo;
mod features;
mod serving;
mod udp;
mod vectors;
mod world;
