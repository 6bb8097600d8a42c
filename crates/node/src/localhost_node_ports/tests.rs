//! Listeners on loopback ports that were free, with endpoints of the test instead of a Service.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fixtures::eventually_async;
use model::Protocol;
use model::forward::{EndpointSet, ForwardedPort};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn key(name: &str) -> ServiceKey {
    ServiceKey::new(&"ns".into(), &name.into())
}

/// A port of a Service that connects to `connect`.
fn port(name: &str, listen: SocketAddr, connect: SocketAddr) -> LocalhostNodePort {
    let port = ForwardedPort {
        service: key(name),
        name: "p".into(),
        cluster_ip: Ipv4Addr::new(10, 96, 0, 1).into(),
        protocol: Protocol::Tcp,
        number: 80,
        affinity_seconds: None,
        health_check_port: None,
        cluster: EndpointSet::default(),
        local: EndpointSet::default(),
    };
    LocalhostNodePort { listen, connect, port: Arc::new(port) }
}

/// An endpoint that sends its name, then all that it gets, and ends when its client does.
async fn endpoint(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(name.as_bytes()).await;
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.write_all(b"end").await;
            });
        }
    });
    address
}

/// A port that no client takes before it is used: clients connect from 127.0.0.1.
fn free() -> SocketAddr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [low, ..] = std::process::id().to_le_bytes();
    let address = [127, 77, low, CALLS.fetch_add(1, Ordering::Relaxed)];
    std::net::TcpListener::bind(SocketAddr::from((address, 0))).unwrap().local_addr().unwrap()
}

async fn read(stream: &mut TcpStream, expected: &str) {
    let mut got = vec![0; expected.len()];
    timeout(PATIENCE, stream.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), expected);
}

async fn is_refused(at: SocketAddr) {
    eventually_async("it is refused", async || TcpStream::connect(at).await.is_err()).await;
}

#[tokio::test]
async fn connections_are_copied_with_half_close_and_outlive_their_listener() {
    let metrics = LocalhostMetrics::default();
    let mut all = LocalhostNodePorts::with_limit(16, metrics.clone());
    let (at, one, two) = (free(), endpoint("one").await, endpoint("two").await);
    assert!(all.update(&key("web"), vec![port("web", at, one)]));
    assert!(!all.update(&key("web"), vec![port("web", at, one)]), "nothing changed");
    assert_eq!(all.listen(), []);
    let mut first = TcpStream::connect(at).await.unwrap();
    read(&mut first, "one").await;
    first.write_all(b"hello").await.unwrap();
    read(&mut first, "hello").await;
    // New connections go elsewhere, and this one stays.
    all.update(&key("web"), vec![port("web", at, two)]);
    assert_eq!(all.listen(), []);
    read(&mut TcpStream::connect(at).await.unwrap(), "two").await;
    // The listener goes, and this one still stays.
    assert!(all.update(&key("web"), Vec::new()));
    assert_eq!(all.listen(), []);
    is_refused(at).await;
    first.write_all(b"again").await.unwrap();
    read(&mut first, "again").await;
    // The end of one direction is told, and the other one goes on.
    first.shutdown().await.unwrap();
    read(&mut first, "end").await;
    let mut rest = Vec::new();
    timeout(PATIENCE, first.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, b"");
    assert_eq!(metrics.connections.get_or_create(&connection_result(Family::V4, "connected")).get(), 2);
    assert_eq!(metrics.listeners.get_or_create(&family(Family::V4)).get(), 0);
}

#[tokio::test]
async fn a_port_in_use_is_named_and_served_when_it_is_free() {
    let metrics = LocalhostMetrics::default();
    let mut all = LocalhostNodePorts::with_limit(16, metrics.clone());
    let (at, other) = (free(), free());
    let taken = std::net::TcpListener::bind(at).unwrap();
    all.update(&key("web"), vec![port("web", at, endpoint("web").await)]);
    all.update(&key("api"), vec![port("api", other, endpoint("api").await)]);
    let notices = all.listen();
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].object.to_string(), "Service ns/web");
    assert!(notices[0].message.contains(&at.to_string()), "{}", notices[0].message);
    assert!(all.has_failed_ports());
    assert_eq!(metrics.failures.get_or_create(&family(Family::V4)).get(), 1);
    read(&mut TcpStream::connect(other).await.unwrap(), "api").await;
    drop(taken);
    assert_eq!(all.listen(), []);
    assert!(!all.has_failed_ports());
    read(&mut TcpStream::connect(at).await.unwrap(), "web").await;
}

#[tokio::test]
async fn an_endpoint_that_refuses_closes_the_client() {
    let metrics = LocalhostMetrics::default();
    let mut all = LocalhostNodePorts::with_limit(16, metrics.clone());
    let at = free();
    all.update(&key("web"), vec![port("web", at, free())]);
    all.listen();
    let mut client = TcpStream::connect(at).await.unwrap();
    let read = timeout(PATIENCE, client.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)));
    assert_eq!(metrics.connections.get_or_create(&connection_result(Family::V4, "failed")).get(), 1);
}

#[tokio::test]
async fn a_service_at_the_bound_loses_its_oldest_idle_connection_and_others_lose_none() {
    let mut all = LocalhostNodePorts::with_limit(4, LocalhostMetrics::default());
    let (busy, quiet) = (free(), free());
    all.update(&key("busy"), vec![port("busy", busy, endpoint("busy").await)]);
    all.update(&key("quiet"), vec![port("quiet", quiet, endpoint("quiet").await)]);
    assert_eq!(all.listen(), []);
    let mut other = TcpStream::connect(quiet).await.unwrap();
    read(&mut other, "quiet").await;
    let mut held = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(busy).await.unwrap();
        read(&mut stream, "busy").await;
        held.push(stream);
    }
    assert_eq!((all.relay.open(), all.relay.evicted()), (4, 9));
    other.write_all(b"still").await.unwrap();
    read(&mut other, "still").await;
    let mut gone = Vec::new();
    timeout(PATIENCE, held[0].read_to_end(&mut gone)).await.unwrap().ok();
}
