//! A server of modelled capacity: it answers everything at once, counts requests by zone of the client and second, and
//! reports its utilisation with each response (`endpoint-load-metrics`, ORCA), as rate by capacity. Its listeners can be
//! turned off and on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::place::ZONES;

/// The reported rate is that of this time.
const RATE_WINDOW: Duration = Duration::from_secs(2);
const MAX_HEADER_BYTES: usize = 16 << 10;
/// The header that names the zone of the client.
pub const ZONE_HEADER: &str = "x-zone";

/// The server of one competitor.
pub struct Server {
    /// In thousandths of a request per second.
    capacity: AtomicU64,
    recent: Mutex<VecDeque<Instant>>,
    /// By second and zone of the client.
    counts: Mutex<BTreeMap<(u64, usize), u64>>,
}

impl Server {
    pub fn new(capacity: f64) -> Arc<Self> {
        let server = Self { capacity: 0.into(), recent: Mutex::default(), counts: Mutex::default() };
        server.set_capacity(capacity);
        Arc::new(server)
    }

    pub fn set_capacity(&self, per_second: f64) {
        self.capacity.store((per_second * 1_000.0) as u64, Ordering::Relaxed);
    }

    /// The counts of all seconds before this one, which are over.
    pub fn take_counts(&self, before: u64) -> BTreeMap<(u64, usize), u64> {
        let mut counts = self.counts.lock().unwrap();
        let rest = counts.split_off(&(before, 0));
        std::mem::replace(&mut *counts, rest)
    }

    /// Accepts until it is turned off, which also ends its connections.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, mut is_on: watch::Receiver<bool>) {
        loop {
            let stream = tokio::select! {
                biased;
                _ = is_on.wait_for(|is_on| !is_on) => return,
                accepted = listener.accept() => accepted,
            };
            if let Ok((stream, _)) = stream {
                let (server, is_on) = (self.clone(), is_on.clone());
                // Errors affect only this connection.
                tokio::spawn(async move { drop(server.answer(stream, is_on).await) });
            }
        }
    }

    async fn answer(&self, mut stream: TcpStream, mut is_on: watch::Receiver<bool>) -> std::io::Result<()> {
        let (mut head, mut buffer) = (Vec::new(), [0; 2_048]);
        loop {
            let count = tokio::select! {
                biased;
                _ = is_on.wait_for(|is_on| !is_on) => return Ok(()),
                read = stream.read(&mut buffer) => read?,
            };
            head.extend_from_slice(&buffer[..count]);
            if count == 0 || head.len() > MAX_HEADER_BYTES {
                return Ok(());
            }
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            let text = String::from_utf8_lossy(&head).to_lowercase();
            let value = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
            };
            let zone = value(ZONE_HEADER).and_then(|zone| ZONES.iter().position(|name| *name == zone));
            let is_last = value("connection") == Some("close");
            let utilisation = self.count(zone);
            let connection = if is_last { "close" } else { "keep-alive" };
            let response = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: {connection}\r\n\
                 endpoint-load-metrics: TEXT application_utilization={utilisation:.3}\r\n\r\nok\n"
            );
            stream.write_all(response.as_bytes()).await?;
            if is_last {
                return Ok(());
            }
            head.clear();
        }
    }

    /// Counts a request, and returns the utilisation with it. A request without a zone is a check and counts as none.
    fn count(&self, zone: Option<usize>) -> f64 {
        let now = Instant::now();
        let mut recent = self.recent.lock().unwrap();
        if let Some(zone) = zone {
            *self.counts.lock().unwrap().entry((unix_second(), zone)).or_default() += 1;
            recent.push_back(now);
        }
        while recent.front().is_some_and(|at| now.duration_since(*at) > RATE_WINDOW) {
            recent.pop_front();
        }
        let rate = recent.len() as f64 / RATE_WINDOW.as_secs_f64();
        rate * 1_000.0 / self.capacity.load(Ordering::Relaxed).max(1) as f64
    }
}

pub fn unix_second() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}
