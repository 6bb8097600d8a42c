//! Failing endpoints: retries, ejection, statuses of local replies; and endpoints that are added or removed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::eventually_async;
use model::route::RouteTable;
use proxy::{LoadBalancerSettings, ProxyOptions, ProxyTables, ProxyTimeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::harness::*;

fn tables(routes: &Arc<RouteTable>, endpoints: &[SocketAddr]) -> ProxyTables {
    let endpoints = endpoints.iter().map(|address| (*address, 1.0, true)).collect();
    let backends = backends(routes, &[("backend".to_owned(), endpoints)].into());
    ProxyTables { routes: routes.clone(), backends: Arc::new(backends), ..ProxyTables::default() }
}

async fn running(endpoints: &[SocketAddr], settings: ProxyOptions) -> (Running, Arc<RouteTable>) {
    let routes = Arc::new(sidecar(&[], &["backend"], "frontend"));
    (Running::with(tables(&routes, endpoints), to_backend(), settings).await, routes)
}

/// Nothing listens there.
fn dead() -> SocketAddr {
    toolbox::ports::free_port()
}

/// An endpoint that reads a head, says this, and closes.
async fn says(text: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached_costs_no_request() {
    let alive = Echo::start("backend").await;
    let (running, _) = running(&[dead(), alive.address, dead()], ProxyOptions::default()).await;
    for _ in 0..100 {
        assert_eq!(running.send("POST", "/", &[], b"body").await.status, 200);
    }
    assert!(running.metrics().contains("backend_ejections_total{backend=\"default/backend:80\"} 1"));
}

#[tokio::test]
async fn nobody_there_is_503_and_says_so_at_once() {
    for endpoints in [vec![], vec![dead()], vec![dead(), dead(), dead()]] {
        let (running, _) = running(&endpoints, ProxyOptions::default()).await;
        assert_eq!(running.get("/", &[]).await.status, 503);
    }
}

#[tokio::test]
async fn an_endpoint_that_breaks_off_is_502() {
    for text in [
        "",
        "rubbish\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ] {
        let (running, _) = running(&[says(text).await], ProxyOptions::default()).await;
        assert_eq!(running.get("/", &[]).await.status, 502, "{text:?}");
    }
}

#[tokio::test]
async fn an_answer_that_ends_early_is_seen_as_cut() {
    let (running, _) =
        running(&[says("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await], ProxyOptions::default())
            .await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    assert!(read_answer(&mut stream, "GET").await.is_none(), "a whole answer");
}

#[tokio::test]
async fn an_endpoint_that_takes_too_long_is_504() {
    let echo = Echo::start("backend").await;
    let timeouts = ProxyTimeouts { response: Duration::from_millis(200), ..ProxyTimeouts::default() };
    let (running, _) = running(&[echo.address], ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    assert_eq!(running.get("/", &[("x-delay", "3000")]).await.status, 504);
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn a_long_upload_is_no_late_answer() {
    let echo = Echo::start("backend").await;
    let timeouts = ProxyTimeouts { response: Duration::from_millis(1_000), ..ProxyTimeouts::default() };
    let (running, _) = running(&[echo.address], ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let mut stream = running.connect().await;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\n").await.expect("sent");
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        stream.write_all(b"x").await.expect("sent");
    }
    assert_eq!(read_answer(&mut stream, "POST").await.expect("an answer").status, 200);
}

#[tokio::test]
async fn one_that_fails_too_often_is_left_out_for_a_while() {
    let (good, bad) = (Echo::start("good").await, says("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await);
    let load_balancing = LoadBalancerSettings {
        consecutive_failures: 3,
        base_ejection_time: Duration::from_secs(3),
        ..LoadBalancerSettings::default()
    };
    let (running, _) =
        running(&[good.address, bad], ProxyOptions { load_balancing, ..ProxyOptions::default() }).await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(running.get("/", &[]).await.status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
    assert!(
        running.metrics().contains("backend_endpoints{backend=\"default/backend:80\",state=\"ejected\"} 1")
    );
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let mut after = Vec::new();
    for _ in 0..40 {
        after.push(running.get("/", &[]).await.status);
    }
    assert_eq!(
        after.iter().filter(|status| **status == 503).count(),
        1,
        "on trial, and out again: {after:?}"
    );
}

#[tokio::test]
async fn a_kept_connection_that_the_endpoint_closed_costs_no_request() {
    let address = says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let (running, _) = running(&[address], ProxyOptions::default()).await;
    let mut stream = running.connect().await;
    for _ in 0..50 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        assert_eq!(read_answer(&mut stream, "GET").await.expect("an answer").status, 200);
    }
}

#[tokio::test]
async fn a_request_in_flight_is_finished_by_an_endpoint_that_left_the_table() {
    let (old, new) = (Echo::start("old").await, Echo::start("new").await);
    let (running, routes) = running(&[old.address], ProxyOptions::default()).await;
    let mut slow = running.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-delay: 500\r\n\r\n").await.expect("sent");
    eventually_async("a connection to the endpoint", async || {
        metric_sum(&running, "upstream_sockets", "") > 0
    })
    .await;
    running.proxy.swap(tables(&routes, &[new.address]));
    assert_eq!(running.get("/", &[]).await.json()["backend"], "new");
    assert_eq!(read_answer(&mut slow, "GET").await.expect("an answer").json()["backend"], "old");
}

#[tokio::test]
async fn the_end_waits_for_what_is_begun_and_no_longer_than_it_may() {
    let echo = Echo::start("backend").await;
    let (mut running, _) = running(&[echo.address], ProxyOptions::default()).await;
    let mut unused = running.connect().await;
    unused.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    read_answer(&mut unused, "GET").await.expect("an answer");
    let mut slow = running.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-delay: 1500\r\n\r\n").await.expect("sent");
    let mut endless = running.connect().await;
    endless.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-delay: 60000\r\n\r\n").await.expect("sent");
    eventually_async("two requests", async || metric_sum(&running, "open_requests", "") == 2).await;
    running.stop();
    let began = Instant::now();
    let proxy = running.proxy.clone();
    let drain = tokio::spawn(async move { proxy.drain(Duration::from_secs(3)).await });
    let mut rest = Vec::new();
    unused.read_to_end(&mut rest).await.expect("closed when unused");
    assert!(!drain.is_finished(), "an unused connection was held to the end");
    let answer = read_answer(&mut slow, "GET").await.expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(read_answer(&mut endless, "GET").await.is_none());
    drain.await.expect("drained");
    assert!(began.elapsed() >= Duration::from_millis(2_900) && began.elapsed() < Duration::from_secs(30));
    assert_eq!(running.proxy.open_connections(), 0);
}
