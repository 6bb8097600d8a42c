//! The client's side: listeners, TLS, protocol detection, and timeouts of clients that stall.

pub(crate) mod client_certificates;
pub(crate) mod connection;
pub(crate) mod idle_timeout;
pub(crate) mod listener;
mod listener_filters;
pub(crate) mod tls;
pub(crate) mod transport_socket;
