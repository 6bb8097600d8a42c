//! Certificates of gateways: a Secret's PEM texts, parsed once, and ready for handshakes.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, ServerConfig};

/// A certificate chain and its key, ready to answer handshakes.
#[derive(Clone)]
pub struct KeyPair {
    pub(crate) http: Arc<ServerConfig>,
    pub(crate) bytes: Arc<ServerConfig>,
}

/// Why a Secret is no key pair.
#[derive(Debug, thiserror::Error)]
pub enum KeyPairError {
    /// The chain cannot be read.
    #[error("tls.crt is no PEM text of certificates: {0}")]
    Chain(String),
    /// The chain is empty.
    #[error("tls.crt has no certificate in it; put the server's own first, then those of its issuers")]
    NoCertificate,
    /// The key cannot be read.
    #[error("tls.key is no PEM text of a private key (PKCS #8, PKCS #1 or SEC 1): {0}")]
    Key(String),
    /// The two are not of one pair, or of a kind that cannot be used.
    #[error("tls.crt and tls.key cannot be used together: {0}")]
    Pair(#[from] Error),
}

impl KeyPair {
    /// Reads `tls.crt` and `tls.key` of a Secret of type kubernetes.io/tls.
    pub fn parse(chain: &[u8], key: &[u8]) -> Result<Self, KeyPairError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| KeyPairError::Chain(error.to_string()))?;
        if chain.is_empty() {
            return Err(KeyPairError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| KeyPairError::Key(e.to_string()))?;
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
        Ok(Self { http: config(&[b"h2", b"http/1.1"])?, bytes: config(&[])? })
    }
}

/// Without the key.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPair")
    }
}
