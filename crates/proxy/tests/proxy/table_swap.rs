//! Table swaps under load: no request fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proxy::{ProxyOptions, ProxyTables};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::harness::*;

fn tables(round: u64, echoes: &[Echo]) -> ProxyTables {
    // Routes: other rules every time, the one under test at another place. Endpoints: another half every time.
    let rule = |path: String| {
        json!({"matches": [{"path": {"type": "Prefix", "value": path}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "backend"}]}})
    };
    let mut rules: Vec<_> = (0..round % 7).map(|at| rule(format!("/r{round}-{at}"))).collect();
    rules.push(rule("/x".to_owned()));
    let route = json!({"type": "MeshHTTPRoute", "name": "r", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]}});
    let routes = sidecar(&[route], &["backend"], "frontend");
    let own = echoes.iter().enumerate().filter(|(at, _)| !(*at as u64 + round).is_multiple_of(3));
    let own = own.map(|(at, echo)| (echo.address, 1.0 + at as f32, at % 2 == 0)).collect();
    let backends = backends(&routes, &[("backend".to_owned(), own)].into());
    ProxyTables { routes: Arc::new(routes), backends: Arc::new(backends), ..ProxyTables::default() }
}

async fn clients1(
    address: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    bad: Arc<AtomicU64>,
) {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the proxy listens");
    stream.set_nodelay(true).expect("a TCP socket");
    while !stop.load(Ordering::Relaxed) {
        let request = b"POST /x/y HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
        let sent = stream.write_all(request).await;
        match read_answer(&mut stream, "POST").await {
            Some(answer) if sent.is_ok() && answer.status == 200 => good.fetch_add(1, Ordering::Relaxed),
            other => {
                eprintln!("{other:?}");
                bad.fetch_add(1, Ordering::Relaxed);
                stream = tokio::net::TcpStream::connect(address).await.expect("the proxy listens");
                0
            }
        };
    }
}

async fn clients2(
    address: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    bad: Arc<AtomicU64>,
) {
    let mut sender = http2(address).await;
    while !stop.load(Ordering::Relaxed) {
        let request = http::Request::post("http://a/x/y").body(full("body")).expect("a request");
        match sender.send_request(request).await {
            Ok(response) if response.status() == 200 => good.fetch_add(1, Ordering::Relaxed),
            other => {
                eprintln!("{other:?}");
                bad.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_tables_change_a_hundred_times_per_second_and_no_request_fails() {
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let mut echoes = Vec::new();
    for _ in 0..6 {
        echoes.push(Echo::start("backend").await);
    }
    let running = Running::with(tables(0, &echoes), to_backend(), ProxyOptions::default()).await;
    let (stop, good, bad) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(tokio::spawn(clients1(running.address, stop.clone(), good.clone(), bad.clone())));
        tasks.push(tokio::spawn(clients2(running.address, stop.clone(), good.clone(), bad.clone())));
    }
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        ticks.tick().await;
        round += 1;
        assert_eq!(running.proxy.swap(tables(round, &echoes)), []);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no client panics");
    }
    let (good, bad) = (good.load(Ordering::Relaxed), bad.load(Ordering::Relaxed));
    println!("{round} tables, {good} requests, {bad} failed");
    assert_eq!(bad, 0);
    assert!(good > 100, "{good} requests are no load");
    assert!(round >= seconds * 50, "{round} tables are too few");
}
