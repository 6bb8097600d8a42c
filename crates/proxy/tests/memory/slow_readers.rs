//! Many clients ask for much and take nothing: what is held for them has a bound, and the oldest go when others need room.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::eventually_async;
use proxy::{ProxyLimits, ProxyOptions, ProxyTables, ProxyTimeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::harness::{Running, backends, sidecar, to_backend};

/// How much each client asks for.
const LONG: usize = 8 << 20;
const LIMIT: usize = 4 << 20;

/// An endpoint that keeps nothing: a static text, as often as it is asked for. `/short` is short.
async fn fountain() -> SocketAddr {
    static TEXT: [u8; 16 << 10] = [b'x'; 16 << 10];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut head).await {
                    let length = if head[..count].starts_with(b"GET /short") { 5 } else { LONG };
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let mut left = length;
                    while left > 0 {
                        let part = left.min(TEXT.len());
                        if stream.write_all(&TEXT[..part]).await.is_err() {
                            return;
                        }
                        left -= part;
                    }
                }
            });
        }
    });
    address
}

async fn running(limits: ProxyLimits, timeouts: ProxyTimeouts) -> Running {
    let routes = sidecar(&[], &["backend"], "frontend");
    let endpoints = [("backend".to_owned(), vec![(fountain().await, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    Running::with(tables, to_backend(), ProxyOptions { limits, timeouts, ..ProxyOptions::default() }).await
}

/// A client that the kernel, too, keeps little for. The first bytes of its answer.
async fn ask(running: &Running, path: &str) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(running.address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut start = vec![0; 200];
    let count = stream.read(&mut start).await.unwrap_or(0);
    (stream, String::from_utf8_lossy(&start[..count]).into_owned())
}

fn metric(running: &Running, name: &str) -> usize {
    let text = running.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("zoneward_proxy_{name} ")));
    line.and_then(|value| value.parse().ok()).unwrap()
}

#[tokio::test]
async fn slow_readers_are_held_for_within_the_bound_and_left_when_others_need_room() {
    let limits = ProxyLimits { held_body_bytes: LIMIT, ..ProxyLimits::default() };
    let short = Duration::from_secs(2);
    let timeouts = ProxyTimeouts { headers: short, transfer: short, ..ProxyTimeouts::default() };
    let running = running(limits, timeouts).await;
    let before = super::held();
    let mut slow = Vec::new();
    // Each asks for more than all of them may be held for.
    for at in 0..300 {
        let (stream, start) = ask(&running, "/long").await;
        assert!(start.starts_with("HTTP/1.1 200"), "{at}: {start}");
        slow.push(stream);
    }
    eventually_async("nothing is evicted", async || {
        metric(&running, "evictions_total{limit=\"bodies\"}") > 0
    })
    .await;
    // More would be held by now.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (counted, grown) = (metric(&running, "held_body_bytes"), super::held().saturating_sub(before));
    println!("{} slow readers: {counted} bytes counted, {grown} bytes of heap", slow.len());
    assert!(counted <= LIMIT + (256 << 10), "{counted}");
    // What is no body: some 20 KiB for the two connections of each request.
    assert!(grown <= LIMIT + slow.len() * (48 << 10), "{grown} bytes for {} readers", slow.len());
    assert!(ask(&running, "/short").await.1.starts_with("HTTP/1.1 200"));
    // They take nothing: they have to go, long before the idle time is over.
    let began = Instant::now();
    eventually_async("bytes are given back", async || metric(&running, "held_body_bytes") <= LIMIT / 2).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(metric(&running, "stalled_connections_total") > 0);
}

#[tokio::test]
async fn readers_that_go_on_get_everything() {
    let limits = ProxyLimits { held_body_bytes: LIMIT, ..ProxyLimits::default() };
    let running = running(limits, ProxyTimeouts::default()).await;
    let mut readers = Vec::new();
    for _ in 0..8 {
        let (mut stream, start) = ask(&running, "/long").await;
        assert!(start.starts_with("HTTP/1.1 200"), "{start}");
        let head = start.find("\r\n\r\n").unwrap() + 4;
        let mut got = start.len() - head;
        readers.push(tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while got < LONG {
                got += stream.read(&mut buffer).await.unwrap();
            }
            got
        }));
    }
    for reader in readers {
        assert_eq!(reader.await.unwrap(), LONG);
    }
    assert_eq!(metric(&running, "held_body_bytes"), 0);
}
