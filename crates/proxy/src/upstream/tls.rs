//! TLS to endpoints: the configuration of a backend, made when tables are activated, and the stream of a connection.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use model::route::{BackendId, BackendTls};
use model::{Notice, ObjectKey, ObjectRef};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::endpoint::EndpointProtocol;
use crate::certificates::{CertificateAuthorities, ServerCertificate, crypto_provider, joined};
use crate::proxy::ProxyTables;
use crate::zone_traffic::MeteredStream;

/// TLS to a backend, and what it was made from: equal sources keep it, and with it pooled connections.
#[derive(Debug)]
pub(crate) struct UpstreamTls {
    source: Arc<BackendTls>,
    client: Option<Arc<ServerCertificate>>,
    authorities: Vec<Arc<CertificateAuthorities>>,
    /// Why connections fail: never without TLS.
    usable: Result<TlsConfigs, &'static str>,
}

#[derive(Debug)]
struct TlsConfigs {
    server_name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    tcp: Arc<ClientConfig>,
}

/// The backends that need TLS.
pub(crate) type UpstreamTlsByBackend = BTreeMap<BackendId, Arc<UpstreamTls>>;

/// TLS of all backends of the tables that need it, with Notices about what is missing.
pub(crate) fn of_backends(
    tables: &ProxyTables,
    before: &UpstreamTlsByBackend,
    notices: &mut Vec<Notice>,
) -> UpstreamTlsByBackend {
    let mut found = UpstreamTlsByBackend::new();
    for (id, source) in tables.routes.all_backend_tls() {
        let tls = UpstreamTls::new(tables, source, before.get(id));
        if let Err(reason) = &tls.usable {
            notices.push(unusable(id, source, reason));
        }
        found.insert(id.clone(), tls);
    }
    found
}

fn unusable(id: &BackendId, source: &BackendTls, reason: &str) -> Notice {
    let missing = source.authorities.first().or(source.client_certificate.as_ref());
    let key = missing.cloned().unwrap_or_else(|| ObjectKey::new(&id.service.namespace, &id.service.name));
    let kind = if source.authorities.is_empty() { "Service" } else { "ConfigMap" };
    let message = format!("TLS to {id} is not possible: {reason}; its requests get 503");
    Notice::new(ObjectRef::new(kind, &key.namespace, &key.name), "BackendTLSNotPossible", message)
}

impl UpstreamTls {
    fn new(tables: &ProxyTables, source: &Arc<BackendTls>, before: Option<&Arc<Self>>) -> Arc<Self> {
        let client = source.client_certificate.as_ref();
        let client_certificate = client.and_then(|key| tables.certificates.get(key).cloned());
        let found = source.authorities.iter().filter_map(|key| tables.authorities.get(key).cloned());
        let authorities: Vec<_> = found.collect();
        let is_same = |before: &&Arc<Self>| {
            let is_same_client = match (&before.client, &client_certificate) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (a, b) => a.is_none() && b.is_none(),
            };
            before.source == *source
                && is_same_client
                && before.authorities.len() == authorities.len()
                && before.authorities.iter().zip(&authorities).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(before) = before.filter(is_same) {
            return before.clone();
        }
        let usable = if client.is_some() && client_certificate.is_none() {
            Err("the client certificate of the Gateway is missing")
        } else {
            TlsConfigs::new(source, client_certificate.as_ref(), &authorities)
        };
        Arc::new(Self { source: source.clone(), client: client_certificate, authorities, usable })
    }

    /// Performs the handshake on a new connection.
    pub(crate) async fn connect(
        &self,
        stream: MeteredStream,
        protocol: EndpointProtocol,
    ) -> io::Result<EndpointStream> {
        let configs = self.usable.as_ref().map_err(|reason| io::Error::other(*reason))?;
        let config = match protocol {
            EndpointProtocol::Http1 => &configs.http1,
            EndpointProtocol::Http2 => &configs.http2,
            EndpointProtocol::Tcp => &configs.tcp,
        };
        let connector = TlsConnector::from(config.clone());
        let stream = connector.connect(configs.server_name.clone(), stream).await?;
        Ok(EndpointStream::Tls(Box::new(stream)))
    }
}

impl TlsConfigs {
    fn new(
        source: &BackendTls,
        client: Option<&Arc<ServerCertificate>>,
        authorities: &[Arc<CertificateAuthorities>],
    ) -> Result<Self, &'static str> {
        let mut roots = joined(authorities);
        if source.trusts_system {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            return Err("no certificate authority is known");
        }
        let name = |text: &str| ServerName::try_from(text.to_owned());
        let server_name = name(&source.server_name).map_err(|_| "the hostname of the policy is malformed")?;
        let (uris, hosts): (Vec<_>, Vec<_>) =
            source.alternative_names.iter().partition(|name| name.contains(':'));
        let verifier = Arc::new(BackendVerifier {
            roots,
            provider: crypto_provider(),
            hosts: hosts.into_iter().filter_map(|host| name(host).ok()).collect(),
            uris: uris.into_iter().map(|uri| uri.to_string()).collect(),
            has_alternatives: !source.alternative_names.is_empty(),
        });
        let config = |protocols: &[&[u8]]| {
            let builder = ClientConfig::builder_with_provider(crypto_provider())
                .with_safe_default_protocol_versions()
                .map_err(|_| "no TLS version is available")?
                .dangerous()
                .with_custom_certificate_verifier(verifier.clone());
            let mut config = match client {
                Some(client) => builder.with_client_cert_resolver(client.key.clone()),
                None => builder.with_no_client_auth(),
            };
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Ok::<_, &'static str>(Arc::new(config))
        };
        Ok(Self { server_name, http1: config(&[b"http/1.1"])?, http2: config(&[b"h2"])?, tcp: config(&[])? })
    }
}

/// Verifies a backend's certificate: its chain, and the host name or one of the policy's `subjectAltNames`.
#[derive(Debug)]
struct BackendVerifier {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
    hosts: Box<[ServerName<'static>]>,
    uris: Box<[String]>,
    has_alternatives: bool,
}

impl ServerCertVerifier for BackendVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        if !self.has_alternatives {
            verify_server_name(&parsed, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let has_host = || self.hosts.iter().any(|host| verify_server_name(&parsed, host).is_ok());
        let has_uri = || {
            let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return false };
            parsed.valid_uri_names().any(|uri| self.uris.iter().any(|wanted| wanted == uri))
        };
        if has_host() || has_uri() {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::NotValidForName.into())
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

/// A connection to an endpoint.
pub(crate) enum EndpointStream {
    Plain(MeteredStream),
    Tls(Box<TlsStream<MeteredStream>>),
}

impl AsyncRead for EndpointStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for EndpointStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
