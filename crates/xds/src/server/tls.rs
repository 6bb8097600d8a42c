//! TLS of the server: its certificate, and the CA of client certificates where these are required.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

const ALPN_HTTP2: &[u8] = b"h2";

/// TLS that can be replaced while the server runs; open connections keep what they began with.
#[derive(Clone)]
pub struct XdsServerTls {
    state: Arc<RwLock<Arc<XdsTlsState>>>,
}

pub(super) struct XdsTlsState {
    pub(super) acceptor: TlsAcceptor,
    /// The names in the server's certificate, which no Envoy's may have.
    pub(super) names: Vec<String>,
    /// Whether clients have a certificate.
    pub(super) verifies_clients: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum XdsServerTlsError {
    #[error("certificate is not PEM: {0}")]
    Certificate(String),
    #[error("key is not a PEM private key: {0}")]
    Key(String),
    #[error("CA of client certificates is not PEM: {0}")]
    Authority(String),
    #[error("certificate and key do not match: {0}")]
    Mismatch(String),
}

impl fmt::Debug for XdsServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XdsServerTls")
    }
}

impl XdsServerTls {
    /// From PEM. With an authority, clients need a certificate that it signed.
    pub fn new(chain: &[u8], key: &[u8], authority: Option<&[u8]>) -> Result<Self, XdsServerTlsError> {
        let chain = certificates(chain).map_err(XdsServerTlsError::Certificate)?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| XdsServerTlsError::Key(error.to_string()))?;
        let mismatch = |error: &dyn fmt::Display| XdsServerTlsError::Mismatch(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| mismatch(&error))?;
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(authority).map_err(XdsServerTlsError::Authority)? {
                    roots
                        .add(certificate)
                        .map_err(|error| XdsServerTlsError::Authority(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| XdsServerTlsError::Authority(error.to_string()))?,
                )
            }
        };
        let names = chain.first().and_then(|own| webpki::EndEntityCert::try_from(own).ok());
        let names = names.iter().flat_map(|own| own.valid_dns_names().map(str::to_owned)).collect();
        let mut config = builder.with_single_cert(chain, key).map_err(|error| mismatch(&error))?;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let state = XdsTlsState { acceptor, names, verifies_clients: authority.is_some() };
        Ok(Self { state: Arc::new(RwLock::new(Arc::new(state))) })
    }

    /// Uses the certificates of another one from now on.
    pub fn replace(&self, other: &Self) {
        let state = other.current();
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(super) fn current(&self) -> Arc<XdsTlsState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("no certificate found".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}
