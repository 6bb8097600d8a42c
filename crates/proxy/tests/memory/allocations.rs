//! How often memory is asked for to carry one request.

use std::net::SocketAddr;
use std::sync::Arc;

use proxy::{ProxyOptions, ProxyTables};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::harness::{Running, backends, sidecar, to_backend};

/// An endpoint that allocates nothing for a request.
async fn fixed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let answer = b"HTTP/1.1 200 OK\r\nserver: x\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\nhello";
                while let Ok(1..) = stream.read(&mut head).await {
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Allocations per request of HTTP/1.1, counted over a thousand.
#[tokio::test]
async fn a_request_of_http1_needs_few_allocations() {
    let routes = sidecar(&[], &["backend"], "frontend");
    let endpoints = [("backend".to_owned(), vec![(fixed().await, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    let running = Running::with(tables, to_backend(), ProxyOptions::default()).await;
    let mut stream = running.connect().await;
    let mut answer = [0; 4096];
    let mut before = 0;
    for at in 0..1100 {
        if at == 100 {
            before = super::calls();
        }
        stream.write_all(b"GET /index.html HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n\r\n").await.unwrap();
        let mut got = 0;
        while !answer[..got].ends_with(b"hello") {
            got += stream.read(&mut answer[got..]).await.unwrap();
        }
    }
    let each = (super::calls() - before) as f64 / 1000.0;
    println!("{each:.1} allocations for a request of HTTP/1.1");
    assert!(each <= 6.5, "{each}: something new allocates for each request");
}
