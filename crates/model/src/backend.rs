//! The weighted endpoints of each backend, seen from one node and zone.
//!
//! Hints, Require and Spill are already applied. A proxy may prefer the less loaded of these endpoints and eject failing
//! ones, but uses no others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::locality::Locality;
use crate::name::Name;
use crate::route::{AppProtocol, BackendId};

/// The backends of one consumer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendTable {
    pub consumer: ConsumerLocation,
    backends: BTreeMap<BackendId, Arc<Backend>>,
}

/// The node and zone that a proxy runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerLocation {
    pub node: Name,
    pub zone: Option<Name>,
}

/// One backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub id: BackendId,
    pub protocol: AppProtocol,
    /// The PROXY protocol header that its endpoints expect.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Sorted by address, without duplicates.
    pub endpoints: Box<[BackendEndpoint]>,
    /// How they were selected, e.g. `same-zone`, `localities`; empty if there are none.
    pub mode: &'static str,
    /// Whether the weights contain the slow start of new endpoints: a proxy adds none of its own then.
    pub is_warmed: bool,
}

/// The version of a PROXY protocol header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyProtocol {
    V1,
    V2,
}

impl ProxyProtocol {
    /// The values of the annotation.
    pub const ALL: [&str; 2] = ["v1", "v2"];

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "v1" => Some(Self::V1),
            "v2" => Some(Self::V2),
            _ => None,
        }
    }
}

/// An endpoint with its weight.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendEndpoint {
    pub address: SocketAddr,
    /// Relative to the other endpoints of its priority, above zero.
    pub weight: f32,
    /// Endpoints get what those of lower numbers cannot serve. Without gaps from 0, which all have without a policy.
    pub priority: u8,
    pub zone: Option<Name>,
    /// Its distance from the consumer, for traffic counters.
    pub locality: Locality,
}

/// The circuit breakers of each backend, in the words of Envoy's `Thresholds`. The embedded proxy obeys them, and an
/// Envoy gets them in its clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreakerLimits {
    /// Connections; a request of HTTP/1.1 needs one.
    pub max_connections: u32,
    /// Requests that wait until a connection is established.
    pub max_pending_requests: u32,
    /// Requests in flight.
    pub max_requests: u32,
    /// Retries in flight.
    pub max_retries: u32,
}

impl CircuitBreakerLimits {
    /// Envoy's 1,024 where requests wait. More in flight, because a gateway's long polls and WebSockets count; and more
    /// retries than Envoy's 3, because only what no endpoint has seen is sent again.
    pub const DEFAULT: Self =
        Self { max_connections: 8_192, max_pending_requests: 1_024, max_requests: 8_192, max_retries: 1_024 };
}

impl Default for CircuitBreakerLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl BackendTable {
    pub fn new(consumer: ConsumerLocation) -> Self {
        Self { consumer, backends: BTreeMap::new() }
    }

    /// Adds or replaces a backend.
    pub fn put(&mut self, backend: Arc<Backend>) {
        self.backends.insert(backend.id.clone(), backend);
    }

    pub fn remove(&mut self, id: &BackendId) {
        self.backends.remove(id);
    }

    pub fn backend(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        self.backends.get(id)
    }

    /// Sorted by id.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends.values()
    }
}

impl Backend {
    /// Each endpoint of the first priority with its share; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (&BackendEndpoint, f64)> {
        let first = || self.endpoints.iter().filter(|e| e.priority == 0);
        let total: f64 = first().map(|e| f64::from(e.weight)).sum();
        first().map(move |e| (e, f64::from(e.weight) / total))
    }
}
