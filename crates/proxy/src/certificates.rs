//! Certificates of listeners and clients, and certificate authorities: parsed once per Secret or ConfigMap.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};

pub(crate) fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate chain and its key, parsed once per Secret: of a listener, or of the proxy as a client of backends.
#[derive(Clone)]
pub struct ServerCertificate {
    pub(crate) key: Arc<SingleCertAndKey>,
    /// For clients without certificates.
    pub(crate) configs: ServerConfigs,
}

/// The TLS configurations of a listener.
#[derive(Clone)]
pub(crate) struct ServerConfigs {
    /// With ALPN for HTTP.
    pub(crate) http: Arc<ServerConfig>,
    pub(crate) tcp: Arc<ServerConfig>,
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
        let certified = CertifiedKey::from_der(chain, key, &crypto_provider())?;
        let key = Arc::new(SingleCertAndKey::from(certified));
        Ok(Self { configs: ServerConfigs::new(&key, None)?, key })
    }
}

impl ServerConfigs {
    /// `clients` verifies client certificates; `None` does not ask for them.
    pub(crate) fn new(
        key: &Arc<SingleCertAndKey>,
        clients: Option<&Arc<dyn ClientCertVerifier>>,
    ) -> Result<Self, Error> {
        let config = |protocols: &[&[u8]]| {
            let builder = ServerConfig::builder_with_provider(crypto_provider())
                .with_safe_default_protocol_versions()?;
            let builder = match clients {
                Some(clients) => builder.with_client_cert_verifier(clients.clone()),
                None => builder.with_no_client_auth(),
            };
            let mut config = builder.with_cert_resolver(key.clone());
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

/// Certificate authorities, parsed once per ConfigMap: of the clients of a listener, or of backends.
#[derive(Clone, Debug)]
pub struct CertificateAuthorities {
    pub(crate) roots: Arc<RootCertStore>,
}

/// Why a ConfigMap has no usable certificate authority.
#[derive(Debug, thiserror::Error)]
pub enum CertificateAuthoritiesError {
    #[error("ca.crt is not PEM: {0}")]
    Pem(String),
    #[error("ca.crt contains no certificate")]
    NoCertificate,
    #[error("ca.crt contains a malformed certificate: {0}")]
    Certificate(#[from] Error),
}

impl CertificateAuthorities {
    /// Reads `ca.crt` of a ConfigMap.
    pub fn parse(pem: &[u8]) -> Result<Self, CertificateAuthoritiesError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|error| CertificateAuthoritiesError::Pem(error.to_string()))?)?;
        }
        if roots.is_empty() {
            return Err(CertificateAuthoritiesError::NoCertificate);
        }
        Ok(Self { roots: Arc::new(roots) })
    }
}

/// All of several authorities.
pub(crate) fn joined(authorities: &[Arc<CertificateAuthorities>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.extend(authorities.iter().flat_map(|authorities| authorities.roots.roots.iter().cloned()));
    roots
}
