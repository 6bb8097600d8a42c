//! Attacks on the bounds of the proxy: the attackers are refused or closed, and another client gets all its answers.
//!
//! Each attack comes from 16 sources (loopback addresses), from one source, and from the address of the other client,
//! where shares hold per connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use fixtures::eventually_async;
use model::route::{EdgeSettings, TrustedProxies};
use proxy::{CircuitBreakerLimits, ListenerKind, ProxyLimits, ProxyOptions, ProxyTables, ProxyTimeouts};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::harness::*;
use super::http2_frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE, block, frame};

/// The address of the client that must get its answers.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const LONG: usize = 1 << 20;
/// More than the kernel buffers.
const HUGE: usize = 64 << 20;

/// Where attackers come from.
#[derive(Clone, Copy, Debug)]
enum From {
    One,
    Sixteen,
    TheSameAddress,
}

impl From {
    fn address(self, at: usize) -> Ipv4Addr {
        match self {
            Self::One => Ipv4Addr::new(127, 0, 0, 2),
            Self::Sixteen => Ipv4Addr::new(127, 0, 0, 2 + (at % 16) as u8),
            Self::TheSameAddress => OTHER,
        }
    }
}

/// Answers `/short`, a long text for `/long`, and never for `/hang`. It keeps nothing.
async fn endpoint() -> SocketAddr {
    static TEXT: [u8; 16 << 10] = [b'x'; 16 << 10];
    let listener = TcpSocket::new_v4().expect("loopback");
    listener.bind("127.0.0.1:0".parse().expect("loopback")).expect("loopback");
    let listener: TcpListener = listener.listen(4096).expect("loopback");
    let address = listener.local_addr().expect("loopback");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut head).await {
                    let length = match &head[..count] {
                        head if head.starts_with(b"GET /long") => LONG,
                        head if head.starts_with(b"GET /huge") => HUGE,
                        head if head.starts_with(b"GET /hang") => {
                            // Until the proxy closes.
                            let _ = stream.read_u8().await;
                            return;
                        }
                        head if head.starts_with(b"POST") => {
                            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                            return;
                        }
                        _ => 5,
                    };
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let mut left = length;
                    while left > 0 {
                        let part = left.min(TEXT.len());
                        if stream.write_all(&TEXT[..part]).await.is_err() {
                            return;
                        }
                        left -= part;
                    }
                }
            });
        }
    });
    address
}

async fn running(settings: ProxyOptions) -> Arc<Running> {
    let routes = sidecar(&[], &["backend"], "frontend");
    let endpoints = [("backend".to_owned(), vec![(endpoint().await, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    Arc::new(Running::with(tables, to_backend(), settings).await)
}

async fn connect(running: &Running, from: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from.into(), 0))?;
    let stream = socket.connect(running.address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What the other client got: answers, and all that was no whole answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    whole: usize,
    failed: Vec<String>,
}

/// The other client: a connection for each request, every fourth answer is long.
async fn other_client(running: &Running, count: usize) -> Answers {
    let mut answers = Answers::default();
    for at in 0..count {
        let (path, length) = if at % 4 == 3 { ("/long", LONG) } else { ("/short", 5) };
        let mut stream = connect(running, OTHER).await.expect("the proxy listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        match tokio::time::timeout(ANSWER_PATIENCE, read_answer(&mut stream, "GET")).await {
            Ok(Some(answer)) if answer.status == 200 && answer.body.len() == length => answers.whole += 1,
            Ok(Some(answer)) => {
                let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(80)]).into_owned();
                answers.failed.push(format!("{path}: {} {body}", answer.status));
            }
            Ok(None) => answers.failed.push(format!("{path}: closed")),
            Err(_) => answers.failed.push(format!("{path}: no answer in time")),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    answers
}

/// An attack that goes on until it is dropped: connections that are closed come again.
struct Attack {
    _tasks: JoinSet<()>,
    closed: Arc<AtomicUsize>,
}

impl Attack {
    fn start<F: Future<Output = ()> + Send>(
        connections: usize,
        attacker: impl Fn(usize) -> F + Send + Sync + Clone + 'static,
    ) -> Self {
        let (mut tasks, closed) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for at in 0..connections {
            let (attacker, closed) = (attacker.clone(), closed.clone());
            tasks.spawn(async move {
                loop {
                    attacker(at).await;
                    closed.fetch_add(1, Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
        Self { _tasks: tasks, closed }
    }
}

/// HTTP/2 streams whose requests are sent at once; windows open by `window` bytes at a time, until the proxy closes.
async fn http2_streams(running: Arc<Running>, from: Ipv4Addr, streams: u32, path: &str, window: Option<u8>) {
    let Ok(mut stream) = connect(&running, from).await else { return };
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let head = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a")];
    for id in (0..streams).map(|at| at * 2 + 1) {
        bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, id, &block(&head)));
    }
    if stream.write_all(&bytes).await.is_err() {
        return;
    }
    let (mut read, mut write) = stream.split();
    let reading = async {
        let mut buffer = [0; 4096];
        while let Ok(1..) = read.read(&mut buffer).await {}
    };
    let opening = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let Some(window) = window else { continue };
            let update = |at| frame(WINDOW_UPDATE, 0, at * 2 + 1, &[0, 0, 0, window]);
            let updates: Vec<u8> = (0..streams).flat_map(update).collect();
            if write.write_all(&updates).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = reading => {}
        () = opening => {}
    }
}

const HELD: usize = 4 << 20;

/// 24 connections with 16 streams each, for which six times the bound would be held.
async fn slow_windows(from: From) {
    let limits = ProxyLimits { held_body_bytes: HELD, ..ProxyLimits::default() };
    let running = running(ProxyOptions { limits, ..ProxyOptions::default() }).await;
    let proxy = running.clone();
    let attack =
        Attack::start(24, move |at| http2_streams(proxy.clone(), from.address(at), 16, "/long", Some(1)));
    eventually_async("nothing is evicted", async || metric_sum(&running, "evictions_total", "bodies") > 0)
        .await;
    let most = Arc::new(AtomicUsize::new(0));
    let (watched, seen) = (running.clone(), most.clone());
    let watch = tokio::spawn(async move {
        loop {
            seen.fetch_max(metric_sum(&watched, "held_body_bytes", "") as usize, Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let answers = other_client(&running, 40).await;
    watch.abort();
    assert_eq!(answers, Answers { whole: 40, failed: Vec::new() }, "{from:?}");
    assert!(metric_sum(&running, "evictions_total", "bodies") > 0, "nothing was evicted");
    assert!(attack.closed.load(Relaxed) > 0, "no attacker was closed");
    let most = most.load(Relaxed);
    println!("{from:?}: at most {most} bytes held, {} attackers closed", attack.closed.load(Relaxed));
    assert!(most <= HELD + HELD / 4, "{most} bytes were held");
    drop(attack);
    eventually_async("bytes are held for clients that are gone", async || {
        metric_sum(&running, "held_body_bytes", "") == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_windows_of_one_source_do_not_refuse_others() {
    slow_windows(From::One).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_windows_of_16_sources_do_not_refuse_others() {
    slow_windows(From::Sixteen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_windows_behind_one_address_do_not_refuse_other_connections() {
    slow_windows(From::TheSameAddress).await;
}

/// HTTP/1.1 clients that ask for much and read nothing. What the kernel buffers for them is no more than a part of it.
async fn unread_responses(from: From) {
    let limits = ProxyLimits { held_body_bytes: HELD, ..ProxyLimits::default() };
    let running = running(ProxyOptions { limits, ..ProxyOptions::default() }).await;
    let proxy = running.clone();
    let attack = Attack::start(96, move |at| http1_unread(proxy.clone(), from.address(at)));
    eventually_async("nothing is evicted", async || metric_sum(&running, "evictions_total", "bodies") > 0)
        .await;
    let answers = other_client(&running, 40).await;
    assert_eq!(answers, Answers { whole: 40, failed: Vec::new() }, "{from:?}");
    assert!(attack.closed.load(Relaxed) > 0, "no attacker was closed");
    drop(attack);
    eventually_async("bytes are held for clients that are gone", async || {
        metric_sum(&running, "held_body_bytes", "") == 0
    })
    .await;
}

async fn http1_unread(running: Arc<Running>, from: Ipv4Addr) {
    let Ok(socket) = TcpSocket::new_v4() else { return };
    let _ = socket.set_recv_buffer_size(4096);
    if socket.bind(SocketAddr::new(from.into(), 0)).is_err() {
        return;
    }
    let Ok(mut stream) = socket.connect(running.address).await else { return };
    let _ = stream.write_all(b"GET /huge HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // Until the proxy closes, which the next request shows.
    while stream.write_all(b"G").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_of_one_source_do_not_refuse_others() {
    unread_responses(From::One).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_of_16_sources_do_not_refuse_others() {
    unread_responses(From::Sixteen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_behind_one_address_do_not_refuse_other_connections() {
    unread_responses(From::TheSameAddress).await;
}

/// Requests that no endpoint answers fill the circuit breaker of the backend that the other client uses.
async fn hanging_requests(from: From, protocol_is_http2: bool) {
    let circuit_breakers =
        CircuitBreakerLimits { max_connections: 128, max_requests: 128, ..CircuitBreakerLimits::default() };
    let running = running(ProxyOptions { circuit_breakers, ..ProxyOptions::default() }).await;
    let proxy = running.clone();
    let attack = if protocol_is_http2 {
        Attack::start(20, move |at| http2_streams(proxy.clone(), from.address(at), 64, "/hang", None))
    } else {
        Attack::start(200, move |at| http1_hanging(proxy.clone(), from.address(at)))
    };
    eventually_async("the backend is not full", async || {
        let refused = metric_sum(&running, "backend_overflows_total", "requests");
        refused + metric_sum(&running, "backend_evictions_total", "") + 128 >= 200
    })
    .await;
    let answers = other_client(&running, 60).await;
    assert_eq!(answers, Answers { whole: 60, failed: Vec::new() }, "{from:?}");
    assert!(metric_sum(&running, "backend_evictions_total", "") > 0, "nothing was evicted");
    if protocol_is_http2 {
        assert!(metric_sum(&running, "backend_overflows_total", "requests") > 0, "no attacker was refused");
    }
    assert!(metric_sum(&running, "upstream_sockets", "") <= 128 + 32, "more connections than allowed");
    drop(attack);
    eventually_async("slots are held for clients that are gone", async || {
        metric_sum(&running, "open_requests", "") == 0
    })
    .await;
}

async fn http1_hanging(running: Arc<Running>, from: Ipv4Addr) {
    let Ok(mut stream) = connect(&running, from).await else { return };
    loop {
        if stream.write_all(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n").await.is_err() {
            return;
        }
        // 503, at once or when it is evicted.
        let mut answer = [0; 1024];
        if !matches!(stream.read(&mut answer).await, Ok(1..)) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_of_one_source_leave_others_their_share_of_a_backend() {
    hanging_requests(From::One, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_of_16_sources_leave_others_their_share_of_a_backend() {
    hanging_requests(From::Sixteen, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_behind_one_address_leave_others_their_share_of_a_backend() {
    hanging_requests(From::TheSameAddress, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_connections_of_16_sources_leave_others_their_share_of_a_backend() {
    hanging_requests(From::Sixteen, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_connections_behind_one_address_leave_others_their_share_of_a_backend() {
    hanging_requests(From::TheSameAddress, false).await;
}

/// The same where the bound is that of the whole proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_leave_others_their_share_of_the_proxy() {
    let limits = ProxyLimits { requests: 128, ..ProxyLimits::default() };
    let running = running(ProxyOptions { limits, ..ProxyOptions::default() }).await;
    let proxy = running.clone();
    let attack = Attack::start(20, move |at| {
        http2_streams(proxy.clone(), From::Sixteen.address(at), 64, "/hang", None)
    });
    eventually_async("the proxy is not full", async || metric_sum(&running, "open_requests", "") >= 128)
        .await;
    let answers = other_client(&running, 60).await;
    assert_eq!(answers, Answers { whole: 60, failed: Vec::new() });
    assert!(metric_sum(&running, "evictions_total", "requests") > 0, "nothing was evicted");
    assert!(metric_sum(&running, "refused_requests_total", "requests") > 0, "no attacker was refused");
    drop(attack);
}

/// 256 descriptors: 96 for each side, 64 spare.
fn few_descriptors() -> ProxyOptions {
    let limits = ProxyLimits { descriptors: Some(256), ..ProxyLimits::default() };
    ProxyOptions { limits, ..ProxyOptions::default() }
}

/// Hanging requests that would need ten times the descriptors: connections to endpoints stay within theirs, and a
/// descriptor that becomes free goes to the other client.
async fn hanging_requests_at_all_descriptors(from: From) {
    let running = running(few_descriptors()).await;
    let proxy = running.clone();
    let attack =
        Attack::start(20, move |at| http2_streams(proxy.clone(), from.address(at), 128, "/hang", None));
    eventually_async("descriptors are free", async || metric_sum(&running, "upstream_sockets", "") >= 96)
        .await;
    let answers = other_client(&running, 40).await;
    assert_eq!(answers, Answers { whole: 40, failed: Vec::new() }, "{from:?}");
    assert!(metric_sum(&running, "upstream_sockets", "") <= 96, "more connections than descriptors");
    assert!(metric_sum(&running, "evictions_total", "descriptors") > 0, "nothing was evicted");
    drop(attack);
    eventually_async("descriptors of clients that are gone", async || {
        metric_sum(&running, "upstream_sockets", "") < 96
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_of_one_source_leave_descriptors_to_others() {
    hanging_requests_at_all_descriptors(From::One).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_of_16_sources_leave_descriptors_to_others() {
    hanging_requests_at_all_descriptors(From::Sixteen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_behind_one_address_leave_descriptors_to_others() {
    hanging_requests_at_all_descriptors(From::TheSameAddress).await;
}

/// Connections that stay open after a request, up to the limit: they are closed for new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_for_new_ones() {
    let running = running(few_descriptors()).await;
    for from in [From::One, From::TheSameAddress] {
        let proxy = running.clone();
        let attack = Attack::start(200, move |at| {
            let proxy = proxy.clone();
            async move {
                let Ok(mut stream) = connect(&proxy, from.address(at)).await else { return };
                let _ = stream.write_all(b"GET /short HTTP/1.1\r\nhost: a\r\n\r\n").await;
                let mut answer = [0; 1024];
                while let Ok(1..) = stream.read(&mut answer).await {}
            }
        });
        eventually_async("the limit is not reached", async || running.proxy.open_connections() >= 85).await;
        let answers = other_client(&running, 40).await;
        assert_eq!(answers, Answers { whole: 40, failed: Vec::new() }, "{from:?}");
        assert!(metric_sum(&running, "evictions_total", "\"connections\"") > 0, "nothing was evicted");
        drop(attack);
    }
}

/// TCP connections to a backend share its circuit breaker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_tunnels_are_closed_for_other_clients() {
    let routes = sidecar(&[], &["tcp-backend"], "frontend");
    let endpoints = [("tcp-backend".to_owned(), vec![(endpoint().await, 1.0, true)])].into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    let circuit_breakers = CircuitBreakerLimits { max_connections: 256, ..CircuitBreakerLimits::default() };
    let kind = ListenerKind::Outbound { service: key("tcp-backend"), port: 80 };
    let settings = ProxyOptions { circuit_breakers, ..ProxyOptions::default() };
    let running = Arc::new(Running::with(tables, kind, settings).await);
    let proxy = running.clone();
    let attack = Attack::start(400, move |at| {
        let proxy = proxy.clone();
        async move {
            let Ok(mut stream) = connect(&proxy, From::Sixteen.address(at)).await else { return };
            let _ = stream.read_u8().await;
        }
    });
    eventually_async("the backend is not full", async || metric_sum(&running, "upstream_sockets", "") >= 250)
        .await;
    let answers = other_client(&running, 40).await;
    assert_eq!(answers, Answers { whole: 40, failed: Vec::new() });
    drop(attack);
}

/// Behind a load balancer whose word is taken, shares are those of the clients that it names: requests of one client do
/// not evict the newest request of another, which they would if all were one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_behind_a_trusted_load_balancer_have_shares_of_their_own() {
    for proxy_protocol in [true, false] {
        let route = json!({"type": "MeshGatewayHTTPRoute", "name": "r",
            "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [
                {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
                 "default": {"backendRefs": [{"kind": "MeshService", "name": "backend"}]}}]}});
        let routes = gateway(&[route], &json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]));
        let endpoints = [("backend".to_owned(), vec![(endpoint().await, 1.0, true)])].into();
        let backends = Arc::new(backends(&routes, &endpoints));
        let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
        let trusted_proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().expect("a network")]);
        let circuit_breakers =
            CircuitBreakerLimits { max_connections: 16, max_requests: 16, ..CircuitBreakerLimits::default() };
        let edge = EdgeSettings { trusted_proxies, proxy_protocol, ..EdgeSettings::default() };
        let settings = ProxyOptions { circuit_breakers, edge, ..ProxyOptions::default() };
        let running = Running::with(tables, ListenerKind::Gateway { port: 8080 }, settings).await;
        let hang = async |client: &str| {
            let mut stream = connect(&running, OTHER).await.expect("the proxy listens");
            let request = match proxy_protocol {
                true => {
                    format!("PROXY TCP4 {client} 192.0.2.9 9 80\r\nGET /hang HTTP/1.1\r\nhost: a\r\n\r\n")
                }
                false => format!("GET /hang HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n"),
            };
            stream.write_all(request.as_bytes()).await.expect("sent");
            stream
        };
        let is_at = |count| {
            let lost = ["backend_evictions_total", "backend_overflows_total"];
            let lost: u64 = lost.iter().map(|name| metric_sum(&running, name, "")).sum();
            metric_sum(&running, "open_requests", "") + lost >= count
        };
        let mut attackers = Vec::new();
        for count in 1..=15 {
            attackers.push(hang("192.0.2.1").await);
            eventually_async("no request arrives", async || is_at(count)).await;
        }
        let mut other = hang("192.0.2.2").await;
        eventually_async("the other request does not arrive", async || is_at(16)).await;
        for count in 17..=40 {
            attackers.push(hang("192.0.2.1").await);
            eventually_async("no request arrives", async || is_at(count)).await;
        }
        assert!(metric_sum(&running, "backend_evictions_total", "") > 0, "nothing was evicted");
        let answer = tokio::time::timeout(Duration::from_millis(100), other.read_u8()).await;
        assert!(answer.is_err(), "evicted for requests of a client that has more ({proxy_protocol})");
    }
}

/// A client that takes bytes, but fewer than the minimum rate for each of its streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_below_the_minimum_rate_is_closed() {
    let timeouts = ProxyTimeouts {
        headers: Duration::from_millis(400),
        transfer: Duration::from_secs(1),
        ..ProxyTimeouts::default()
    };
    let running = running(ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let ended = http2_streams(running.clone(), OTHER, 4, "/long", Some(1));
    tokio::time::timeout(PATIENCE, ended).await.expect("closed");
    assert_eq!(metric_sum(&running, "stalled_connections_total", ""), 1);
    // With a window of 250 bytes every 200 ms it is fast enough.
    let ended = http2_streams(running.clone(), OTHER, 4, "/long", Some(250));
    tokio::time::timeout(Duration::from_secs(3), ended).await.expect_err("closed above the minimum rate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_below_the_minimum_rate_is_408() {
    let timeouts = ProxyTimeouts { transfer: Duration::from_millis(500), ..ProxyTimeouts::default() };
    let running = running(ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let mut stream = connect(&running, OTHER).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        while write.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut answer = [0; 32];
    let count = tokio::time::timeout(PATIENCE, read.read(&mut answer)).await.expect("an answer").unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer[..count]));
    sending.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_never_ends_is_408() {
    let timeouts = ProxyTimeouts { request: Some(Duration::from_millis(500)), ..ProxyTimeouts::default() };
    let running = running(ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let mut stream = connect(&running, OTHER).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        while write.write_all(b"1\r\nx\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = [0; 32];
    let count = tokio::time::timeout(PATIENCE, read.read(&mut answer)).await.expect("an answer").unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer[..count]));
    sending.abort();
}
