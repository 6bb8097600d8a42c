//! Clients of a gateway or mesh: requests of the cases by HTTP/1.1, HTTP/2, TLS, TCP and UDP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::world::{Pairs, items, key, text};

/// Long enough for a loaded machine, short enough to see what hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a client got.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// No answer at all.
    pub is_closed: bool,
    pub status: u16,
    pub headers: HeaderMap,
    pub trailers: HeaderMap,
    /// All that was sent after an upgrade came back.
    pub echoes: bool,
}

/// Sends a request to an address; `host` is the Host without one in the request.
pub async fn send(at: SocketAddr, request: &Value, host: &str, pairs: &Pairs) -> Exchange {
    let sent = async {
        match request["scheme"].as_str() {
            Some("udp") => by_udp(at).await,
            Some("tcp") => by_bytes(TcpStream::connect(at).await.expect("a listener")).await,
            Some("tls") => match tls(at, request, pairs, &[]).await {
                Ok(stream) => by_bytes(stream).await,
                Err(_) => closed(),
            },
            Some("https") => {
                let protocol: &[u8] = if request["protocol"] == "h2" { b"h2" } else { b"http/1.1" };
                match tls(at, request, pairs, &[protocol]).await {
                    Ok(stream) => by_http(stream, request, host).await,
                    Err(_) => closed(),
                }
            }
            _ => by_http(TcpStream::connect(at).await.expect("a listener"), request, host).await,
        }
    };
    timeout(PATIENCE, sent).await.unwrap_or_else(|_| panic!("no end within {PATIENCE:?}: {request}"))
}

fn closed() -> Exchange {
    Exchange { is_closed: true, ..Exchange::default() }
}

async fn by_bytes(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Exchange {
    let mut body = Vec::new();
    let sent = stream.write_all(b"hello").await;
    let read = stream.read_to_end(&mut body).await;
    if sent.is_err() || (read.is_err() && body.is_empty()) || body.is_empty() {
        return closed();
    }
    Exchange::default()
}

async fn by_udp(at: SocketAddr) -> Exchange {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback has ports");
    socket.connect(at).await.expect("an address");
    let mut buffer = [0; 2048];
    for _ in 0..10 {
        let _ = socket.send(b"question").await;
        if let Ok(Ok(_)) = timeout(Duration::from_millis(500), socket.recv(&mut buffer)).await {
            return Exchange::default();
        }
    }
    closed()
}

/// The path, method and headers of a request.
fn head(request: &Value) -> (String, String, Vec<(String, String)>) {
    let is_grpc = request["protocol"] == "grpc";
    let headers = request["headers"].as_object().into_iter().flatten();
    let mut headers: Vec<(String, String)> =
        headers.map(|(name, value)| (name.clone(), text(value).to_owned())).collect();
    if is_grpc {
        headers.push(("content-type".to_owned(), "application/grpc".to_owned()));
        headers.push(("te".to_owned(), "trailers".to_owned()));
    }
    let path = match request["service"].as_str() {
        Some(service) => format!("/{service}/{}", text(&request["method"])),
        None if is_grpc => "/proto.EchoTestService/Echo".to_owned(),
        None => request["path"].as_str().unwrap_or("/").to_owned(),
    };
    let method = if is_grpc { "POST" } else { request["method"].as_str().unwrap_or("GET") };
    (path, method.to_owned(), headers)
}

async fn by_http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    request: &Value,
    host: &str,
) -> Exchange {
    let (path, method, headers) = head(request);
    let protocol = request["protocol"].as_str().unwrap_or_default();
    let is_http2 = matches!(protocol, "grpc" | "h2" | "h2c");
    let host = request["host"].as_str().unwrap_or(host);
    let mut builder = Request::builder().method(method.as_str());
    builder = if is_http2 {
        builder.uri(format!("http://{host}{path}"))
    } else {
        builder.uri(path).header("host", host)
    };
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    if protocol == "websocket" {
        builder = builder
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    }
    let body = if protocol == "grpc" { Bytes::from_static(&[0; 5]) } else { Bytes::new() };
    let body = request["body"].as_str().map_or(body, |body| Bytes::copy_from_slice(body.as_bytes()));
    let message = builder.body(Full::new(body)).expect("a request");
    let response = if is_http2 {
        let io = TokioIo::new(stream);
        let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let Ok((mut sender, connection)) = connected else { return closed() };
        tokio::spawn(connection);
        sender.send_request(message).await
    } else {
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let Ok((mut sender, connection)) = connected else { return closed() };
        tokio::spawn(connection.with_upgrades());
        sender.send_request(message).await
    };
    let Ok(mut response) = response else { return closed() };
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    if status == 101 {
        let upgraded = hyper::upgrade::on(&mut response).await.expect("an upgrade");
        let echoes = echoes(TokioIo::new(upgraded), request).await;
        return Exchange { status, headers, echoes, ..Exchange::default() };
    }
    let Ok(collected) = response.into_body().collect().await else { return closed() };
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Exchange { status, headers, trailers, ..Exchange::default() }
}

/// Sends the messages of a request as WebSocket frames; the echo server returns the bytes of the frames.
async fn echoes(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &Value) -> bool {
    for message in items(&request["send"]) {
        let (kind, payload) = match message["text"].as_str() {
            Some(text) => (1, text.as_bytes().to_vec()),
            None => (2, items(&message["binary"]).iter().filter_map(|b| Some(b.as_u64()? as u8)).collect()),
        };
        let mut frame = vec![0x80 | kind, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        frame.extend(payload);
        let mut back = vec![0; frame.len()];
        stream.write_all(&frame).await.expect("sent");
        stream.read_exact(&mut back).await.expect("an echo");
        if back != frame {
            return false;
        }
    }
    true
}

async fn tls(
    at: SocketAddr,
    request: &Value,
    pairs: &Pairs,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let trusted = request["trusts"].as_str().map(|name| &pairs[&key(name)]);
    let mut roots = RootCertStore::empty();
    if let Some(pair) = trusted.filter(|pair| !pair.is_self_signed) {
        roots.add(pair.der.clone()).expect("a root");
    }
    let builder = match trusted {
        Some(pair) if pair.is_self_signed => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Pinned::new(pair.der.clone())))
        }
        _ => builder.with_root_certificates(roots),
    };
    let mut config = match request["clientCertificate"].as_str().map(|name| &pairs[&key(name)]) {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
            builder.with_client_auth_cert(vec![pair.der.clone()], key).expect("a pair")
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(text(&request["sni"]).to_owned()).expect("a name");
    let stream = TcpStream::connect(at).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Trusts one certificate, whatever its names.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: CryptoProvider,
}

impl Pinned {
    fn new(certificate: CertificateDer<'static>) -> Self {
        Self { certificate, provider: ring::default_provider() }
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *certificate == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General("another certificate".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
