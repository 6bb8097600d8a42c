//! The client that an attack must not disturb: some requests at a time, each on a connection of its own, and `/healthz`
//! of the attacked process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};

use crate::world::World;

pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Requests at a time.
const WORKERS: usize = 4;
/// Pause of each worker between requests.
const PAUSE: Duration = Duration::from_millis(20);
/// An answer that takes longer is none.
const GIVES_UP: Duration = Duration::from_secs(5);

/// What is attacked, and what the good client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A gateway: a request for a short answer of a backend.
    Gateway,
    /// The health and metrics port of the gateway.
    GatewayHealth,
    /// The embedded API: the admin reads a Service.
    Api,
}

pub struct Measured {
    /// Of answered requests.
    latencies: Vec<Duration>,
    failed: usize,
    pub slowest_healthz: Duration,
    pub memory_mb: u64,
}

impl Measured {
    pub fn answered_percent(&self) -> f64 {
        100.0 * self.latencies.len() as f64 / (self.latencies.len() + self.failed).max(1) as f64
    }

    /// Of answered requests; `GIVES_UP` if there are none.
    pub fn p99(&self) -> Duration {
        let at = self.latencies.len().saturating_sub(1) * 99 / 100;
        self.latencies.get(at).copied().unwrap_or(GIVES_UP)
    }
}

/// A thread of its own: the good client must not wait for the work of the attack.
pub fn runtime() -> Handle {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

pub async fn measure(world: World, victim: Victim, lasts: Duration) -> Measured {
    let done = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (world, done) = (world.clone(), done.clone());
        workers.push(tokio::spawn(async move {
            let mut results = Vec::new();
            while !done.load(Ordering::Relaxed) {
                results.push(ask(&world, victim).await);
                sleep(PAUSE).await;
            }
            results
        }));
    }
    let healthz = {
        let (world, done) = (world.clone(), done.clone());
        tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                slowest = slowest.max(healthz(&world, victim).await.unwrap_or(GIVES_UP));
                sleep(Duration::from_millis(100)).await;
            }
            slowest
        })
    };
    let (ends, mut memory_mb) = (Instant::now() + lasts, 0);
    while Instant::now() < ends {
        memory_mb = memory_mb.max(world.memory_mb(victim));
        sleep(Duration::from_millis(100)).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut results = Vec::new();
    for worker in workers {
        results.extend(worker.await.unwrap());
    }
    let failed = results.iter().filter(|result| result.is_none()).count();
    let mut latencies: Vec<Duration> = results.into_iter().flatten().collect();
    latencies.sort_unstable();
    Measured { latencies, failed, slowest_healthz: healthz.await.unwrap(), memory_mb }
}

/// One request of the good client; the time that it took, if it was answered with 200.
pub async fn ask(world: &World, victim: Victim) -> Option<Duration> {
    match victim {
        Victim::Gateway => request(world.gateway, "/fast", None).await,
        Victim::GatewayHealth => healthz(world, victim).await,
        Victim::Api => {
            let asked = Instant::now();
            let whole = async {
                let stream = connect(ADDRESS, world.api).await.ok()?;
                let stream = world.tls(stream).await.ok()?;
                let path = "/api/v1/namespaces/default/services/kubernetes";
                answered(stream, path, Some(&world.admin_token)).await
            };
            timeout(GIVES_UP, whole).await.ok().flatten().map(|()| asked.elapsed())
        }
    }
}

async fn healthz(world: &World, victim: Victim) -> Option<Duration> {
    request(world.health(victim), "/healthz", None).await
}

async fn request(to: SocketAddr, path: &str, token: Option<&str>) -> Option<Duration> {
    let asked = Instant::now();
    let whole = async { answered(connect(ADDRESS, to).await.ok()?, path, token).await };
    timeout(GIVES_UP, whole).await.ok().flatten().map(|()| asked.elapsed())
}

/// A connection from an address.
pub async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

async fn answered(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    token: Option<&str>,
) -> Option<()> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // TLS peers may close without saying so.
    let _ = stream.read_to_end(&mut answer).await;
    answer.starts_with(b"HTTP/1.1 200").then_some(())
}
