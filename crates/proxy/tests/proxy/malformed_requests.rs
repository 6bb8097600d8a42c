//! Malformed and ambiguous requests: a 4xx or a closed connection, nothing of them forwarded as a request of its own,
//! and other clients unaffected.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::*;

/// Sends bytes and reads whatever comes until the end, or until nothing comes for a while.
async fn exchange(running: &Running, bytes: &[u8]) -> String {
    let mut stream = running.connect().await;
    let _ = stream.write_all(bytes).await;
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_millis(300), stream.read_to_end(&mut all)).await;
    String::from_utf8_lossy(&all).into_owned()
}

fn statuses(text: &str) -> Vec<u16> {
    let lines = text.split("HTTP/1.").skip(1);
    lines.filter_map(|line| line.get(2..5)?.parse().ok()).collect()
}

/// Neither an answer of an endpoint nor a request at one.
async fn refused(cases: &[&[u8]]) {
    let running = plain().await;
    for case in cases {
        let text = exchange(&running, case).await;
        let shown = String::from_utf8_lossy(case);
        assert!(statuses(&text).iter().all(|status| (400..500).contains(status)), "{shown:?}: {text}");
        assert_eq!(running.echo("backend").seen().len(), 0, "{shown:?} reached an endpoint");
    }
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn heads_that_are_none_are_refused() {
    refused(&[
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/3.0\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\nhost a\n\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: user@a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: \xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx\0y: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n: empty\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n\xffname: x\r\n\r\n",
        b"G\xc3\x84T / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1 x\r\nhost: a\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET //[::1 HTTP/1.1 \r\nhost: a\r\n\r\n",
    ])
    .await;
}

#[tokio::test]
async fn lengths_that_disagree_are_refused() {
    refused(&[
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 2\r\n\r\nxx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\nx",
        b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    ])
    .await;
}

/// An endpoint that cannot frame a body may hear the head of its request, but never its end.
async fn cut(cases: &[&[u8]]) {
    let running = plain().await;
    for case in cases {
        let text = exchange(&running, case).await;
        let shown = String::from_utf8_lossy(case);
        assert!(statuses(&text).iter().all(|status| (400..500).contains(status)), "{shown:?}: {text}");
        assert_eq!(running.echo("backend").seen().len(), 0, "{shown:?} was taken as whole");
    }
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn chunks_that_are_none_never_end_a_request() {
    cut(&[
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nxx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nxx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nxx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nxxx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nxx0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nxx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nbad trailer\r\n\r\n",
    ])
    .await;
}

#[tokio::test]
async fn a_request_in_a_body_stays_a_body() {
    // Content-Length and Transfer-Encoding together: what the chunks end is the request; the connection is not used on.
    let running = plain().await;
    let smuggled =
        b"POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
        0\r\n\r\nGET /two HTTP/1.1\r\nhost: a\r\n\r\n";
    let text = exchange(&running, smuggled).await;
    let paths: Vec<String> = running.echo("backend").seen().into_iter().map(|seen| seen.path).collect();
    assert!(paths == ["/one"] || paths.is_empty(), "{paths:?}: {text}");
    let seen = running.echo("backend").seen();
    assert!(seen.iter().all(|seen| !(seen.headers.contains_key("content-length")
        && seen.headers.contains_key("transfer-encoding"))));
    // The other way round: a body that looks like a request.
    let body = b"GET /three HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = running.send("POST", "/four", &[], body).await;
    assert_eq!(answer.json()["length"].as_u64(), Some(body.len() as u64));
    assert!(running.echo("backend").seen().iter().all(|seen| seen.path != "/two" && seen.path != "/three"));
}

#[tokio::test]
async fn a_connection_header_cannot_take_the_framing_away() {
    let running = plain().await;
    let headers = [("connection", "content-length, host, transfer-encoding")];
    let answer = running.send("POST", "/", &headers, b"four").await;
    assert_eq!((answer.status, answer.json()["length"].as_u64()), (200, Some(4)));
    assert_eq!(running.echo("backend").seen()[0].host, "svc.test");
}

#[tokio::test]
async fn trailers_without_end_are_ended() {
    let running = plain().await;
    let mut stream = running.connect().await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n";
    stream.write_all(head).await.expect("sent");
    let line = format!("x-trailer: {}\r\n", "x".repeat(1000));
    let mut sent = 0;
    while sent < 20_000_000 && stream.write_all(line.as_bytes()).await.is_ok() {
        sent += line.len();
    }
    assert!(sent < 20_000_000, "{sent} bytes of trailers were taken");
    assert!(running.echo("backend").seen().is_empty());
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn chunk_extensions_without_end_are_ended() {
    let running = plain().await;
    let mut stream = running.connect().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .expect("sent");
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(4000));
    let mut sent = 0;
    while sent < 20_000_000 && stream.write_all(chunk.as_bytes()).await.is_ok() {
        sent += chunk.len();
    }
    assert!(sent < 20_000_000, "{sent} bytes of extensions were taken");
    assert_eq!(running.get("/", &[]).await.status, 200);
}

/// Bytes by chance, from a seed: nothing panics, nothing hangs, others are served.
#[tokio::test]
async fn noise_is_survived() {
    let running = plain().await;
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let valid = b"POST /a/b?c HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nx: y\r\n\r\nabcGET / HTTP/1.1\r\nhost: a\r\n\r\n";
    for round in 0..150 {
        let mut bytes = if round % 3 == 0 { vec![0; 200] } else { valid.to_vec() };
        let changes = if round % 3 == 0 { bytes.len() } else { 1 + (next() % 6) as usize };
        for at in 0..changes {
            let place = if round % 3 == 0 { at } else { (next() % bytes.len() as u64) as usize };
            bytes[place] = next() as u8;
        }
        let mut stream = running.connect().await;
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut all = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.map(drop).expect("the end");
    }
    assert_eq!(running.get("/", &[]).await.status, 200);
}
