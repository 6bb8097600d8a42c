//! HTTP/1.1: persistent connections, streamed bodies, filters, hop-by-hop headers.

use std::sync::Arc;
use std::time::Duration;

use fixtures::object;
use proxy::{DirectResponseSources, ProxyOptions, ProxyTables};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::harness::*;

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let running = plain().await;
    let mut stream = running.connect().await;
    for at in 0..20 {
        let request = format!("GET /{at} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let answer = read_answer(&mut stream, "GET").await.expect("an answer");
        assert_eq!((answer.status, answer.json()["path"].as_str()), (200, Some(format!("/{at}").as_str())));
    }
    assert_eq!(running.proxy.open_connections(), 1);
}

#[tokio::test]
async fn requests_that_come_together_are_answered_in_order() {
    let running = plain().await;
    let mut stream = running.connect().await;
    let two = b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(two).await.expect("sent");
    for path in ["/1", "/2"] {
        assert_eq!(read_answer(&mut stream, "GET").await.expect("an answer").json()["path"], path);
    }
}

#[tokio::test]
async fn long_bodies_arrive_whole_both_ways() {
    let running = plain().await;
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let answer = running.send("POST", "/", &[("x-body-back", "1")], &body).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == body, "the body came back changed");
}

#[tokio::test]
async fn chunks_pass_with_their_trailers() {
    let running = plain().await;
    let mut stream = running.connect().await;
    let request = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\
        te: trailers\r\nx-trailers: 1\r\nx-echo-trailer: grpc-status, x-sum\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n";
    stream.write_all(request).await.expect("sent");
    let answer = read_answer(&mut stream, "POST").await.expect("an answer");
    let seen = running.echo("backend").seen().remove(0);
    assert_eq!(seen.body, "abc");
    assert_eq!(seen.trailers.expect("trailers")["x-sum"], "7");
    assert_eq!(answer.trailers["grpc-status"], "0");
}

/// An endpoint that does what it is told with each connection.
async fn endpoint<F, W>(serve: F) -> std::net::SocketAddr
where
    F: Fn(tokio::net::TcpStream) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A sidecar whose `backend` is at this address.
pub async fn with_endpoint(address: std::net::SocketAddr, settings: ProxyOptions) -> Running {
    let routes = sidecar(&[], &["backend"], "frontend");
    let endpoints = [("backend".to_owned(), vec![(address, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    Running::with(tables, to_backend(), settings).await
}

async fn read_head(stream: &mut tokio::net::TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

#[tokio::test]
async fn an_answer_streams_while_it_is_made() {
    let address = endpoint(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            .await
            .expect("sent");
        // The rest comes only when the client has the first part, and says so in its body.
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("more of the request");
        stream.write_all(b"4\r\nlast\r\n0\r\n\r\n").await.expect("sent");
    })
    .await;
    let running = with_endpoint(address, ProxyOptions::default()).await;
    let mut stream = running.connect().await;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n").await.expect("sent");
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut first = [0; 10];
    stream.read_exact(&mut first).await.expect("the first chunk");
    assert_eq!(&first, b"5\r\nfirst\r\n");
    stream.write_all(b"x").await.expect("sent");
    let mut last = [0; 14];
    stream.read_exact(&mut last).await.expect("the last chunk");
    assert_eq!(&last, b"4\r\nlast\r\n0\r\n\r\n");
}

#[tokio::test]
async fn who_expects_100_gets_it_before_the_body_is_sent() {
    let running = plain().await;
    let mut stream = running.connect().await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head).await.expect("sent");
    let interim = read_answer(&mut stream, "POST").await.expect("an interim answer");
    assert_eq!(interim.status, 100);
    stream.write_all(b"ok").await.expect("sent");
    let answer = read_answer(&mut stream, "POST").await.expect("an answer");
    assert_eq!((answer.status, answer.json()["length"].as_u64()), (200, Some(2)));
    assert!(!running.echo("backend").seen()[0].headers.contains_key("expect"));
}

#[tokio::test]
async fn what_is_for_one_connection_does_not_pass() {
    let running = plain().await;
    let headers = [
        ("connection", "keep-alive, x-hop, host"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers, deflate"),
        ("x-end", "kept"),
        ("x-echo-connection", "x-gone"),
        ("x-echo-x-gone", "1"),
        ("x-echo-keep-alive", "timeout=1"),
        ("x-echo-x-stays", "1"),
    ];
    let answer = running.get("/", &headers).await;
    let seen = running.echo("backend").seen().remove(0);
    for name in ["x-hop", "keep-alive", "proxy-connection", "connection"] {
        assert!(!seen.headers.contains_key(name), "{name}: {:?}", seen.headers);
    }
    assert_eq!(seen.headers["te"], "trailers");
    assert_eq!(seen.headers["x-end"], "kept");
    assert_eq!(seen.host, "svc.test");
    assert_eq!(answer.header("x-stays"), Some("1"));
    assert!(answer.header("x-gone").is_none() && answer.header("keep-alive").is_none());
}

#[tokio::test]
async fn answers_without_a_body_do_not_hold_the_connection_up() {
    let running = plain().await;
    let mut stream = running.connect().await;
    for (method, status) in [("HEAD", "200"), ("GET", "204"), ("GET", "304"), ("GET", "200")] {
        let request = format!("{method} / HTTP/1.1\r\nhost: a\r\nx-status: {status}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let answer = read_answer(&mut stream, method).await.expect("an answer");
        assert_eq!(answer.status.to_string(), status);
    }
}

#[tokio::test]
async fn an_absolute_address_goes_before_the_host_header() {
    let running = plain().await;
    let answer = running.get("http://real.test:81/x?y", &[("host", "other.test")]).await;
    assert_eq!(answer.status, 200);
    let seen = running.echo("backend").seen().remove(0);
    assert_eq!((seen.host.as_str(), seen.path.as_str()), ("real.test:81", "/x?y"));
}

#[tokio::test]
async fn clients_of_http_1_0_are_served_and_left() {
    let running = plain().await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET /old HTTP/1.0\r\n\r\n").await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer, then the end");
    assert!(text.starts_with("HTTP/1.0 200") || text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(!text.contains("chunked"), "{text}");
}

#[tokio::test]
async fn paths_are_sent_on_in_the_form_that_was_matched() {
    let running = plain().await;
    running.get("/a/../admin/%7euser?q=%7e", &[]).await;
    assert_eq!(running.echo("backend").seen()[0].path, "/admin/~user?q=%7e");
}

#[tokio::test]
async fn trace_headers_pass_unchanged() {
    let running = plain().await;
    let trace = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1"),
        ("x-request-id", "42"),
        ("b3", "1-2-1"),
        ("baggage", "k=v"),
    ];
    running.get("/", &trace).await;
    let seen = running.echo("backend").seen().remove(0);
    for (name, value) in trace {
        assert_eq!(seen.headers[name], value);
    }
}

#[tokio::test]
async fn host_path_and_headers_are_rewritten_together() {
    let running = with_rules(
        json!([{"matches": [{"path": {"type": "Prefix", "value": "/v1"}}], "default": {
            "filters": [
                {"type": "URLRewrite", "urlRewrite": {"hostname": "new.test", "path": {"replacePrefixMatch": "/v2"}}},
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "X-A", "value": "1"}]}},
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"add": [{"name": "x-b", "value": "2"}]}}],
            "backendRefs": [{"kind": "MeshService", "name": "h2-other"}]}}]),
        ProxyOptions::default(),
    )
    .await;
    let answer = running.get("/v1/x?q", &[("x-a", "0")]).await;
    assert_eq!((answer.status, answer.header("x-b")), (200, Some("2")));
    let seen = running.echo("h2-other").seen().remove(0);
    assert_eq!((seen.host.as_str(), seen.path.as_str()), ("new.test", "/v2/x?q"));
    assert_eq!(seen.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1"]);
}

fn respond(body: serde_json::Value) -> serde_json::Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {"filters": [
        {"type": "DirectResponse", "directResponse": {"status": 203, "body": body}},
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-b", "value": "2"}]}}]}}])
}

#[tokio::test]
async fn direct_responses_come_from_what_the_operator_allows() {
    let file = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let direct_response_sources = DirectResponseSources {
        files: [file.clone().into()].into(),
        variables: ["CARGO_PKG_NAME".to_owned()].into(),
    };
    let settings = ProxyOptions { direct_response_sources, ..ProxyOptions::default() };
    for (body, text) in [
        (json!({"inlineString": "short"}), "short".to_owned()),
        (json!({"inlineBytes": "AAE="}), "\0\u{1}".to_owned()),
        (json!({"filename": file}), std::fs::read_to_string(&file).expect("this crate's manifest")),
        (json!({"environmentVariable": "CARGO_PKG_NAME"}), "proxy".to_owned()),
    ] {
        let running = with_rules(respond(body), settings.clone()).await;
        let answer = running.get("/", &[]).await;
        assert_eq!((answer.status, answer.header("x-b")), (203, Some("2")));
        assert_eq!(String::from_utf8_lossy(&answer.body), text);
    }
}

#[tokio::test]
async fn what_the_operator_does_not_allow_is_500_and_a_notice() {
    for body in [json!({"filename": "/etc/passwd"}), json!({"environmentVariable": "HOME"})] {
        let route = json!({"type": "MeshHTTPRoute", "name": "r", "spec": {"targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": respond(body)}]}});
        let running = plain().await;
        let routes = Arc::new(sidecar(&[route], &["backend"], "frontend"));
        let notices = running.proxy.swap(ProxyTables { routes, ..ProxyTables::default() });
        assert_eq!(notices.len(), 1);
        assert_eq!(notices[0].object.to_string(), "MeshHTTPRoute default/r");
        assert!(notices[0].message.contains("is not allowed"), "{}", notices[0].message);
        let answer = running.get("/", &[]).await;
        assert_eq!((answer.status, &answer.body[..]), (500, &b"the body of the response cannot be read"[..]));
    }
}

#[tokio::test]
async fn a_pattern_is_hit_before_the_implied_catch_all() {
    let rules = json!([{"matches": [{"path": {"type": "RegularExpression", "value": "/v[0-9]+/.*"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "numbered"}]}}]);
    let running = with_rules(rules, ProxyOptions::default()).await;
    assert_eq!(running.get("/v7/items", &[]).await.json()["backend"], "numbered");
    assert_eq!(running.get("/other", &[]).await.json()["backend"], "backend");
}

#[tokio::test]
async fn a_client_of_another_namespace_obeys_the_owner_of_a_service_and_no_third_namespace() {
    let to_other = |path: &str| {
        json!({"targetRef": {"kind": "Mesh"}, "to": [{
            "targetRef": {"kind": "MeshService", "name": "backend", "namespace": "default"},
            "rules": [{"matches": [{"path": {"type": "Prefix", "value": path}}],
                "default": {"backendRefs": [{"kind": "MeshService", "name": "other"}]}}]}]})
    };
    let owners = json!({"type": "MeshHTTPRoute", "name": "owner", "spec": to_other("/owners")});
    let mut world = snapshot(&[owners], &["backend"], None);
    let thirds = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "third", "name": "other"},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}}),
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
            "metadata": {"namespace": "third", "name": "third"}, "spec": to_other("/thirds")}),
    ];
    for value in &thirds {
        world.apply(object(value));
    }
    let client = plan::routes::MeshClient {
        namespace: "far".into(),
        services: Vec::new(),
        tags: model::Labels::EMPTY,
    };
    let (routes, _) = plan::routes::sidecar(&world, &client);
    let running = Running::start(routes, to_backend(), ProxyOptions::default()).await;
    assert_eq!(running.get("/owners", &[]).await.json()["backend"], "other");
    assert_eq!(running.get("/thirds", &[]).await.json()["backend"], "backend");
}

#[tokio::test]
async fn a_bare_slash_becomes_the_replacement_of_the_prefix() {
    let rules = json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {
        "filters": [{"type": "URLRewrite", "urlRewrite": {"path": {"replacePrefixMatch": "/root"}}}]}}]);
    let running = with_rules(rules, ProxyOptions::default()).await;
    for (path, wanted) in [("/", "/root"), ("/?q=1", "/root?q=1"), ("/x", "/root/x")] {
        assert_eq!(running.get(path, &[]).await.json()["path"], wanted);
    }
}

#[tokio::test]
async fn errors_of_the_proxy_have_a_short_text() {
    let route = json!({"type": "MeshGatewayHTTPRoute", "name": "g", "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [
        {"matches": [{"path": {"prefix": "/lost"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "missing"}]}},
        {"matches": [{"path": {"prefix": "/empty"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "empty"}]}}]}});
    let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
    let routes = gateway(&[route], &listeners);
    let backends = Arc::new(backends(&routes, &[].into()));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    let running =
        Running::with(tables, proxy::ListenerKind::Gateway { port: 8080 }, ProxyOptions::default()).await;
    for (path, status, text) in [
        ("/nowhere", 404, "no route for this host and path"),
        ("/lost", 500, "a backend of the route cannot be resolved"),
        ("/empty", 503, "no endpoint of the backend is available"),
    ] {
        let answer = running.get(path, &[]).await;
        assert_eq!((answer.status, String::from_utf8_lossy(&answer.body).as_ref()), (status, text));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        let head = running.send("HEAD", path, &[], b"").await;
        assert_eq!(
            (head.status, head.header("content-length")),
            (status, Some(text.len().to_string().as_str()))
        );
        let mut sender = http2(running.address).await;
        let request =
            http::Request::head(format!("http://svc.test{path}")).body(full("")).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        assert_eq!(response.status(), status);
        let body =
            http_body_util::BodyExt::collect(response.into_body()).await.expect("no frame that HEAD forbids");
        assert!(body.to_bytes().is_empty());
    }
}

#[tokio::test]
async fn a_mirror_gets_the_body_and_its_answer_is_dropped() {
    let running = with_rules(
        json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {
            "filters": [
                {"type": "RequestMirror", "requestMirror": {"backendRef": {"kind": "MeshService", "name": "copy"}}},
                {"type": "RequestMirror", "requestMirror": {
                    "backendRef": {"kind": "MeshService", "name": "never"}, "percentage": 0}},
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-a", "value": "1"}]}}],
            "backendRefs": [{"kind": "MeshService", "name": "backend"}]}}]),
        ProxyOptions::default(),
    )
    .await;
    let body = vec![b'x'; 200_000];
    let answer = running.send("POST", "/p", &[("host", "svc.test:80")], &body).await;
    assert_eq!((answer.status, answer.json()["backend"].as_str()), (200, Some("backend")));
    let copy = running.echo("copy").wait_for(1).await.remove(0);
    assert_eq!((copy.host.as_str(), copy.path.as_str()), ("svc.test-shadow:80", "/p"));
    assert_eq!(copy.headers["x-a"], "1");
    assert_eq!(copy.body.len(), body.len());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(running.echo("never").seen().is_empty());
}

fn mirrored() -> model::RouteTable {
    let route = json!({"type": "MeshHTTPRoute", "name": "r", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {
                "filters": [{"type": "RequestMirror",
                    "requestMirror": {"backendRef": {"kind": "MeshService", "name": "copy"}}}],
                "backendRefs": [{"kind": "MeshService", "name": "backend"}]}}]}]}});
    sidecar(&[route], &["backend"], "frontend")
}

#[tokio::test]
async fn a_mirror_that_is_not_there_changes_nothing() {
    let running = Running::start(mirrored(), to_backend(), ProxyOptions::default()).await;
    // Nobody listens on the discard port here.
    let dead = "127.0.0.1:9".parse().expect("an address");
    let routes = mirrored();
    for copies in [vec![], vec![(dead, 1.0, true)]] {
        let own = vec![(running.echo("backend").address, 1.0, true)];
        let endpoints = [("backend".to_owned(), own), ("copy".to_owned(), copies)].into();
        let backends = Arc::new(backends(&routes, &endpoints));
        running.proxy.swap(ProxyTables {
            routes: Arc::new(routes.clone()),
            backends,
            ..ProxyTables::default()
        });
        for _ in 0..3 {
            assert_eq!(running.send("POST", "/", &[], b"body").await.status, 200);
        }
    }
}
