//! One make of client for both sides: HTTP/2 over TLS with a client certificate, by hyper and rustls. For the API it
//! sends JSON; for etcd it sends a gRPC Put, which is one HTTP/2 request with a length in front of a protobuf message.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// What a client shows and whom it trusts, as PEM.
pub struct Identity {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

/// Where a server is and how to speak to it.
#[derive(Clone)]
pub struct Access {
    pub address: SocketAddr,
    tls: TlsConnector,
}

impl Access {
    pub fn new(address: SocketAddr, identity: &Identity) -> Access {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(identity.authority.as_bytes());
        roots.add(authority.expect("an authority")).expect("a good authority");
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
        let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate.expect("a certificate")], key)
            .expect("a good certificate");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Access { address, tls: TlsConnector::from(Arc::new(config)) }
    }

    /// A connection of its own.
    pub async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        let name = ServerName::from(self.address.ip());
        let stream = self.tls.connect(name, stream).await.expect("both sides know each other");
        let (requests, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2 is spoken");
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Connection { requests, base: format!("https://{}", self.address) }
    }
}

/// One connection to a server; clones share it.
#[derive(Clone)]
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
    base: String,
}

impl Connection {
    /// Sends a request; the body of the answer is not read yet.
    pub async fn send(&mut self, method: &str, path: &str, body: Bytes) -> Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json");
        let request = request.body(Full::new(body)).expect("a good request");
        self.requests.ready().await.expect("the connection lasts");
        self.requests.send_request(request).await.expect("the server answers")
    }

    /// Sends a request that must succeed, and reads the answer.
    pub async fn done(&mut self, method: &str, path: &str, body: Bytes) -> Bytes {
        let response = self.send(method, path, body).await;
        let code = response.status();
        let answer = response.into_body().collect().await.expect("a whole answer").to_bytes();
        assert!(code.is_success(), "{method} {path}: {code} {}", String::from_utf8_lossy(&answer));
        answer
    }

    /// Sends a request that was made before and must succeed, and reads the answer.
    pub async fn repeat(&mut self, request: &Ready) {
        self.requests.ready().await.expect("the connection lasts");
        let response = self.requests.send_request(request.again()).await.expect("the server answers");
        let code = response.status();
        let said = response.headers().get(GRPC_STATUS).cloned();
        let answer = response.into_body().collect().await.expect("a whole answer");
        let said = said.or_else(|| answer.trailers()?.get(GRPC_STATUS).cloned());
        let refused = if request.is_grpc { said.is_none_or(|said| said != "0") } else { !code.is_success() };
        assert!(!refused, "{}: {code} {}", request.uri, String::from_utf8_lossy(&answer.to_bytes()));
    }

    /// An update of an object of the API, to be sent any number of times.
    pub fn update(&self, path: &str, body: Bytes) -> Ready {
        let headers = [("content-type", "application/json")];
        self.made(Method::PUT, path, &headers, body)
    }

    /// A put of a key into etcd, to be sent any number of times.
    pub fn put(&self, key: &str, value: &[u8]) -> Ready {
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        self.made(Method::POST, "/etcdserverpb.KV/Put", &headers, put_message(key, value))
    }

    fn made(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> Ready {
        let uri = format!("{}{path}", self.base).parse().expect("a good address");
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let is_grpc = method == Method::POST;
        Ready { method, uri, headers: headers.iter().map(header).collect(), body, is_grpc }
    }
}

const GRPC_STATUS: &str = "grpc-status";

/// A request with all its parts: what is measured is the server, so nothing is made up while the clock runs.
pub struct Ready {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    is_grpc: bool,
}

impl Ready {
    fn again(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// gRPC's frame around etcd's PutRequest: field 1 is the key, field 2 the value, both as bytes.
fn put_message(key: &str, value: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(key.len() + value.len() + 16);
    for (field, content) in [(1u8, key.as_bytes()), (2, value)] {
        message.put_u8(field << 3 | 2);
        let mut length = content.len();
        while length >= 0x80 {
            message.put_u8(length as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(content);
    }
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put(message);
    frame.freeze()
}
