//! TLS passthrough at a gateway: the server name chooses the endpoint, whose certificate the
//! client sees.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::{TestCertificate, tls_client};
use proxy::{ListenerKind, ProxyOptions, ProxyTables, ProxyTimeouts};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::harness::*;

/// An endpoint that ends TLS itself, says its name and sends back what it gets.
async fn endpoint(name: &'static str, host: &str) -> (SocketAddr, CertificateDer<'static>) {
    let certificate = TestCertificate::of(host);
    let acceptor = TlsAcceptor::from(certificate.server());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                stream.write_all(name.as_bytes()).await.expect("sent");
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    (address, certificate.der)
}

fn listeners() -> Value {
    json!([
        {"name": "one", "port": 8443, "protocol": "TLS", "hostname": "one.test",
            "tags": {"listener": "one"}},
        {"name": "two", "port": 8443, "protocol": "TLS", "hostname": "*.two.test",
            "tags": {"listener": "two"}}])
}

fn route(listener: &str, backend: &str) -> Value {
    json!({"type": "MeshTCPRoute", "name": listener, "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge", "tags": {"listener": listener}},
        "to": [{"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"backendRefs": [
            {"kind": "MeshService", "name": backend}]}}]}]}})
}

struct Edge {
    running: Running,
    config: Arc<ClientConfig>,
}

async fn edge(settings: ProxyOptions) -> Edge {
    let (one, trust_one) = endpoint("1", "one.test").await;
    let (two, trust_two) = endpoint("2", "a.two.test").await;
    let routes = gateway(&ROUTES.map(|(listener, backend)| route(listener, backend)), &listeners());
    let endpoints: BTreeMap<_, _> =
        [("tcp-one".to_owned(), vec![(one, 1.0, true)]), ("tcp-two".to_owned(), vec![(two, 1.0, true)])]
            .into();
    let backends = Arc::new(backends(&routes, &endpoints));
    let tables = ProxyTables { routes: Arc::new(routes), backends, ..ProxyTables::default() };
    let running = Running::with(tables, ListenerKind::Gateway { port: 8443 }, settings).await;
    Edge { running, config: tls_client(&[trust_one, trust_two], &[]) }
}

const ROUTES: [(&str, &str); 2] = [("one", "tcp-one"), ("two", "tcp-two")];

impl Edge {
    async fn connect(&self, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        TlsConnector::from(self.config.clone()).connect(name, self.running.connect().await).await
    }

    /// The bytes of a client's greeting.
    fn greeting(&self, name: &str) -> Vec<u8> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut client = ClientConnection::new(self.config.clone(), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("into memory");
        bytes
    }
}

async fn talk(mut stream: TlsStream<TcpStream>, name: &[u8; 1]) {
    stream.write_all(b"hello").await.expect("sent");
    let mut text = [0; 6];
    stream.read_exact(&mut text).await.expect("an echo");
    assert_eq!((&text[..1], &text[1..]), (&name[..], &b"hello"[..]));
}

#[tokio::test]
async fn the_server_name_chooses_the_endpoint_and_its_own_certificate_is_seen() {
    let edge = edge(ProxyOptions::default()).await;
    for (name, endpoint) in [("one.test", b"1"), ("a.two.test", b"2"), ("one.test", b"1")] {
        talk(edge.connect(name).await.expect("a handshake"), endpoint).await;
    }
}

#[tokio::test]
async fn an_unknown_name_is_told_so_and_no_name_ends_the_connection() {
    let edge = edge(ProxyOptions::default()).await;
    let error = edge.connect("other.test").await.expect_err("nobody is there").to_string();
    assert!(error.contains("UnrecognisedName"), "{error}");
    // An address as the name: then the greeting has none.
    let error = edge.connect("127.0.0.1").await.expect_err("nobody is there").to_string();
    assert!(error.contains("UnrecognisedName"), "{error}");
    assert!(edge.running.metrics().contains("zoneward_proxy_failed_handshakes_total 2\n"));
    talk(edge.connect("one.test").await.expect("a handshake"), b"1").await;
}

#[tokio::test]
async fn a_greeting_may_come_in_small_pieces() {
    let edge = edge(ProxyOptions::default()).await;
    let bytes = edge.greeting("a.two.test");
    let mut stream = edge.running.connect().await;
    for piece in bytes.chunks(7) {
        stream.write_all(piece).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The endpoint greets back: a record of a handshake.
    let mut head = [0; 3];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("in time").expect("an answer");
    assert_eq!(head, [22, 3, 3]);
}

#[tokio::test]
async fn a_greeting_in_many_records_is_read() {
    // RFC 8446, 5.1: a message of the handshake may be cut over records.
    let edge = edge(ProxyOptions::default()).await;
    let bytes = edge.greeting("one.test");
    let mut cut = Vec::new();
    for piece in bytes[5..].chunks(50) {
        cut.extend([22, 3, 1, 0, u8::try_from(piece.len()).expect("short")]);
        cut.extend(piece);
    }
    let mut stream = edge.running.connect().await;
    stream.write_all(&cut).await.expect("sent");
    let mut head = [0; 3];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("in time").expect("an answer");
    assert_eq!(head, [22, 3, 3]);
}

#[tokio::test]
async fn a_slow_greeting_is_left_and_others_are_carried_meanwhile() {
    let timeouts = ProxyTimeouts { headers: Duration::from_millis(300), ..ProxyTimeouts::default() };
    let edge = edge(ProxyOptions { timeouts, ..ProxyOptions::default() }).await;
    let bytes = edge.greeting("one.test");
    let mut slow = edge.running.connect().await;
    let began = Instant::now();
    for byte in bytes {
        if slow.write_all(&[byte]).await.is_err() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "it is still read");
        talk(edge.connect("one.test").await.expect("a handshake"), b"1").await;
        let mut end = [0; 1];
        if let Ok(read) = tokio::time::timeout(Duration::from_millis(20), slow.read(&mut end)).await {
            assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
            break;
        }
    }
    assert!(began.elapsed() >= Duration::from_millis(300));
    // And what is no TLS at all is closed at once.
    let mut plain = edge.running.connect().await;
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut all)).await.expect("closed");
    assert_eq!(all, b"");
}
