//! Echo servers: they note what they saw, and answer by HTTP, gRPC, WebSocket, TCP or UDP.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fixtures::TestCertificate;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use model::GoDuration;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::world::Pair;

/// What an echo server saw of a request or connection.
#[derive(Clone, Debug, Default)]
pub struct Sighting {
    pub namespace: String,
    pub workload: String,
    pub method: String,
    pub path: String,
    pub host: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub is_http2: bool,
    pub is_tls: bool,
    pub sni: Option<String>,
    pub has_client_certificate: bool,
}

/// What all echo servers of a case saw, and how they behave.
#[derive(Clone, Default)]
pub struct Sightings(Arc<Mutex<SightingsState>>);

#[derive(Default)]
struct SightingsState {
    seen: Vec<Sighting>,
    /// The next answers: a status after a delay.
    failures: VecDeque<(StatusCode, Duration)>,
    response_headers: Vec<(String, String)>,
}

impl Sightings {
    /// Forgets what was seen, and behaves as a request says.
    pub fn prepare(&self, request: &Value) {
        let behaves = &request["backendBehaves"];
        let status = behaves["failWith"].as_u64().and_then(|status| StatusCode::from_u16(status as u16).ok());
        let delay = behaves["delayPerFailure"].as_str().map(duration).unwrap_or_default();
        let count = behaves["failures"].as_u64().unwrap_or(0);
        let mut state = self.0.lock().expect("no test panics here");
        state.seen.clear();
        state.failures = (0..count).map(|_| (status.unwrap_or_default(), delay)).collect();
        let sets = request["backendSets"].as_object().into_iter().flatten();
        state.response_headers =
            sets.map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned())).collect();
    }

    pub fn all(&self) -> Vec<Sighting> {
        self.0.lock().expect("no test panics here").seen.clone()
    }

    fn push(&self, sighting: Sighting) {
        self.0.lock().expect("no test panics here").seen.push(sighting);
    }

    fn next_failure(&self) -> Option<(StatusCode, Duration)> {
        self.0.lock().expect("no test panics here").failures.pop_front()
    }

    fn response_headers(&self) -> Vec<(String, String)> {
        self.0.lock().expect("no test panics here").response_headers.clone()
    }
}

pub fn duration(text: &str) -> Duration {
    text.parse::<GoDuration>().expect("a duration").0
}

/// The certificate of an echo server.
#[derive(Clone)]
pub struct EchoTls {
    chain: String,
    key: String,
    /// Clients may have certificates of this authority.
    authority: Option<CertificateDer<'static>>,
}

impl EchoTls {
    pub fn of(pair: &Pair) -> Self {
        Self { chain: pair.chain.clone(), key: pair.key.clone(), authority: pair.issuer.clone() }
    }

    pub fn self_signed() -> Self {
        let TestCertificate { chain, key, .. } = TestCertificate::of("echo.example");
        Self { chain, key, authority: None }
    }

    fn acceptor(&self, protocols: &[&[u8]]) -> TlsAcceptor {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match &self.authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone()).expect("a root");
                let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(clients.allow_unauthenticated().build().expect("a root"))
            }
        };
        let mut config = builder.with_single_cert(chain.expect("PEM"), key).expect("a pair");
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// The pod of an echo server.
#[derive(Clone)]
pub struct Echo {
    pub namespace: String,
    pub workload: String,
}

impl Echo {
    pub async fn start(&self, serves: &str, tls: Option<EchoTls>, sightings: Sightings) -> SocketAddr {
        let echo = self.clone();
        if serves.contains("udp") {
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback has ports");
            let address = socket.local_addr().expect("bound");
            tokio::spawn(async move { echo.answer_datagrams(&socket, &sightings).await });
            return address;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("bound");
        let is_tcp = serves.starts_with("tcp");
        let acceptor = tls.map(|tls| match is_tcp {
            true => tls.acceptor(&[]),
            false => tls.acceptor(&[b"h2", b"http/1.1"]),
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let (echo, sightings, acceptor) = (echo.clone(), sightings.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let seen = echo.sighting();
                    let Some(acceptor) = acceptor else {
                        return echo.serve(stream, is_tcp, seen, sightings).await;
                    };
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let connection = stream.get_ref().1;
                    let sni = connection.server_name().map(str::to_owned);
                    let has_client_certificate = connection.peer_certificates().is_some();
                    let seen = Sighting { is_tls: true, sni, has_client_certificate, ..seen };
                    echo.serve(stream, is_tcp, seen, sightings).await;
                });
            }
        });
        address
    }

    fn sighting(&self) -> Sighting {
        Sighting { namespace: self.namespace.clone(), workload: self.workload.clone(), ..Sighting::default() }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        mut stream: S,
        is_tcp: bool,
        seen: Sighting,
        sightings: Sightings,
    ) {
        if is_tcp {
            let mut buffer = [0; 1024];
            let Ok(count @ 1..) = stream.read(&mut buffer).await else { return };
            sightings.push(Sighting { body: Bytes::copy_from_slice(&buffer[..count]), ..seen });
            let _ = stream.write_all(self.workload.as_bytes()).await;
            let _ = stream.shutdown().await;
            return;
        }
        let service = service_fn(|request| answer(request, seen.clone(), sightings.clone()));
        let server = auto::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
    }

    async fn answer_datagrams(&self, socket: &UdpSocket, sightings: &Sightings) {
        let mut buffer = [0; 2048];
        while let Ok((count, from)) = socket.recv_from(&mut buffer).await {
            let body = Bytes::copy_from_slice(&buffer[..count]);
            sightings.push(Sighting { body, ..self.sighting() });
            let _ = socket.send_to(self.workload.as_bytes(), from).await;
        }
    }
}

async fn answer(
    mut request: Request<Incoming>,
    seen: Sighting,
    sightings: Sightings,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let upgrade = request.headers().get("upgrade").cloned();
    let upgraded = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let host = parts.uri.authority().map(|authority| authority.to_string());
    let line = parts.headers.get("host").map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let path = parts.uri.path_and_query().map(|path| path.to_string()).unwrap_or_default();
    let body = if upgraded.is_some() { Bytes::new() } else { body.collect().await?.to_bytes() };
    let is_http2 = parts.version == http::Version::HTTP_2;
    let saw = Sighting {
        method: parts.method.to_string(),
        path: path.clone(),
        host: host.or(line).unwrap_or_default(),
        headers: parts.headers.clone(),
        body,
        is_http2,
        ..seen
    };
    let workload = saw.workload.clone();
    sightings.push(saw);
    let mut response = Response::new(Full::new(Bytes::from(workload)).boxed());
    if let Some((status, delay)) = sightings.next_failure() {
        tokio::time::sleep(delay).await;
        *response.status_mut() = status;
        return Ok(response);
    }
    if let Some((_, delay)) = path.split_once("delay=") {
        tokio::time::sleep(duration(delay)).await;
    }
    for (name, value) in sightings.response_headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        response.headers_mut().append(name, HeaderValue::from_str(&value).expect("a value"));
    }
    if parts.headers.get("content-type").is_some_and(|kind| kind == "application/grpc") {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
        let frames = futures_util::stream::iter(frames.map(Ok::<_, Infallible>));
        *response.body_mut() = BodyExt::boxed(StreamBody::new(frames));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    }
    if path == "/slow-body" {
        let first =
            futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"begun")))]);
        *response.body_mut() = BodyExt::boxed(StreamBody::new(first.chain(futures_util::stream::pending())));
    }
    if let (Some(upgrade), Some(upgraded)) = (upgrade, upgraded) {
        tokio::spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.body_mut() = Full::new(Bytes::new()).boxed();
        response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
        response.headers_mut().insert("upgrade", upgrade);
    }
    Ok(response)
}
