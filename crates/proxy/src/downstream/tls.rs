//! TLS at a gateway's port: the listener is chosen by server name; TLS is terminated with its certificate, or forwarded
//! unread where it has none.

use std::fmt;
use std::io;
use std::sync::Arc;

use ::listener::{ConnectionOwner, HandshakeTurns};
use bytes::Bytes;
use model::Name;
use model::route::{Arrival, GatewayProtocol, Routing, Scheme, WeightedBackends};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, ServerConfig};

use super::connection::{RouteScope, serve_http};
use super::listener::OpenConnection;
use super::listener_filters;
use super::transport_socket::{ReadAhead, TransportSocket};
use crate::active_tables::ActiveTables;
use crate::proxy::ProxyShared;
use crate::proxy_protocol::ConnectionAddresses;
use crate::tcp;

/// The listener of a server name.
struct ListenerMatch {
    listener: Name,
    certificate: Option<Arc<ServerCertificate>>,
    split: Option<Arc<WeightedBackends>>,
    is_terminated: bool,
    protocol: GatewayProtocol,
}

fn match_listener(active: &ActiveTables, port: u16, server_name: &str) -> Option<ListenerMatch> {
    let port = active.tables.routes.port(port)?;
    let listener = port.listener(server_name)?;
    let secret = listener.certificate.as_ref().map(|certificate| &certificate.secret);
    let split = match listener.routing(server_name) {
        Some(Routing::Tcp(split)) => Some(split.clone()),
        _ => None,
    };
    Some(ListenerMatch {
        listener: listener.name.clone(),
        certificate: secret.and_then(|secret| active.tables.certificates.get(secret)).cloned(),
        split,
        is_terminated: secret.is_some(),
        protocol: port.protocol,
    })
}

/// The fatal alert `unrecognized_name` (RFC 6066, 3), in the record format of every TLS version.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

pub(super) async fn serve(
    proxy: &Arc<ProxyShared>,
    port: u16,
    mut stream: TcpStream,
    from: ConnectionAddresses,
    open: &Arc<OpenConnection>,
) -> io::Result<()> {
    let failed = || proxy.stats.failed_handshakes.inc();
    let within = proxy.settings.timeouts.headers;
    let hello = timeout(within, listener_filters::read_server_name(&mut stream)).await;
    let hello = hello.map_err(io::Error::from).and_then(|hello| hello);
    let (server_name, ahead) = hello.inspect_err(|_| failed())?;
    let server_name = server_name.unwrap_or_default();
    let Some(found) = match_listener(&proxy.active_tables(), port, &server_name) else {
        failed();
        let _ = timeout(within, stream.write_all(&UNRECOGNIZED_NAME)).await;
        return Err(io::Error::other("no listener for this server name"));
    };
    let no_route = || io::Error::other("no MeshTCPRoute for this listener");
    if !found.is_terminated && found.protocol == GatewayProtocol::Tls {
        let split = found.split.ok_or_else(no_route)?;
        let stream = ReadAhead::new(ahead, TransportSocket::Plain(stream));
        return tcp::forward(proxy, stream, &split, from, &open.activity).await;
    }
    let Some(certificate) = found.certificate else {
        failed();
        return Err(io::Error::other("certificate of the listener is missing"));
    };
    let is_http = found.protocol.is_http();
    let config = if is_http { certificate.http.clone() } else { certificate.tcp.clone() };
    let handshake = async { TlsAcceptor::from(config).accept(ReadAhead::new(ahead, stream)).await };
    let source = ConnectionOwner::source(from.client.ip());
    let stream = timeout(within, HandshakeTurns::of_process().run(&source, handshake))
        .await?
        .inspect_err(|_| failed())?;
    if !is_http {
        let split = found.split.ok_or_else(no_route)?;
        let stream = ReadAhead::new(Bytes::new(), TransportSocket::Tls(Box::new(stream)));
        return tcp::forward(proxy, stream, &split, from, &open.activity).await;
    }
    let is_http2 = stream.get_ref().1.alpn_protocol().map(|protocol| protocol == b"h2");
    let scope = RouteScope::Gateway(port, Some(found.listener));
    let arrival = Arrival { scheme: Scheme::Https, port: Some(port) };
    serve_http(proxy, scope, arrival, TransportSocket::Tls(Box::new(stream)), is_http2, from, open).await
}

/// A certificate chain and its key, parsed once per Secret.
#[derive(Clone)]
pub struct ServerCertificate {
    /// With ALPN for HTTP.
    http: Arc<ServerConfig>,
    tcp: Arc<ServerConfig>,
}

/// Why a Secret has no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum ServerCertificateError {
    #[error("tls.crt is not PEM: {0}")]
    Chain(String),
    #[error("tls.crt contains no certificate; put the server certificate first, then those of its issuers")]
    NoCertificate,
    #[error("tls.key is not a PEM private key (PKCS #8, PKCS #1 or SEC 1): {0}")]
    Key(String),
    #[error("tls.crt and tls.key do not match: {0}")]
    Pair(#[from] Error),
}

impl ServerCertificate {
    /// Reads `tls.crt` and `tls.key` of a Secret of type kubernetes.io/tls.
    pub fn parse(chain: &[u8], key: &[u8]) -> Result<Self, ServerCertificateError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| ServerCertificateError::Chain(error.to_string()))?;
        if chain.is_empty() {
            return Err(ServerCertificateError::NoCertificate);
        }
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|e| ServerCertificateError::Key(e.to_string()))?;
        let provider = Arc::new(ring::default_provider());
        let certified = CertifiedKey::from_der(chain, key, &provider)?;
        let resolver = Arc::new(SingleCertAndKey::from(certified));
        let config = |protocols: &[&[u8]]| {
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?
                .with_no_client_auth();
            let mut config = builder.with_cert_resolver(resolver.clone());
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Ok::<_, Error>(Arc::new(config))
        };
        Ok(Self { http: config(&[b"h2", b"http/1.1"])?, tcp: config(&[])? })
    }
}

/// Never shows the key.
impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCertificate")
    }
}
