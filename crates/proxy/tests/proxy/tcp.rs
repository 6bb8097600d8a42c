//! TCP proxying.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{ListenerKind, ProxyOptions, ProxyTables, ProxyTimeouts};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::harness::*;

/// An endpoint that says its name first, as some protocols do, and then sends back what it gets.
pub async fn greeter(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.expect("sent");
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

async fn split(endpoints: BTreeMap<String, Vec<(SocketAddr, f32, bool)>>, settings: ProxyOptions) -> Running {
    let route = json!({"type": "MeshTCPRoute", "name": "t", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "tcp-db"}, "rules": [{"default": {"backendRefs": [
            {"kind": "MeshService", "name": "tcp-a", "weight": 3},
            {"kind": "MeshService", "name": "tcp-b", "weight": 1}]}}]}]}});
    let routes = sidecar(&[route], &["tcp-db"], "frontend");
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    Running::with(tables, ListenerKind::Outbound { service: key("tcp-db"), port: 80 }, settings).await
}

async fn greeting(running: &Running) -> Option<u8> {
    running.connect().await.read_u8().await.ok()
}

#[tokio::test]
async fn connections_are_split_by_weight_and_the_endpoint_may_speak_first() {
    let endpoints = [
        ("tcp-a".to_owned(), vec![(greeter("a").await, 1.0, true)]),
        ("tcp-b".to_owned(), vec![(greeter("b").await, 1.0, false)]),
    ];
    let running = split(endpoints.into(), ProxyOptions::default()).await;
    let mut counts = BTreeMap::new();
    for _ in 0..400 {
        *counts.entry(greeting(&running).await).or_insert(0) += 1;
    }
    let a = counts[&Some(b'a')];
    assert!((260..=340).contains(&a), "{counts:?}");
    let metrics = running.metrics();
    assert!(
        metrics.contains(&format!("backend_connections_total{{backend=\"default/tcp-a:80\"}} {a}")),
        "{metrics}"
    );
    assert!(metrics.contains(&format!(
        "backend_zone_total{{backend=\"default/tcp-b:80\",locality=\"cross-zone\"}} {}",
        400 - a
    )));
}

#[tokio::test]
async fn each_side_may_close_its_half() {
    let endpoints = [("tcp-a".to_owned(), vec![(greeter("a").await, 1.0, true)])];
    let running = split(endpoints.into(), ProxyOptions::default()).await;
    // `tcp-b` has no endpoint: some connections are closed at once.
    let mut stream = loop {
        let mut stream = running.connect().await;
        if stream.read_u8().await.is_ok() {
            break stream;
        }
    };
    stream.write_all(b"last words").await.expect("sent");
    stream.shutdown().await.expect("half closed");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("the echo, then the end");
    assert_eq!(rest, "last words");
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_left_for_another() {
    let dead = toolbox::ports::free_port();
    let both = vec![(greeter("a").await, 1.0, true), (dead, 1.0, true)];
    let running = split(
        [("tcp-a".to_owned(), both.clone()), ("tcp-b".to_owned(), both)].into(),
        ProxyOptions::default(),
    )
    .await;
    for _ in 0..50 {
        assert_eq!(greeting(&running).await, Some(b'a'));
    }
}

#[tokio::test]
async fn a_connection_that_stands_still_is_closed() {
    let endpoints = [
        ("tcp-a".to_owned(), vec![(greeter("a").await, 1.0, true)]),
        ("tcp-b".to_owned(), vec![(greeter("b").await, 1.0, true)]),
    ];
    let timeouts = ProxyTimeouts { idle: Duration::from_millis(200), ..ProxyTimeouts::default() };
    let running = split(endpoints.into(), ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let began = Instant::now();
    let mut stream = running.connect().await;
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    assert_eq!(all.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_connection_that_was_not_redirected_is_closed_and_not_sent_in_circles() {
    let routes = Arc::new(sidecar(&[], &["backend"], "frontend"));
    let tables = ProxyTables { routes, ..ProxyTables::default() };
    let running = Running::with(tables, ListenerKind::OriginalDestination, ProxyOptions::default()).await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("closed");
    assert_eq!(all, b"");
    assert_eq!(running.proxy.open_connections(), 0);
}
