//! Limits and timeouts of clients.

use std::time::{Duration, Instant};

use fixtures::eventually_async;
use proxy::{ProxyLimits, ProxyOptions, ProxyTimeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::*;

async fn with_limits(limits: ProxyLimits, timeouts: ProxyTimeouts) -> Running {
    let routes = sidecar(&[], &["backend"], "frontend");
    Running::start(routes, to_backend(), ProxyOptions { limits, timeouts, ..ProxyOptions::default() }).await
}

#[tokio::test]
async fn too_many_or_too_long_headers_are_431() {
    let running = plain().await;
    let many: Vec<(String, String)> = (0..200).map(|at| (format!("x-{at}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(running.get("/", &many).await.status, 431);
    let long = "x".repeat(70_000);
    // Told, or closed before it could be told: the client was still sending.
    let mut stream = running.connect().await;
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n").as_bytes()).await;
    let status = read_answer(&mut stream, "GET").await.map(|answer| answer.status);
    assert!(matches!(status, None | Some(431)), "{status:?}");
    let short = "x".repeat(30_000);
    assert_eq!(running.get("/", &[("x-long", &short)]).await.status, 200);
}

#[tokio::test]
async fn a_head_without_end_is_ended() {
    let running = plain().await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nx: ").await.expect("sent");
    let mut sent = 0;
    while sent < 10_000_000 && stream.write_all(&[b'x'; 8192]).await.is_ok() {
        sent += 8192;
    }
    assert!(sent < 10_000_000, "a head of {sent} bytes was taken");
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_told_or_untold() {
    let limits = ProxyLimits { body_bytes: 1000, ..ProxyLimits::default() };
    let running = with_limits(limits, ProxyTimeouts::default()).await;
    assert_eq!(running.send("POST", "/", &[], &[b'x'; 1000]).await.status, 200);
    assert_eq!(running.send("POST", "/", &[], &[b'x'; 1001]).await.status, 413);
    let mut stream = running.connect().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .expect("sent");
    for _ in 0..20 {
        let _ = stream.write_all(format!("64\r\n{}\r\n", "x".repeat(100)).as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(read_answer(&mut stream, "POST").await.expect("an answer").status, 413);
    assert_eq!(running.echo("backend").seen().len(), 1);
}

#[tokio::test]
async fn slow_heads_are_closed_and_others_are_served_meanwhile() {
    let timeouts = ProxyTimeouts { headers: Duration::from_millis(300), ..ProxyTimeouts::default() };
    let running = with_limits(ProxyLimits::default(), timeouts).await;
    let mut slow = Vec::new();
    for start in ["", "G", "GET / HTTP/1.1\r\nx: ", "PRI * HTTP/2.0\r\n"] {
        let mut stream = running.connect().await;
        stream.write_all(start.as_bytes()).await.expect("sent");
        slow.push(stream);
    }
    // And one that has been good before.
    let mut good = running.connect().await;
    good.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    read_answer(&mut good, "GET").await.expect("an answer");
    good.write_all(b"GET / HTTP/1.1\r\nx: ").await.expect("sent");
    slow.push(good);
    let began = Instant::now();
    for stream in &mut slow {
        let mut rest = Vec::new();
        while began.elapsed() < PATIENCE {
            // A byte now and then does not help.
            let _ = stream.write_all(b"x").await;
            let read = tokio::time::timeout(Duration::from_millis(50), stream.read_to_end(&mut rest)).await;
            if read.is_ok() {
                break;
            }
        }
        assert_eq!(running.get("/", &[]).await.status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_unused_connection_stays_longer_than_a_head_may_take() {
    let timeouts = ProxyTimeouts {
        headers: Duration::from_millis(100),
        idle: Duration::from_millis(2_500),
        ..ProxyTimeouts::default()
    };
    let running = with_limits(ProxyLimits::default(), timeouts).await;
    let mut stream = running.connect().await;
    for _ in 0..3 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        assert_eq!(read_answer(&mut stream, "GET").await.expect("an answer").status, 200);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("closed")
        .expect("without an error");
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_left() {
    let timeouts = ProxyTimeouts { idle: Duration::from_millis(300), ..ProxyTimeouts::default() };
    let running = with_limits(ProxyLimits::default(), timeouts).await;
    let mut stream = running.connect().await;
    let body = vec![b'x'; 8_000_000];
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-body-back: 1\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(&body).await.expect("sent");
    eventually_async("the end of the connection", async || running.proxy.open_connections() == 0).await;
}

#[tokio::test]
async fn a_client_that_stops_in_its_body_is_told_and_left() {
    let timeouts = ProxyTimeouts { idle: Duration::from_millis(200), ..ProxyTimeouts::default() };
    let running = with_limits(ProxyLimits::default(), timeouts).await;
    let mut stream = running.connect().await;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await.expect("sent");
    let answer = read_answer(&mut stream, "POST").await.expect("an answer");
    assert_eq!(answer.status, 408);
}

#[tokio::test]
async fn more_connections_than_allowed_wait_their_turn() {
    let limits = ProxyLimits { connections: 2, ..ProxyLimits::default() };
    let running = with_limits(limits, ProxyTimeouts::default()).await;
    let (first, second) = (running.connect().await, running.connect().await);
    let mut third = running.connect().await;
    third.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let early = tokio::time::timeout(Duration::from_millis(200), third.read_u8()).await;
    assert!(early.is_err(), "the third was served");
    drop((first, second));
    assert_eq!(read_answer(&mut third, "GET").await.expect("an answer").status, 200);
}

#[tokio::test]
async fn more_requests_than_allowed_are_503() {
    let limits = ProxyLimits { requests: 1, ..ProxyLimits::default() };
    let running = with_limits(limits, ProxyTimeouts::default()).await;
    let mut slow = running.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-delay: 1500\r\n\r\n").await.expect("sent");
    eventually_async("the first request", async || metric_sum(&running, "open_requests", "") == 1).await;
    assert_eq!(running.get("/", &[]).await.status, 503);
    assert_eq!(read_answer(&mut slow, "GET").await.expect("an answer").status, 200);
    assert_eq!(running.get("/", &[]).await.status, 200);
}
