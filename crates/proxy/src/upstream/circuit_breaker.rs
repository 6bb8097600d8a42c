//! The circuit breakers of a backend: a backend that hangs, or cannot be reached, must not use what others need.
//!
//! Requests share their slots by client (`request_slots`); pending requests and retries are plain counters, because they
//! end within the connect timeout.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use model::backend::CircuitBreakerLimits;

use super::endpoint::EndpointProtocol;
use crate::overload::request_slots::RequestSlots;

#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    pub(crate) requests: RequestSlots,
    pub(crate) pending: InFlight,
    pub(crate) retries: InFlight,
}

/// Requests of a backend at once: in HTTP/1.1 and TCP each needs a connection.
pub(crate) fn max_requests(limits: &CircuitBreakerLimits, protocol: EndpointProtocol) -> usize {
    let max = match protocol {
        EndpointProtocol::Http2 => limits.max_requests,
        EndpointProtocol::Http1 => limits.max_requests.min(limits.max_connections),
        EndpointProtocol::Tcp => limits.max_connections,
    };
    usize::try_from(max).unwrap_or(usize::MAX)
}

#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicUsize);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'s>(&'s InFlight);

impl InFlight {
    /// `None` above the limit.
    pub(crate) fn enter(&self, limit: u32) -> Option<InFlightGuard<'_>> {
        let guard = InFlightGuard(self);
        (self.0.fetch_add(1, Relaxed) < usize::try_from(limit).unwrap_or(usize::MAX)).then_some(guard)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}
