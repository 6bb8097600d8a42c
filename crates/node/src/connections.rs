//! New connections through Services on this node, for `zoneward observe`: the page `/connections` of the metrics server.
//! Conntrack events are read only while the page is requested, and kept in a bounded log.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use cluster::admin_server::AdminPage;
use dataplane::conntrack::{ConntrackEntry, NewConnections};
use dataplane::nftables::render::protocol_of;
use http::StatusCode;
use model::Protocol;
use serde_json::{Value, json};

/// Connections in the log.
const MAX_LOGGED: usize = 4_096;
/// Connections logged per second; others are counted only.
const MAX_PER_SECOND: u32 = 1_000;
/// Reading goes on for this time after a request.
const INTEREST: Duration = Duration::from_secs(15);

/// The log; clones share it.
#[derive(Clone)]
pub(crate) struct ConnectionLog {
    state: Arc<Mutex<LogState>>,
    clock: Clock,
}

#[derive(Default)]
struct LogState {
    logged: VecDeque<(u64, NewConnection)>,
    next: u64,
    /// Connections that were not logged.
    skipped: u64,
    /// Overflows of the receive buffer.
    lost: u64,
    wanted_until: Option<Instant>,
    is_reading: bool,
    failure: Option<String>,
    second: Option<Instant>,
    in_second: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewConnection {
    protocol: Protocol,
    client: SocketAddr,
    frontend: SocketAddr,
    endpoint: SocketAddr,
}

impl ConnectionLog {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { state: Arc::default(), clock }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page: connections with a number of at least `after`.
    pub(crate) fn page(&self, query: &str) -> AdminPage {
        let after = query.split('&').find_map(|pair| pair.strip_prefix("after="));
        let after = match after.map(str::parse::<u64>) {
            None => None,
            Some(Ok(after)) => Some(after),
            Some(Err(_)) => {
                return AdminPage::json(
                    StatusCode::BAD_REQUEST,
                    &json!({"error": "after: expected a number"}),
                );
            }
        };
        let mut state = self.state();
        state.wanted_until = Some(self.clock.now() + INTEREST);
        if !state.is_reading {
            state.is_reading = true;
            state.failure = None;
            self.start();
        }
        // Without a number, only what comes from now on.
        let from = after.unwrap_or(state.next);
        let logged = state.logged.iter().filter(|(number, _)| *number >= from).map(|(_, one)| one.value());
        let connections: Vec<Value> = logged.collect();
        let body = json!({"next": state.next, "skipped": state.skipped, "lost": state.lost,
            "failure": state.failure, "connections": connections});
        AdminPage::json(StatusCode::OK, &body)
    }

    #[allow(clippy::disallowed_methods, reason = "blocks on netlink while the page is requested")]
    fn start(&self) {
        let log = self.clone();
        std::thread::spawn(move || log.read());
    }

    fn read(&self) {
        let mut events = match NewConnections::open() {
            Ok(events) => events,
            Err(error) => {
                let mut state = self.state();
                state.is_reading = false;
                state.failure = Some(error.to_string());
                return;
            }
        };
        loop {
            let mut new = Vec::new();
            let read = events.wait(&mut |entry| new.extend(NewConnection::of(&entry)));
            let now = self.clock.now();
            let mut state = self.state();
            state.lost += u64::from(read.is_err());
            new.into_iter().for_each(|one| state.log(one, now));
            if state.wanted_until.is_none_or(|until| until <= now) {
                state.is_reading = false;
                state.logged.clear();
                return;
            }
        }
    }
}

impl LogState {
    fn log(&mut self, connection: NewConnection, now: Instant) {
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.in_second = 0;
        }
        if self.in_second >= MAX_PER_SECOND {
            self.skipped += 1;
            return;
        }
        self.in_second += 1;
        if self.logged.len() >= MAX_LOGGED {
            self.logged.pop_front();
        }
        self.logged.push_back((self.next, connection));
        self.next += 1;
    }
}

impl NewConnection {
    /// Only translated connections can belong to a Service.
    fn of(entry: &ConntrackEntry) -> Option<Self> {
        let protocol = protocol_of(entry.protocol).filter(|_| entry.dst != entry.reply_src)?;
        Some(Self { protocol, client: entry.src, frontend: entry.dst, endpoint: entry.reply_src })
    }

    fn value(&self) -> Value {
        json!({"protocol": self.protocol.as_str(), "client": self.client.to_string(),
            "frontend": self.frontend.to_string(), "endpoint": self.endpoint.to_string()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(port: u16) -> NewConnection {
        let at = |last: u8, port: u16| SocketAddr::from(([10, 0, 0, last], port));
        NewConnection {
            protocol: Protocol::Tcp,
            client: at(1, port),
            frontend: at(2, 80),
            endpoint: at(3, 80),
        }
    }

    #[test]
    fn a_flood_is_sampled_and_the_log_stays_bounded() {
        let start = Clock::system().now();
        let mut state = LogState::default();
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            (0..5_000).for_each(|port| state.log(connection(port), now));
        }
        assert_eq!(state.logged.len(), MAX_LOGGED);
        assert_eq!((state.next, state.skipped), (10_000, 40_000));
    }

    #[test]
    fn only_translated_connections_are_logged() {
        let at = |last: u8| SocketAddr::from(([10, 0, 0, last], 80));
        let entry = |reply_src| ConntrackEntry {
            protocol: 6,
            src: at(1),
            dst: at(2),
            reply_src,
            reply_dst: at(1),
            id: None,
        };
        assert_eq!(NewConnection::of(&entry(at(2))), None);
        assert_eq!(NewConnection::of(&entry(at(3))).map(|one| one.endpoint), Some(at(3)));
        assert_eq!(NewConnection::of(&ConntrackEntry { protocol: 1, ..entry(at(3)) }), None, "ICMP");
    }
}
