//! What is no request of HTTP/1.1: bytes by TCP, HTTP/2 and gRPC to endpoints, WebSockets, and ports that are taken.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::Labels;
use model::route::AppProtocol;
use serde_json::{Value, json};
use xds::render::{RenderInput, render};
use xds::resource::ResourceType;

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Echo, Log, request};
use crate::world::{Places, gateway_input, sidecar_input, snapshot, speaking};
use toolbox::ports::free_port;

/// A server that says its name, and then whatever it hears.
pub fn greeter(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.write_all(format!("{name}\n").as_bytes());
                let mut from = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut from, &mut stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// Who greets; nobody where the connection is closed instead. What is said comes back.
pub fn greeted(stream: impl Read + Write) -> Option<String> {
    let mut stream = BufReader::new(stream);
    let mut name = String::new();
    stream.read_line(&mut name).ok().filter(|read| *read > 0)?;
    stream.get_mut().write_all(b"hello\n").ok()?;
    let mut back = String::new();
    stream.read_line(&mut back).ok()?;
    assert_eq!(back, "hello\n");
    Some(name.trim_end().to_owned())
}

pub fn tcp_route(listener: &str, backends: &[(&str, u32)]) -> Value {
    let backends: Vec<Value> = backends
        .iter()
        .map(|(name, weight)| json!({"kind": "MeshService", "name": name, "weight": weight}))
        .collect();
    json!({"type": "MeshTCPRoute", "name": format!("to-{listener}"), "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge", "tags": {"listener": listener}},
        "to": [{"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"backendRefs": backends}}]}]}})
}

fn places(pairs: &[(&str, SocketAddr)]) -> Places {
    pairs.iter().map(|(name, at)| ((*name).to_owned(), vec![(*at, "a", 1.0)])).collect()
}

#[test]
fn a_tcp_gateway_shares_connections_by_weight_and_closes_those_that_lead_nowhere() {
    let (at, dead) = (free_port(), free_port());
    let routes = [tcp_route("raw", &[("one", 3), ("two", 1)]), tcp_route("dead", &[("gone", 1)])];
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "TCP", "tags": {"listener": name}});
    let world = snapshot("ns", &routes, &[], &json!([listener("raw", 9000), listener("dead", 9001)]));
    let places = places(&[("one", greeter("one")), ("two", greeter("two"))]);
    let input = gateway_input(&world, "ns", &[(9000, at), (9001, dead)], &places);
    let rendered = render(speaking(input, AppProtocol::Tcp), None);
    assert_eq!(rendered.notices, []);
    let control = Control::start(&rendered.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    proxy.wait_for(dead);
    let ask = |at: SocketAddr| greeted(TcpStream::connect(at).unwrap());
    let answers: Vec<String> = (0..800).map(|_| ask(at).expect("a greeting")).collect();
    let ones = answers.iter().filter(|name| *name == "one").count();
    // 600 of 800, and four standard deviations of 12.
    assert!((551..650).contains(&ones), "{ones} of 800 went to one");
    assert_eq!(ask(dead), None, "a backend without endpoints");
    assert_eq!(control.streams.notices(), []);
}

/// A server that speaks HTTP/2 without TLS and nothing else. It says by which version it was asked, and how it ends.
fn http2_server(runtime: &tokio::runtime::Runtime) -> SocketAddr {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(serve);
        }
    });
    address
}

type Frames = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// What it was asked comes back with the trailers that gRPC has.
async fn answer(request: http::Request<Incoming>) -> Result<http::Response<Frames>, Infallible> {
    let said = json!({"backend": "h2", "version": format!("{:?}", request.version()),
        "path": request.uri().path(), "te": request.headers().get("te").map(|te| te.to_str().unwrap().to_owned())});
    let kind = request.headers().get("content-type").cloned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.insert("grpc-message", "fine".parse().unwrap());
    let is_grpc = kind.as_ref().is_some_and(|kind| kind == "application/grpc");
    let data = if is_grpc { body } else { said.to_string().into() };
    let mut frames = vec![Ok(Frame::data(data))];
    frames.extend(is_grpc.then(|| Ok(Frame::trailers(trailers))));
    let mut response = http::Response::new(StreamBody::new(futures_util::stream::iter(frames)));
    response.headers_mut().insert("x-said", said.to_string().parse().unwrap());
    response.headers_mut().extend(kind.map(|kind| (http::header::CONTENT_TYPE, kind)));
    Ok(response)
}

fn sidecar(at: SocketAddr, server: SocketAddr, protocol: AppProtocol) -> RenderInput {
    let world = snapshot("ns", &[], &["web", "client"], &json!(null));
    let input =
        sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places(&[("web", server)]));
    speaking(input, protocol)
}

#[test]
fn endpoints_that_speak_http2_get_it_whatever_the_client_speaks() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (at, server) = (free_port(), http2_server(&runtime));
    let control = Control::start(&render(sidecar(at, server, AppProtocol::Http2), None).resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let answer = request(at, "GET", "web", "/one", &[]).unwrap();
    let said = answer.json();
    assert_eq!((said["version"].as_str(), said["path"].as_str()), (Some("HTTP/2.0"), Some("/one")));
    let two = runtime.block_on(async {
        let mut client = client(at).await;
        let request = http::Request::get("http://web/two").body(Full::default()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
    });
    assert_eq!(two.0, 200);
    assert_eq!(serde_json::from_slice::<Value>(&two.1).unwrap()["path"], "/two");
}

async fn client(at: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn grpc_calls_keep_their_messages_and_trailers_and_fail_in_grpcs_words() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (at, server) = (free_port(), http2_server(&runtime));
    let first = render(sidecar(at, server, AppProtocol::Grpc), None);
    let control = Control::start(&first.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let call = || {
        runtime.block_on(async {
            let mut client = client(at).await;
            let request = http::Request::post("http://web/pkg.Service/Call")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::from(&b"\0\0\0\0\x05hello"[..]))
                .unwrap();
            let answer = client.send_request(request).await.unwrap();
            let (head, body) = answer.into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            (head, body.to_bytes(), trailers)
        })
    };
    let (head, body, trailers) = call();
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"\0\0\0\0\x05hello"[..]));
    let said: Value = serde_json::from_str(head.headers["x-said"].to_str().unwrap()).unwrap();
    assert_eq!((said["te"].as_str(), said["path"].as_str()), (Some("trailers"), Some("/pkg.Service/Call")));
    assert_eq!(
        (&trailers["grpc-status"], &trailers["grpc-message"]),
        (&"0".parse().unwrap(), &"fine".parse().unwrap())
    );
    // Nobody is left: a gRPC client reads UNAVAILABLE instead of a status of HTTP.
    let mut input = sidecar(at, server, AppProtocol::Grpc);
    let id = input.routes.backends().into_iter().next().unwrap();
    let mut table = model::backend::BackendTable::new(model::backend::ConsumerLocation::default());
    table.put(std::sync::Arc::new(model::backend::Backend {
        protocol: AppProtocol::Grpc,
        ..crate::world::backend(&id, &[])
    }));
    input.tiers = vec![std::sync::Arc::new(table)];
    control.publish(&render(input, Some(&first)).resources);
    proxy.wait("UNAVAILABLE", || {
        let (head, ..) = call();
        head.status == 200 && head.headers.get("grpc-status").is_some_and(|status| status == "14")
    });
    assert_eq!(control.sent()[&ResourceType::Cluster], 1);
}

/// A server that agrees to every WebSocket and repeats what it hears.
fn websocket_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let Ok(Some(asked)) = crate::http::Message::read(&mut reader, true) else { return };
                let key = asked.header("sec-websocket-key").unwrap_or("none").to_owned();
                let head = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {key}\r\n\r\n"
                );
                let _ = reader.get_mut().write_all(head.as_bytes());
                let mut to = reader.get_ref().try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn upgrade(at: SocketAddr) -> (crate::http::Message, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = "GET /chat HTTP/1.1\r\nhost: web\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: abc\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let answer = crate::http::Message::read(&mut reader, true).unwrap().unwrap();
    (answer, reader)
}

#[test]
fn websockets_pass_both_ways_and_outlive_a_change_of_routes() {
    let (at, server) = (free_port(), websocket_server());
    let first = render(sidecar(at, server, AppProtocol::Http), None);
    let control = Control::start(&first.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let (answer, mut socket) = upgrade(at);
    assert_eq!((answer.status(), answer.header("sec-websocket-accept")), (101, Some("abc")));
    let mut say = |text: &[u8]| {
        socket.get_mut().write_all(text).unwrap();
        let mut back = vec![0; text.len()];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(back, text);
    };
    say(b"\x81\x85\0\0\0\0hello");
    let tea = json!({"matches": [{"path": {"type": "Prefix", "value": "/tea"}}], "default": {"filters": [
        {"type": "DirectResponse", "directResponse": {"status": 418}}]}});
    let policy = json!({"type": "MeshHTTPRoute", "name": "tea", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": [tea]}]}});
    let world = snapshot("ns", &[policy], &["web", "client"], &json!(null));
    let changed =
        sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places(&[("web", server)]));
    control.publish(&render(changed, Some(&first)).resources);
    proxy.wait("the route", || request(at, "GET", "web", "/tea", &[]).unwrap().status() == 418);
    say(b"\x81\x85\0\0\0\0again");
    assert_eq!(control.sent()[&ResourceType::Listener], 1);
}

#[test]
fn a_taken_port_is_told_and_served_when_it_becomes_free() {
    let log = Log::default();
    let (at, echo) = (free_port(), Echo::start("web", &log));
    let squatter = TcpListener::bind(at).unwrap();
    let control = Control::start(&render(sidecar(at, echo.address, AppProtocol::Http), None).resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait("the refusal", || !control.streams.notices().is_empty());
    let told = control.streams.notices()[0].to_string();
    assert!(told.contains("cannot bind") && told.contains("free the port"), "{told}");
    assert!(told.contains("retried after 2 s"), "{told}");
    drop(squatter);
    let start = Instant::now();
    proxy
        .wait("an answer", || request(at, "GET", "web", "/", &[]).is_ok_and(|answer| answer.status() == 200));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    proxy.wait("the end of the Notice", || control.streams.notices().is_empty());
    let listeners = control.streams.counters()[&ResourceType::Listener];
    assert!(listeners.refused <= 3 && listeners.responses <= 4, "no hot loop: {listeners:?}");
}
