//! TLS termination at a gateway: certificates by server name, both HTTP versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use fixtures::{TestCertificate, tls_client};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::ObjectKey;
use model::route::RouteTable;
use proxy::{ListenerKind, ProxyOptions, ProxyTables, ServerCertificate};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

use super::harness::*;
use super::tcp::greeter;

/// A certificate for a host, as a Secret has it, and as a client trusts it.
fn certificate(host: &str) -> (Arc<ServerCertificate>, CertificateDer<'static>) {
    let TestCertificate { chain, key, der } = TestCertificate::of(host);
    (Arc::new(ServerCertificate::parse(chain.as_bytes(), key.as_bytes()).expect("a pair")), der)
}

fn listeners(protocol: &str) -> Value {
    json!([
        {"name": "one", "port": 8443, "protocol": protocol, "hostname": "one.test",
            "tls": {"certificateRef": {"name": "one"}}},
        {"name": "two", "port": 8443, "protocol": protocol, "hostname": "*.two.test",
            "tls": {"certificateRef": {"name": "two"}}}])
}

fn route(hostname: &str, backend: &str) -> Value {
    json!({"type": "MeshGatewayHTTPRoute", "name": backend, "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": [hostname],
        "rules": [{"matches": [{"path": {"type": "Prefix", "value": "/"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": backend}]}}]}})
}

struct Edge {
    running: Running,
    trusted: Vec<CertificateDer<'static>>,
}

async fn edge(routes: RouteTable, with_second: bool, endpoints: Option<std::net::SocketAddr>) -> Edge {
    let (one, trust_one) = certificate("one.test");
    let (two, trust_two) = certificate("a.two.test");
    let secret = |name: &str| ObjectKey::new(&"default".into(), &name.into());
    let mut certificates: BTreeMap<_, _> = [(secret("one"), one)].into();
    if with_second {
        certificates.insert(secret("two"), two);
    }
    let running =
        Running::start(routes.clone(), ListenerKind::Gateway { port: 8443 }, ProxyOptions::default()).await;
    let own = running
        .echoes
        .iter()
        .map(|(name, echo)| (name.clone(), vec![(endpoints.unwrap_or(echo.address), 1.0, true)]));
    let backends = Arc::new(backends(&routes, &own.collect()));
    let notices = running.proxy.swap(ProxyTables {
        routes: Arc::new(routes),
        backends,
        certificates: Arc::new(certificates),
        ..ProxyTables::default()
    });
    assert_eq!(
        notices.iter().filter(|n| n.reason == "CertificateMissing").count(),
        usize::from(!with_second)
    );
    Edge { running, trusted: vec![trust_one, trust_two] }
}

impl Edge {
    async fn connect(&self, name: &str, alpn: &[&str]) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
        let config = tls_client(&self.trusted, alpn);
        let stream = self.running.connect().await;
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        TlsConnector::from(config).connect(name, stream).await
    }

    async fn get1(&self, name: &str, host: &str) -> (u16, Value) {
        let stream = self.connect(name, &["http/1.1"]).await.expect("a handshake");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let request =
            http::Request::get("/").header("host", host).body(Empty::<bytes::Bytes>::new()).expect("one");
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn get2(&self, name: &str) -> (u16, Value) {
        let stream = self.connect(name, &["h2"]).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("HTTP");
        tokio::spawn(connection);
        let uri = format!("https://{name}/");
        let request = http::Request::get(uri).body(Empty::<bytes::Bytes>::new()).expect("one");
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }
}

async fn https(with_second: bool) -> Edge {
    let routes = [route("one.test", "first"), route("*.two.test", "second")];
    edge(gateway(&routes, &listeners("HTTPS")), with_second, None).await
}

#[tokio::test]
async fn every_server_name_has_its_certificate_and_its_routes() {
    let edge = https(true).await;
    for (name, backend) in [("one.test", "first"), ("a.two.test", "second")] {
        for (status, answer) in [edge.get1(name, name).await, edge.get2(name).await] {
            assert_eq!((status, answer["backend"].as_str()), (200, Some(backend)));
        }
    }
}

#[tokio::test]
async fn a_host_that_the_certificate_was_not_for_is_misdirected() {
    let edge = https(true).await;
    assert_eq!(edge.get1("one.test", "a.two.test").await.0, 421);
    assert_eq!(edge.get1("one.test", "ONE.test:8443").await.0, 200);
}

#[tokio::test]
async fn an_unknown_name_or_a_missing_certificate_ends_the_handshake_and_nobody_elses() {
    let edge = https(false).await;
    assert!(edge.connect("other.test", &[]).await.is_err());
    assert!(edge.connect("a.two.test", &[]).await.is_err());
    assert_eq!(edge.get1("one.test", "one.test").await.0, 200);
}

#[tokio::test]
async fn what_is_no_tls_is_closed() {
    let edge = https(true).await;
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 0], &[0; 100]] {
        let mut stream = edge.running.connect().await;
        stream.write_all(bytes).await.expect("sent");
        stream.shutdown().await.expect("closed");
        let mut all = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("closed");
    }
    assert_eq!(edge.get1("one.test", "one.test").await.0, 200);
}

fn tcp_route() -> Value {
    json!({"type": "MeshTCPRoute", "name": "t", "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"},
        "to": [{"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"backendRefs": [
            {"kind": "MeshService", "name": "tcp-a"}]}}]}]}})
}

#[tokio::test]
async fn bytes_by_tls_end_here_and_go_on_in_the_clear() {
    let routes = gateway(&[tcp_route()], &listeners("TLS"));
    let edge = edge(routes, true, Some(greeter("hello").await)).await;
    let mut stream = edge.connect("one.test", &[]).await.expect("a handshake");
    stream.write_all(b" world").await.expect("sent");
    let mut text = [0; 11];
    stream.read_exact(&mut text).await.expect("an echo");
    assert_eq!(&text, b"hello world");
}

#[test]
fn a_bad_secret_says_why() {
    let (chain, key) = (TestCertificate::of("a.test").chain, TestCertificate::of("b.test").key);
    for (chain, key, why) in [
        ("", key.as_str(), "contains no certificate"),
        (chain.as_str(), "", "not a PEM private key"),
        (chain.as_str(), key.as_str(), "do not match"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", key.as_str(), "tls.crt is not PEM"),
    ] {
        let error =
            ServerCertificate::parse(chain.as_bytes(), key.as_bytes()).expect_err("it is bad").to_string();
        assert!(error.contains(why), "{error}");
    }
}
