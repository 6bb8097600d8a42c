//! Connections that become something else: WebSocket by both versions of HTTP, and other protocols.

use bytes::Bytes;
use http::{Method, Request, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::*;

#[tokio::test]
async fn a_websocket_is_joined_through() {
    let running = plain().await;
    let mut stream = running.connect().await;
    let request =
        b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\nearly";
    stream.write_all(request).await.expect("sent");
    let answer = read_answer(&mut stream, "GET").await.expect("an answer");
    assert_eq!(answer.status, 101);
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    assert_eq!(answer.header("connection"), Some("upgrade"));
    assert_eq!(answer.header("sec-websocket-accept"), Some("accepted"));
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.expect("what was sent early");
    assert_eq!(&text, b"EARLY");
    stream.write_all(b"later").await.expect("sent");
    stream.read_exact(&mut text).await.expect("what was sent later");
    assert_eq!(&text, b"LATER");
}

#[tokio::test]
async fn a_websocket_by_http2_reaches_an_http1_endpoint() {
    let running = plain().await;
    let mut sender = http2(running.address).await;
    sender.ready().await.expect("ready");
    // The server has to have said that it knows the extension.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri("http://svc.test/chat")
        .version(Version::HTTP_2)
        .header("sec-websocket-version", "13")
        .body(full(Bytes::new()))
        .expect("a request");
    request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
    let mut response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("connection"));
    let upgraded = hyper::upgrade::on(&mut response).await.expect("upgraded");
    let mut stream = TokioIo::new(upgraded);
    stream.write_all(b"hello").await.expect("sent");
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.expect("an echo");
    assert_eq!(&text, b"HELLO");
}

#[tokio::test]
async fn an_upgrade_to_http2_is_not_passed_on() {
    let running = plain().await;
    let headers =
        [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    let answer = running.get("/", &headers).await;
    assert_eq!(answer.status, 200);
    let seen = running.echo("backend").seen().remove(0);
    assert!(!seen.headers.contains_key("upgrade") && !seen.headers.contains_key("http2-settings"));
}

#[tokio::test]
async fn an_upgrade_that_connection_does_not_name_is_none() {
    let running = plain().await;
    let answer = running.get("/", &[("upgrade", "websocket")]).await;
    assert_eq!(answer.status, 200);
    assert!(!running.echo("backend").seen()[0].headers.contains_key("upgrade"));
}

#[tokio::test]
async fn a_plain_tunnel_is_refused() {
    let running = plain().await;
    let answer = running.send("CONNECT", "svc.test:443", &[("host", "svc.test:443")], b"").await;
    assert_eq!(answer.status, 405);
}
