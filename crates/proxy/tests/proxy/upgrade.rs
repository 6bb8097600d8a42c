//! Upgrades: WebSocket over both HTTP versions on either side, and other protocols.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proxy::{ListenerKind, ProxyOptions, ProxyTables};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::harness::*;

/// What an endpoint of HTTP/2 was asked by extended CONNECT.
type Asked = Arc<Mutex<Vec<(String, String, HeaderMap)>>>;

async fn connected(
    asked: Asked,
    mut request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let protocol = request.extensions().get::<hyper::ext::Protocol>().map(|p| p.as_str().to_owned());
    let noted = (protocol.unwrap_or_default(), request.uri().to_string(), request.headers().clone());
    asked.lock().expect("no test panics here").push(noted);
    let mut response = Response::new(Empty::new());
    if request.uri().path() == "/forbidden" || request.method() != Method::CONNECT {
        *response.status_mut() = StatusCode::FORBIDDEN;
        return Ok(response);
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.expect("upgraded"));
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..count].to_ascii_uppercase()).await.expect("sent");
        }
    });
    Ok(response)
}

/// A proxy before an endpoint that speaks HTTP/2 and nothing else.
async fn to_http2_only(offers: bool) -> (Running, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    let asked = Asked::default();
    let noted = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let noted = noted.clone();
            tokio::spawn(async move {
                let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                if offers {
                    server.enable_connect_protocol();
                }
                let service = service_fn(|request| connected(noted.clone(), request));
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let routes = sidecar(&[], &["h2-backend"], "frontend");
    let endpoints: BTreeMap<_, _> = [("h2-backend".to_owned(), vec![(address, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    let kind = ListenerKind::Outbound { service: key("h2-backend"), port: 80 };
    (Running::with(tables, kind, ProxyOptions::default()).await, asked)
}

/// Asks as a browser does, by HTTP/1.1.
async fn ask1(running: &Running, path: &str) -> (TcpStream, Answer) {
    let mut stream = running.connect().await;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: svc.test\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let answer = read_answer(&mut stream, "GET").await.expect("an answer");
    (stream, answer)
}

/// Asks by HTTP/2.
async fn ask2(running: &Running, path: &str) -> Response<Incoming> {
    extended_connect(running.address, || {
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri(format!("http://svc.test{path}"))
            .version(Version::HTTP_2)
            .header("sec-websocket-version", "13")
            .body(full(Bytes::new()))
            .expect("a request");
        request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
        request
    })
    .await
}

async fn echoes(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    for (said, heard) in [(b"hello", b"HELLO"), (b"again", b"AGAIN")] {
        stream.write_all(said).await.expect("sent");
        let mut text = [0; 5];
        let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut text)).await;
        read.expect("in time").expect("an echo");
        assert_eq!(&text, heard);
    }
}

#[tokio::test]
async fn a_websocket_by_http1_reaches_an_endpoint_that_offers_it_by_http2() {
    let (running, asked) = to_http2_only(true).await;
    let (stream, answer) = ask1(&running, "/chat?x").await;
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")));
    // RFC 6455, 1.3: the answer to this very key.
    assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    echoes(stream).await;
    let (protocol, uri, headers) = asked.lock().expect("no panic").remove(0);
    assert_eq!((protocol.as_str(), uri.as_str()), ("websocket", "http://svc.test/chat?x"));
    assert_eq!(headers["sec-websocket-version"], "13");
    assert!(!headers.contains_key("sec-websocket-key") && !headers.contains_key("upgrade"));
}

#[tokio::test]
async fn a_websocket_goes_by_http2_on_both_sides() {
    let (running, _) = to_http2_only(true).await;
    let mut response = ask2(&running, "/chat").await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    echoes(TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"))).await;
}

#[tokio::test]
async fn an_endpoint_that_refuses_by_http2_is_heard() {
    let (running, _) = to_http2_only(true).await;
    assert_eq!(ask1(&running, "/forbidden").await.1.status, 403);
    assert_eq!(ask2(&running, "/forbidden").await.status(), 403);
}

#[tokio::test]
async fn an_endpoint_of_http2_without_the_extension_is_asked_by_http1() {
    let routes = sidecar(&[], &["h2-backend"], "frontend");
    let kind = ListenerKind::Outbound { service: key("h2-backend"), port: 80 };
    let running = Running::start(routes, kind, ProxyOptions::default()).await;
    let (stream, answer) = ask1(&running, "/chat").await;
    assert_eq!((answer.status, answer.header("sec-websocket-accept")), (101, Some("accepted")));
    echoes(stream).await;
    let mut response = ask2(&running, "/chat").await;
    assert_eq!(response.status(), 200);
    echoes(TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"))).await;
    // And other requests go by HTTP/2 as ever.
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn an_endpoint_that_cannot_upgrade_in_any_way_is_said_to_be_so() {
    let (running, asked) = to_http2_only(false).await;
    let (_, answer) = ask1(&running, "/chat").await;
    assert_eq!(answer.status, 502);
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains("RFC 8441") && said.contains("HTTP/1.1"), "{said}");
    assert_eq!(ask2(&running, "/chat").await.status(), 502);
    assert!(asked.lock().expect("no panic").is_empty());
    // It is not the worse for it.
    for _ in 0..8 {
        assert_eq!(ask1(&running, "/chat").await.1.status, 502);
    }
    assert_eq!(running.get("/", &[]).await.status, 403);
}

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
    let mut response = ask2(&running, "/chat").await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("connection"));
    echoes(TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"))).await;
}

#[tokio::test]
async fn an_upgrade_to_http2_is_not_passed_on() {
    let running = plain().await;
    let headers =
        [("connection", "Upgrade, HTTP2-ProxyOptions"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
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
