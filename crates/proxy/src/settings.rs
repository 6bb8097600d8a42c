//! What an operator may choose: limits, timeouts, the access log, and what a policy may read on this machine.
//!
//! Every loop, queue and buffer of the proxy has its bound here; the defaults suit a sidecar.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::access::AccessLog;

/// How a proxy behaves, besides its tables.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How much of everything.
    pub limits: Limits,
    /// How long for everything.
    pub timeouts: Timeouts,
    /// How endpoints that fail, and new ones, are treated.
    pub health: Health,
    /// Where a line per request goes; nowhere if `None`.
    pub access_log: Option<AccessLog>,
    /// What direct responses may read.
    pub readable: Readable,
    /// The mark of connections that the proxy makes, so that whatever redirects connections to this proxy leaves them
    /// alone. It needs NET_ADMIN.
    pub mark: Option<u32>,
    /// Where random choices start: the same seed and requests in the same order give the same choices.
    pub seed: u64,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of clients at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Requests in flight; more get 503.
    pub requests: usize,
    /// Concurrent streams of one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of a request's headers, its first line included; more is 431.
    pub header_bytes: usize,
    /// Bytes of a request's body; more is 413.
    pub body_bytes: u64,
    /// Bytes of bodies that are held, of all requests together; when there are so many, bodies are read no further and
    /// new requests get 503.
    pub held_body_bytes: usize,
    /// Bytes of a message that are read ahead, per connection and direction.
    pub buffer: usize,
    /// Idle connections kept to one endpoint.
    pub idle_per_endpoint: usize,
    /// Further attempts when no connection to an endpoint could be made.
    pub retries: u32,
    /// Copies for mirrors in flight; more are left out.
    pub mirrors: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            requests: 65_536,
            streams: 256,
            header_bytes: 64 << 10,
            body_bytes: u64::MAX,
            held_body_bytes: 256 << 20,
            buffer: 64 << 10,
            idle_per_endpoint: 128,
            retries: 2,
            mirrors: 1024,
        }
    }
}

/// How long for everything.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a client to send the headers of a request, or its part of a TLS handshake.
    pub headers: Duration,
    /// For a connection to an endpoint.
    pub connect: Duration,
    /// From the end of a request's headers to those of its answer; longer is 504.
    pub response: Duration,
    /// Between two pieces of a body or of a TCP stream, in either direction.
    pub idle: Duration,
    /// That an unused connection to an endpoint is kept.
    pub keep: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            headers: Duration::from_secs(10),
            connect: Duration::from_secs(3),
            response: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            keep: Duration::from_secs(60),
        }
    }
}

/// How endpoints that fail, and new ones, are treated.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Failures in a row (no connection, no answer, 5xx from a gateway's point of view) that eject an endpoint.
    pub failures: u32,
    /// For how long at first; every further time in a row it is as much longer.
    pub ejection: Duration,
    /// Of how many in a hundred endpoints of a backend at most.
    pub ejected_percent: u32,
    /// How long a new endpoint takes to its full share; zero for at once.
    pub slow_start: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            failures: 5,
            ejection: Duration::from_secs(10),
            ejected_percent: 50,
            slow_start: Duration::from_secs(10),
        }
    }
}

/// What direct responses may read: a policy is no licence to read this machine's files (semantics 1.7).
#[derive(Clone, Debug, Default)]
pub struct Readable {
    /// Files, by the path that a policy has to write.
    pub files: BTreeSet<PathBuf>,
    /// Environment variables.
    pub variables: BTreeSet<String>,
}
