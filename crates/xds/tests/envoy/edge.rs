//! The edge, as the embedded proxy and a real Envoy have it: paths, forwarded headers, PROXY protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::backend::{Backend, BackendTable, ConsumerLocation, ProxyProtocol};
use model::route::{EdgeSettings, TrustedProxies};
use serde_json::{Value, json};
use xds::render::{RenderInput, render};

use crate::differential::embedded;
use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log, Message};
use crate::process::Envoy;
use crate::world::{Places, gateway_input, snapshot};
use toolbox::ports::free_port;

/// An Envoy and the embedded proxy with the same tables and settings.
struct Both {
    envoy: SocketAddr,
    ours: SocketAddr,
    runtime: tokio::runtime::Runtime,
    process: Envoy,
    _control: Control,
}

impl Both {
    fn start(rules: Value, edge: EdgeSettings, endpoint: SocketAddr, expects: Option<ProxyProtocol>) -> Self {
        let at = free_port();
        let route = json!({"type": "MeshGatewayHTTPRoute", "name": "r",
            "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}});
        let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
        let world = snapshot("ns", &[route], &[], &listeners);
        let places: Places =
            ["app", "inside"].map(|name| (name.to_owned(), vec![(endpoint, "a", 1.0)])).into();
        let mut input =
            RenderInput { edge: Arc::new(edge), ..gateway_input(&world, "ns", &[(8080, at)], &places) };
        let mut backends = BackendTable::new(ConsumerLocation::default());
        for backend in input.tiers[0].backends() {
            backends.put(Arc::new(Backend { proxy_protocol: expects, ..Backend::clone(backend) }));
        }
        input.tiers = vec![Arc::new(backends)];
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ours = embedded(&runtime, "ns", &input);
        let rendered = render(input, None);
        assert_eq!(rendered.notices, []);
        let control = Control::start(&rendered.resources);
        let process = envoy(&bootstrap(control.address));
        process.wait_for(at);
        assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
        Self { envoy: at, ours, runtime, process, _control: control }
    }

    fn sides(&self) -> [(&'static str, SocketAddr); 2] {
        [("envoy", self.envoy), ("ours", self.ours)]
    }

    /// A connection from an address of loopback.
    fn connect(&self, ip: &str, to: SocketAddr) -> TcpStream {
        let stream = self.runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
            socket.connect(to).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Sends bytes; `None` if the connection is closed without an answer.
    fn exchange(&self, ip: &str, to: SocketAddr, bytes: &[u8]) -> Option<Message> {
        let mut stream = self.connect(ip, to);
        stream.write_all(bytes).ok()?;
        Message::read(&mut std::io::BufReader::new(stream), false).ok().flatten()
    }
}

fn trusting(network: &str, proxy_protocol: bool) -> EdgeSettings {
    let trusted_proxies = TrustedProxies::new([network.parse().unwrap()]);
    EdgeSettings { trusted_proxies, proxy_protocol, ..EdgeSettings::default() }
}

fn to(name: &str) -> Value {
    json!({"backendRefs": [{"kind": "MeshService", "name": name}]})
}

fn open() -> Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}])
}

/// `/admin` is forbidden, everything else goes to `app`.
fn guarded() -> Value {
    let forbidden = json!({"filters": [{"type": "DirectResponse", "directResponse": {"status": 403}}]});
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/admin"}}], "default": forbidden},
        {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": to("app")}])
}

#[test]
fn a_disguised_path_passes_neither_proxy_and_both_answer_the_same() {
    let log = Log::default();
    let echo = Echo::start("app", &log);
    let both = Both::start(guarded(), EdgeSettings::default(), echo.address, None);
    for path in [
        "//admin",
        "/%2fadmin",
        "/x%2f..%2fadmin",
        "/x%5C..%5cadmin",
        r"/x\..\admin",
        r"/\admin",
        "/x/..;/admin",
        "/x/..;a=b/admin",
        "/x/%2e%2e;/admin",
        "/x/..%3b/admin",
        "/admin%2fx",
        "/%61dmin?a=%2f",
        "/x//../../admin",
        "/admin%00",
        "//",
        "/x/..//?a=b",
    ] {
        let mut answers = Vec::new();
        for (side, at) in both.sides() {
            let answer = Connection::open(at).unwrap().send("GET", "a.example", path, &[]).unwrap();
            assert!(matches!(answer.status(), 307 | 400 | 403), "{side} {path}: {}", answer.status());
            answers.push((answer.status(), answer.header("location").map(str::to_owned)));
        }
        assert_eq!(answers[0], answers[1], "{path}");
    }
    assert!(log.lock().unwrap().is_empty(), "a request reached the backend");
    for path in ["/administrator", "/a;v=1/b", "/a//b", "/x/../y", "/x?a=%2f..;//"] {
        let mut answers = Vec::new();
        for (_, at) in both.sides() {
            let answer = Connection::open(at).unwrap().send("GET", "a.example", path, &[]).unwrap();
            answers.push((answer.status(), answer.json()["path"].clone()));
        }
        assert_eq!(answers[0], answers[1], "{path}; Envoy says: {}", both.process.log());
        assert_eq!(answers[0].0, 200, "{path}");
    }
}

/// The forwarded headers that a backend received, without the client's port.
fn forwarded(answer: &Message) -> Vec<(String, String)> {
    let echoed = answer.json();
    let mut found: Vec<(String, String)> = Vec::new();
    for pair in echoed["headers"].as_array().unwrap() {
        let [name, value] = [0, 1].map(|i| pair[i].as_str().unwrap().to_owned());
        let is_ours =
            ["x-forwarded-", "forwarded", "x-real-ip", "x-original-url"].iter().any(|p| name.starts_with(p));
        if is_ours {
            // `for="127.0.0.2:40000"`
            let words: Vec<&str> = value
                .split('"')
                .map(|word| match word.parse::<SocketAddr>() {
                    Ok(_) => word.split(':').next().unwrap(),
                    Err(_) => word,
                })
                .collect();
            let value = words.join("\"");
            match found.iter_mut().find(|(n, _)| *n == name) {
                Some((_, held)) => *held = format!("{held},{value}"),
                None => found.push((name, value)),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn forwarded_headers_are_the_same_from_both() {
    let log = Log::default();
    let echo = Echo::start("app", &log);
    let both = Both::start(open(), trusting("127.0.0.2/32", false), echo.address, None);
    let plain = "GET / HTTP/1.1\r\nhost: a.example\r\n\r\n".to_owned();
    let lying = "GET / HTTP/1.1\r\nhost: a.example\r\nx-forwarded-for: 6.6.6.6, 192.0.2.7\r\nx-forwarded-proto: https\r\n\
        x-forwarded-host: www.example\r\nforwarded: for=192.0.2.7\r\nx-real-ip: 6.6.6.6\r\n\r\n".to_owned();
    let more = lying.replace("x-real-ip", "x-forwarded-port: 1\r\nx-original-url: /admin\r\nx-real-ip");
    for (ip, request) in [
        ("127.0.0.1", &plain),
        ("127.0.0.1", &more),
        ("127.0.0.2", &plain),
        ("127.0.0.2", &lying),
        ("127.0.0.2", &lying.replace("192.0.2.7\r\nx-forwarded-proto", "127.0.0.2\r\nx-forwarded-proto")),
    ] {
        let [there, here] =
            both.sides().map(|(_, at)| forwarded(&both.exchange(ip, at, request.as_bytes()).unwrap()));
        assert_eq!(there, here, "{ip}: {request}");
        let client = here.iter().find(|(name, _)| name == "x-forwarded-for").unwrap();
        match ip {
            "127.0.0.1" => assert_eq!((client.1.as_str(), here.len()), ("127.0.0.1", 5), "{here:?}"),
            _ => assert!(client.1.ends_with("127.0.0.2"), "{client:?}"),
        }
    }
}

#[test]
fn a_hop_by_hop_header_satisfies_no_match_of_either() {
    let log = Log::default();
    let echo = Echo::start("app", &log);
    let with = json!({"headers": [{"type": "Present", "name": "authorization"}]});
    let forbidden = json!({"filters": [{"type": "DirectResponse", "directResponse": {"status": 403}}]});
    let rules = json!([{"matches": [with], "default": to("inside")},
        {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": forbidden}]);
    let both = Both::start(rules, EdgeSettings::default(), echo.address, None);
    for (side, at) in both.sides() {
        let answer = |connection: &str| {
            let request = format!(
                "GET / HTTP/1.1\r\nhost: a.example\r\nauthorization: x\r\nconnection: {connection}\r\n\r\n"
            );
            both.exchange("127.0.0.1", at, request.as_bytes()).unwrap().status()
        };
        assert_eq!((answer("keep-alive"), answer("keep-alive, Authorization")), (200, 403), "{side}");
    }
}

/// An endpoint that records what each connection has before its request.
fn recording() -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let starts = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let noted = starts.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let noted = noted.clone();
            std::thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                let (mut read, mut byte) = (Vec::new(), [0]);
                while !(read.ends_with(b"\r\n\r\n") && read.windows(4).any(|word| word == b"GET ")) {
                    if !matches!(stream.read(&mut byte), Ok(1)) {
                        return;
                    }
                    read.push(byte[0]);
                }
                let end = read.windows(4).position(|word| word == b"GET ").unwrap();
                noted.lock().unwrap().push(read[..end].to_vec());
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            });
        }
    });
    (address, starts)
}

#[test]
fn proxy_protocol_is_read_and_written_by_both() {
    let request = b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n";
    let v1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n";
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\x0f\xa0\x01\xbb";
    for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
        let (endpoint, starts) = recording();
        let both = Both::start(open(), trusting("127.0.0.2/32", true), endpoint, Some(version));
        for (side, at) in both.sides() {
            starts.lock().unwrap().clear();
            for header in [&v1[..], v2] {
                let answer = both.exchange("127.0.0.2", at, &[header, request].concat());
                let status = answer.map(|answer| answer.status());
                assert_eq!(status, Some(200), "{side}; Envoy says: {}", both.process.log());
            }
            let wanted = if version == ProxyProtocol::V1 { &v1[..] } else { v2 };
            assert_eq!(*starts.lock().unwrap(), [wanted, wanted], "{side} {version:?}");
            for (ip, header) in [("127.0.0.3", &v1[..]), ("127.0.0.3", b""), ("127.0.0.2", b"")] {
                let answer = both.exchange(ip, at, &[header, request].concat());
                assert!(answer.is_none(), "{side} {ip}: {answer:?}");
            }
            assert_eq!(starts.lock().unwrap().len(), 2, "{side}");
        }
    }
}
