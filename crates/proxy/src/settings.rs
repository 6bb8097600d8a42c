//! Settings of an operator: limits, timeouts, load balancing, the access log, and what policies may read on this machine.
//!
//! Every loop, queue and buffer of the proxy has its bound here; the defaults suit a sidecar.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clock::Clock;
pub use model::backend::CircuitBreakerLimits;
use model::random::Random;
use model::route::{EdgeSettings, RetryLimits};

use crate::access_log::AccessLog;
use crate::spans::exporter::SpanExporter;

#[derive(Clone, Debug)]
pub struct ProxyOptions {
    pub limits: ProxyLimits,
    pub timeouts: ProxyTimeouts,
    pub load_balancing: LoadBalancerSettings,
    pub circuit_breakers: CircuitBreakerLimits,
    pub access_log: Option<AccessLog>,
    /// `None`: no spans, and trace headers pass unchanged.
    pub span_exporter: Option<SpanExporter>,
    pub direct_response_sources: DirectResponseSources,
    pub edge: EdgeSettings,
    /// The firewall mark of upstream connections, which excludes them from redirection to this proxy. Needs NET_ADMIN.
    pub mark: Option<u32>,
    pub clock: Clock,
    /// Equal seeds, and requests in the same order, give equal choices.
    pub random: Random,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            limits: ProxyLimits::default(),
            timeouts: ProxyTimeouts::default(),
            load_balancing: LoadBalancerSettings::default(),
            circuit_breakers: CircuitBreakerLimits::default(),
            access_log: None,
            span_exporter: None,
            direct_response_sources: DirectResponseSources::default(),
            edge: EdgeSettings::default(),
            mark: None,
            clock: Clock::system(),
            random: Random::seeded(0),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProxyLimits {
    /// Open downstream connections; more wait in the kernel's accept queue, and idle ones are closed for them.
    pub connections: usize,
    /// Requests in flight; at the limit, the oldest of the client that has most gets 503, or the new one.
    pub requests: usize,
    /// File descriptors of the process; `None`: its limit. Some are kept for other uses.
    pub descriptors: Option<usize>,
    /// Concurrent streams of one downstream HTTP/2 connection.
    pub streams: u32,
    /// Bytes of a request's headers, including the request line; more is 431.
    pub header_bytes: usize,
    /// Bytes of a request's body; more is 413.
    pub body_bytes: u64,
    /// Buffered body bytes of all requests. At the limit, connections of the clients that hold most are closed.
    pub held_body_bytes: usize,
    /// Bytes per second that a client takes of each waiting response, and sends of a request whose length is known; 0
    /// disables.
    pub min_transfer_rate: u64,
    /// Read-ahead bytes of a message, per connection and direction.
    pub buffer: usize,
    /// Idle connections kept to one endpoint.
    pub idle_per_endpoint: usize,
    /// Retries of a request, and of a TCP connection.
    pub retries: RetryLimits,
    /// Mirrored requests in flight; more are dropped.
    pub mirrors: usize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            requests: 65_536,
            descriptors: None,
            streams: 256,
            header_bytes: 64 << 10,
            body_bytes: u64::MAX,
            held_body_bytes: 256 << 20,
            min_transfer_rate: 240,
            buffer: 64 << 10,
            idle_per_endpoint: 128,
            retries: RetryLimits::DEFAULT,
            mirrors: 1024,
        }
    }
}

impl ProxyLimits {
    /// The buffer of an HTTP/1.1 message; hyper needs at least 8 KiB.
    pub(crate) fn http1_buffer(&self) -> usize {
        self.buffer.max(self.header_bytes).max(8 << 10)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProxyTimeouts {
    /// Until the client has sent the headers of a request, or its part of a TLS handshake.
    pub headers: Duration,
    /// Until the client has sent all of a request; later is 408. `None`: no limit.
    pub request: Option<Duration>,
    /// Over which the minimum transfer rate is measured.
    pub transfer: Duration,
    /// Until an upstream connection is established.
    pub connect: Duration,
    /// From the end of the request to the headers of the response; later is 504.
    pub response: Duration,
    /// Without progress of a body or a TCP stream, in either direction.
    pub idle: Duration,
    /// Until an idle upstream connection is closed.
    pub keep: Duration,
}

impl Default for ProxyTimeouts {
    fn default() -> Self {
        Self {
            headers: Duration::from_secs(10),
            request: None,
            transfer: Duration::from_secs(30),
            connect: Duration::from_secs(3),
            response: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            keep: Duration::from_secs(60),
        }
    }
}

/// Outlier detection and slow start of endpoints.
#[derive(Clone, Copy, Debug)]
pub struct LoadBalancerSettings {
    /// Consecutive failures (no connection, no response, 502 to 504) that eject an endpoint; 0 disables ejection.
    pub consecutive_failures: u32,
    /// The duration of the first ejection; the n-th in a row takes n times as long.
    pub base_ejection_time: Duration,
    /// The share of a backend's endpoints that may be ejected at once.
    pub max_ejection_percent: u32,
    /// Until a new endpoint gets its full share; zero disables slow start.
    pub slow_start: Duration,
}

impl Default for LoadBalancerSettings {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            base_ejection_time: Duration::from_secs(10),
            max_ejection_percent: 50,
            slow_start: Duration::from_secs(10),
        }
    }
}

/// Files and environment variables that direct responses may read; all others are refused (semantics 1.7).
#[derive(Clone, Debug, Default)]
pub struct DirectResponseSources {
    /// By the path that a policy has to write.
    pub files: BTreeSet<PathBuf>,
    pub variables: BTreeSet<String>,
}
