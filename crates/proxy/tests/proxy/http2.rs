//! HTTP/2 without TLS on both sides: streams, gRPC trailers, and translation between the two versions.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use proxy::{ListenerKind, ProxyOptions};

use super::harness::*;

async fn outbound(name: &str) -> Running {
    let routes = sidecar(&[], &[name], "frontend");
    Running::start(routes, ListenerKind::Outbound { service: key(name), port: 80 }, ProxyOptions::default())
        .await
}

fn post(path: &str) -> http::request::Builder {
    Request::builder().method("POST").uri(format!("http://svc.test{path}")).version(Version::HTTP_2)
}

#[tokio::test]
async fn many_streams_share_one_connection_each_way() {
    let running = outbound("h2-backend").await;
    let sender = http2(running.address).await;
    let mut tasks = Vec::new();
    for at in 0..64 {
        let mut sender = sender.clone();
        tasks.push(tokio::spawn(async move {
            let request = post(&format!("/{at}")).body(full(vec![b'x'; at])).expect("a request");
            let response = sender.send_request(request).await.expect("an answer");
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let json: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(json["length"].as_u64(), Some(at as u64));
        }));
    }
    for task in tasks {
        task.await.expect("answered");
    }
    assert_eq!(running.proxy.open_connections(), 1);
    assert_eq!(running.echo("h2-backend").seen().len(), 64);
}

#[tokio::test]
async fn grpc_has_its_trailers_both_ways() {
    let running = outbound("grpc-backend").await;
    let mut sender = http2(running.address).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let frames = [Frame::data(Bytes::from_static(b"message")), Frame::trailers(trailers)];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok))).boxed();
    let request = post("/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-trailers", "1")
        .body(body)
        .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    let collected = response.into_body().collect().await.expect("a body");
    let got = collected.trailers().expect("trailers");
    assert_eq!(
        (&got["grpc-status"], &got["x-sum"]),
        (&HeaderValue::from_static("0"), &HeaderValue::from_static("7"))
    );
    let seen = running.echo("grpc-backend").seen().remove(0);
    assert_eq!((seen.host.as_str(), &seen.body[..]), ("svc.test", &b"message"[..]));
    assert_eq!(seen.headers["te"], "trailers");
    assert!(!seen.headers.contains_key("host"));
}

#[tokio::test]
async fn errors_of_ours_are_grpcs_own_for_its_clients() {
    let running = outbound("grpc-backend").await;
    let empty = proxy::ProxyTables {
        routes: std::sync::Arc::new(sidecar(&[], &["grpc-backend"], "frontend")),
        ..proxy::ProxyTables::default()
    };
    running.proxy.swap(empty);
    let mut sender = http2(running.address).await;
    let request =
        post("/").header("content-type", "application/grpc+proto").body(full("")).expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &HeaderValue::from_static("14"))
    );
}

#[tokio::test]
async fn http1_clients_reach_http2_endpoints() {
    let running = outbound("h2-backend").await;
    let answer = running.send("POST", "/x?y", &[("host", "svc.test:8080")], b"body").await;
    assert_eq!((answer.status, answer.json()["length"].as_u64()), (200, Some(4)));
    let seen = running.echo("h2-backend").seen().remove(0);
    assert_eq!((seen.host.as_str(), seen.path.as_str()), ("svc.test:8080", "/x?y"));
}

#[tokio::test]
async fn http2_clients_reach_http1_endpoints() {
    let running = outbound("backend").await;
    let mut sender = http2(running.address).await;
    let request =
        post("/x?y").header("cookie", "a=1").header("cookie", "b=2").body(full("body")).expect("one");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    let seen = running.echo("backend").seen().remove(0);
    assert_eq!((seen.host.as_str(), seen.path.as_str(), &seen.body[..]), ("svc.test", "/x?y", &b"body"[..]));
    // RFC 9113, 8.2.3: one line for a version that knows but one.
    assert_eq!(seen.headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
}

#[tokio::test]
async fn a_client_that_gives_up_a_stream_leaves_the_others_alone() {
    let running = outbound("h2-backend").await;
    let mut sender = http2(running.address).await;
    let slow = post("/slow").header("x-delay", "5000").body(full("")).expect("a request");
    let given_up = sender.send_request(slow);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(100), given_up).await.is_err());
    let response =
        sender.send_request(post("/").body(full("")).expect("a request")).await.expect("an answer");
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_host_that_differs_from_the_authority_is_refused() {
    let running = outbound("backend").await;
    let mut sender = http2(running.address).await;
    let request = post("/").header("host", "other.test").body(full("")).expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 400);
}
