//! Attacks at the edge: paths that a backend reads otherwise, headers that name their own origin, hop-by-hop headers that
//! satisfy a match, tunnels that carry HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Version};
use model::backend::{Backend, BackendTable, ConsumerLocation, ProxyProtocol};
use model::route::{EdgeSettings, TrustedProxies};
use proxy::{ListenerKind, ProxyOptions, ProxyTables};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::harness::*;

/// A gateway on port 8080 with these rules.
async fn edge(rules: Value, settings: ProxyOptions) -> Running {
    let route = json!({"type": "MeshGatewayHTTPRoute", "name": "r",
        "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}});
    let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
    Running::start(gateway(&[route], &listeners), ListenerKind::Gateway { port: 8080 }, settings).await
}

fn to(name: &str) -> Value {
    json!({"backendRefs": [{"kind": "MeshService", "name": name}]})
}

/// `/admin` is forbidden, everything else goes to `app`.
fn guarded() -> Value {
    let forbidden = json!({"filters": [{"type": "DirectResponse", "directResponse": {"status": 403}}]});
    json!([
        {"matches": [{"path": {"type": "Prefix", "value": "/admin"}}], "default": forbidden},
        {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}
    ])
}

/// Paths that some backend reads as `/admin` or below.
const DISGUISED: &[&str] = &[
    "//admin",
    "///admin/x",
    "/%2fadmin",
    "/%2Fadmin",
    "/x%2f..%2fadmin",
    "/x/..%2fadmin",
    "/x%5c..%5cadmin",
    "/%5cadmin",
    r"/x\..\admin",
    r"/\admin",
    r"/admin\x",
    "/x/..;/admin",
    "/x/..;a=b/admin",
    "/x/%2e%2e;/admin",
    "/x/..%3b/admin",
    "/x/../admin",
    "/x/%2e%2e/admin",
    "/./admin",
    "/x//../../admin",
    "/admin%2fx",
    "/admin%5cx",
    "/%61dmin",
    "/admin%%32%66x",
    "/x/%%32e%%32e/admin",
    "/admin%00",
];

#[tokio::test]
async fn a_disguised_path_does_not_pass_a_rule() {
    let running = edge(guarded(), ProxyOptions::default()).await;
    for path in DISGUISED {
        let answer = running.get(path, &[]).await;
        assert!(matches!(answer.status, 307 | 400 | 403), "{path}: {}", answer.status);
        if answer.status == 307 {
            let location = answer.header("location").expect("a location").to_owned();
            assert!(location.starts_with("/admin"), "{path} -> {location}");
            assert_eq!(running.get(&location, &[]).await.status, 403, "{path} -> {location}");
        }
    }
    let mut sender = http2(running.address).await;
    for path in DISGUISED.iter().filter(|path| !path.contains('\\')) {
        sender.ready().await.expect("ready");
        let request = Request::builder().uri(format!("http://svc.test{path}")).version(Version::HTTP_2);
        let answer = sender.send_request(request.body(full(Bytes::new())).expect("a request")).await;
        let status = answer.expect("an answer").status().as_u16();
        assert!(matches!(status, 307 | 400 | 403), "{path} by HTTP/2: {status}");
    }
    let seen: Vec<String> = running.echo("app").seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(seen, [""; 0], "reached the backend");
    for path in ["/administrator", "/x/admin", "/a;v=1/b", "/x..;/y"] {
        assert_eq!(running.get(path, &[]).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn forwarded_headers_of_clients_are_replaced() {
    let running = edge(
        json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}]),
        ProxyOptions::default(),
    )
    .await;
    let lies = [
        ("x-forwarded-for", "6.6.6.6"),
        ("X-Forwarded-For", "7.7.7.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-port", "1"),
        ("x-forwarded-prefix", "/evil"),
        ("forwarded", "for=6.6.6.6"),
        ("x-real-ip", "6.6.6.6"),
        ("x-original-url", "/admin"),
    ];
    assert_eq!(running.get("/", &lies).await.status, 200);
    let headers = running.echo("app").seen().remove(0).headers;
    let lines = |name: &str| {
        headers.get_all(name).iter().map(|line| line.to_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(lines("x-real-ip"), ["127.0.0.1"]);
    assert_eq!(lines("x-forwarded-proto"), ["http"]);
    assert_eq!(lines("x-forwarded-host"), ["svc.test"]);
    let forwarded = lines("forwarded").join("|");
    assert!(
        forwarded.starts_with("for=\"127.0.0.1:") && forwarded.ends_with(";host=\"svc.test\";proto=http"),
        "{forwarded}"
    );
    for name in ["x-forwarded-port", "x-forwarded-prefix", "x-original-url"] {
        assert_eq!(lines(name), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn a_forwarded_header_of_a_client_satisfies_no_match() {
    let inside = json!({"headers": [{"type": "Exact", "name": "x-real-ip", "value": "10.0.0.1"}]});
    let running = edge(
        json!([{"matches": [inside], "default": to("inside")},
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}]),
        ProxyOptions::default(),
    )
    .await;
    assert_eq!(running.get("/", &[("x-real-ip", "10.0.0.1")]).await.json()["backend"], "app");
}

#[tokio::test]
async fn a_hop_by_hop_header_satisfies_no_match() {
    let with = json!({"headers": [{"type": "Present", "name": "authorization"}]});
    let running = edge(
        json!([{"matches": [with], "default": to("inside")},
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}]),
        ProxyOptions::default(),
    )
    .await;
    let headers = [("authorization", "Basic x"), ("connection", "close, Authorization")];
    assert_eq!(running.get("/", &headers).await.json()["backend"], "app");
    assert_eq!(running.get("/", &headers[..1]).await.json()["backend"], "inside");
}

#[tokio::test]
async fn an_upgrade_is_still_matched() {
    let with = json!({"headers": [{"type": "Exact", "name": "upgrade", "value": "websocket"}]});
    let running = edge(
        json!([{"matches": [with], "default": to("sockets")},
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
             "default": {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}}]),
        ProxyOptions::default(),
    )
    .await;
    assert_eq!(running.get("/", &[("upgrade", "websocket"), ("connection", "upgrade")]).await.status, 101);
    // Without Connection it is no upgrade.
    assert_eq!(running.get("/", &[("upgrade", "websocket")]).await.status, 418);
}

#[tokio::test]
async fn a_tunnel_for_http_is_refused() {
    let running = plain().await;
    for protocol in ["h2c", "H2C", "h2", "http/1.1"] {
        let request = || {
            let request =
                Request::builder().method(Method::CONNECT).uri("http://svc.test/").version(Version::HTTP_2);
            let mut request = request.body(full(Bytes::new())).expect("a request");
            request.extensions_mut().insert(hyper::ext::Protocol::from(protocol));
            request
        };
        assert_eq!(extended_connect(running.address, request).await.status(), 501, "{protocol}");
    }
    for protocol in ["h2c", "HTTP/2.0", "websocket, h2c"] {
        let answer = running.get("/", &[("connection", "upgrade"), ("upgrade", protocol)]).await;
        assert_eq!(answer.status, 200, "{protocol}: the request itself is answered");
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_kept_whatever_the_method() {
    let running = plain().await;
    for method in ["GET", "DELETE", "OPTIONS", "POST"] {
        let mut stream = running.connect().await;
        let text = format!(
            "{method} /by1 HTTP/1.1\r\nhost: svc.test\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
        );
        stream.write_all(text.as_bytes()).await.expect("sent");
        let answer = read_answer(&mut stream, method).await.expect("an answer");
        assert_eq!((answer.status, &answer.json()["length"]), (200, &json!(4)), "{method} by HTTP/1.1");
    }
    for method in [Method::GET, Method::DELETE] {
        let mut sender = http2(running.address).await;
        sender.ready().await.expect("ready");
        let request =
            Request::builder().method(method.clone()).uri("http://svc.test/by2").version(Version::HTTP_2);
        let body = unsized_body(&["bo", "dy"]);
        let answer = sender.send_request(request.body(body).expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let seen = running.echo("backend").seen();
        assert_eq!(seen.last().expect("a request").body, "body", "{method} by HTTP/2");
    }
}

#[tokio::test]
async fn a_relative_target_is_400() {
    let running = plain().await;
    for target in ["admin", "admin:80", "admin/x", "?x", "*", "svc.test"] {
        let mut stream = running.connect().await;
        let text = format!("GET {target} HTTP/1.1\r\nhost: svc.test\r\nconnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.expect("sent");
        let answer = read_answer(&mut stream, "GET").await.expect("an answer");
        assert_eq!(answer.status, 400, "{target}");
    }
    assert_eq!(running.echo("backend").seen().len(), 0);
    for target in ["http://svc.test", "http://svc.test/x"] {
        assert_eq!(running.get(target, &[]).await.status, 200, "{target}");
    }
    assert_eq!(running.send("OPTIONS", "*", &[], b"").await.status, 200);
}

/// Everything goes to `app`.
fn open() -> Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}])
}

fn trusting(networks: &[&str], proxy_protocol: bool) -> ProxyOptions {
    let networks = networks.iter().map(|network| network.parse().expect("a network"));
    let trusted_proxies = TrustedProxies::new(networks);
    ProxyOptions {
        edge: EdgeSettings { trusted_proxies, proxy_protocol, ..EdgeSettings::default() },
        ..ProxyOptions::default()
    }
}

/// A request from an address of loopback, with bytes before it.
async fn from(ip: &str, running: &Running, before: &[u8], request: &str) -> Option<Answer> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{ip}:0").parse().expect("an address")).expect("loopback is a /8");
    let mut stream = socket.connect(running.address).await.expect("the proxy listens");
    stream.write_all(before).await.expect("sent");
    let _ = stream.write_all(request.as_bytes()).await;
    read_answer(&mut stream, "GET").await
}

#[tokio::test]
async fn only_trusted_proxies_say_where_a_request_came_from() {
    let running = edge(open(), trusting(&["127.0.0.2/32", "10.0.0.0/8"], false)).await;
    let request = "GET / HTTP/1.1\r\nhost: svc.test\r\nx-forwarded-for: 6.6.6.6, 192.0.2.7, 10.0.0.9\r\n\
        x-forwarded-proto: https\r\nx-forwarded-host: www.example\r\nx-real-ip: 6.6.6.6\r\nforwarded: for=192.0.2.7\r\n\r\n";
    for ip in ["127.0.0.2", "127.0.0.3"] {
        assert_eq!(from(ip, &running, b"", request).await.expect("an answer").status, 200);
    }
    let seen = running.echo("app").seen();
    let line = |i: usize, name: &str| seen[i].headers[name].to_str().expect("text").to_owned();
    assert_eq!(line(0, "x-forwarded-for"), "6.6.6.6, 192.0.2.7, 10.0.0.9,127.0.0.2");
    assert_eq!(
        (line(0, "x-forwarded-proto"), line(0, "x-forwarded-host")),
        ("https".into(), "www.example".into())
    );
    assert_eq!(line(0, "x-real-ip"), "192.0.2.7");
    assert!(line(0, "forwarded").starts_with("for=192.0.2.7,for=\"127.0.0.2:"), "{}", line(0, "forwarded"));
    assert_eq!((line(1, "x-forwarded-for"), line(1, "x-real-ip")), ("127.0.0.3".into(), "127.0.0.3".into()));
    assert_eq!(
        (line(1, "x-forwarded-proto"), line(1, "x-forwarded-host")),
        ("http".into(), "svc.test".into())
    );
}

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\x0f\xa0\x01\xbb";

#[tokio::test]
async fn proxy_protocol_headers_are_required_and_believed_from_trusted_proxies_only() {
    let running = edge(open(), trusting(&["127.0.0.2/32"], true)).await;
    let request = "GET / HTTP/1.1\r\nhost: svc.test\r\nx-forwarded-for: 6.6.6.6\r\n\r\n";
    let v1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n";
    for header in [&v1[..], V2] {
        assert_eq!(from("127.0.0.2", &running, header, request).await.expect("an answer").status, 200);
    }
    // Health checks of the proxy itself.
    assert_eq!(
        from("127.0.0.2", &running, b"PROXY UNKNOWN\r\n", request).await.expect("an answer").status,
        200
    );
    let seen = running.echo("app").seen();
    let line = |i: usize, name: &str| seen[i].headers[name].to_str().expect("text").to_owned();
    for i in [0, 1] {
        // The client is not a trusted proxy: its own header is not believed.
        assert_eq!(
            (line(i, "x-forwarded-for"), line(i, "x-real-ip")),
            ("192.0.2.7".into(), "192.0.2.7".into())
        );
    }
    for (ip, header) in [
        ("127.0.0.3", &v1[..]),
        ("127.0.0.3", V2),
        ("127.0.0.3", b""),
        ("127.0.0.2", b""),
        ("127.0.0.2", b"PROXY TCP4 192.0.2.7\r\n"),
        ("127.0.0.2", b"PROXY TCP4 "),
    ] {
        assert!(
            from(ip, &running, header, request).await.is_none(),
            "{ip} {:?}",
            String::from_utf8_lossy(header)
        );
    }
    assert_eq!(running.echo("app").seen().len(), 3);
}

#[tokio::test]
async fn without_the_setting_a_proxy_protocol_header_is_no_request() {
    let running = edge(open(), trusting(&["127.0.0.2/32"], false)).await;
    let request = "GET / HTTP/1.1\r\nhost: svc.test\r\n\r\n";
    let answer =
        from("127.0.0.2", &running, b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n", request).await;
    assert!(answer.is_none_or(|answer| answer.status == 400));
    assert_eq!(running.echo("app").seen().len(), 0);
}

/// An endpoint that records what each connection begins with, up to the first request, and answers every request.
async fn recording() -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    let starts = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let noted = starts.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let noted = noted.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.ends_with(b"\r\n\r\n") || read.len() < 20 {
                    match stream.read_buf(&mut read).await {
                        Ok(1..) => {}
                        _ => return,
                    }
                }
                let end = read.windows(4).position(|word| word == b"GET ").unwrap_or(read.len());
                noted.lock().expect("no test panics here").push(read[..end].to_vec());
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                // A second request on this connection would be another client's.
                let _ = stream.read_buf(&mut read).await;
            });
        }
    });
    (address, starts)
}

#[tokio::test]
async fn endpoints_that_expect_it_get_a_proxy_protocol_header_for_each_client() {
    let request = "GET / HTTP/1.1\r\nhost: svc.test\r\nconnection: close\r\n\r\n";
    for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
        let (endpoint, starts) = recording().await;
        let route = json!({"type": "MeshGatewayHTTPRoute", "name": "r",
            "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": open()}});
        let routes = gateway(&[route], &json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]));
        let mut backends = BackendTable::new(ConsumerLocation::default());
        for id in routes.backends() {
            let backend = backend(&id, &[(endpoint, 1.0, true)]);
            backends.put(Arc::new(Backend { proxy_protocol: Some(version), ..backend }));
        }
        let tables =
            ProxyTables { routes: Arc::new(routes), backends: Arc::new(backends), ..ProxyTables::default() };
        let settings = trusting(&["127.0.0.2/32"], true);
        let running = Running::with(tables, ListenerKind::Gateway { port: 8080 }, settings).await;
        for header in [
            &b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n"[..],
            b"PROXY TCP4 192.0.2.8 198.51.100.1 4001 443\r\n",
        ] {
            assert_eq!(from("127.0.0.2", &running, header, request).await.expect("an answer").status, 200);
        }
        let starts = starts.lock().expect("no panic").clone();
        let wanted: [&[u8]; 2] = match version {
            ProxyProtocol::V1 => [
                b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n",
                b"PROXY TCP4 192.0.2.8 198.51.100.1 4001 443\r\n",
            ],
            ProxyProtocol::V2 => {
                [V2, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\xc6\x33\x64\x01\x0f\xa1\x01\xbb"]
            }
        };
        assert_eq!(starts, wanted, "{version:?}");
    }
}
