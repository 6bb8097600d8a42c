//! A real Envoy, configured by nothing but our server: it does what the policies say, and goes on doing so while
//! everything around it changes.

mod changes;
mod harness;
mod http;
mod vectors;
mod world;
mod zones;
