//! The server's TLS: its certificate, and the authority of client certificates where those are asked for.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

/// What is spoken behind the handshake.
const HTTP2: &[u8] = b"h2";

/// The server's side of TLS.
#[derive(Clone)]
pub struct Tls {
    pub(super) acceptor: TlsAcceptor,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate.
    #[error("the certificate is no PEM with a certificate in it: {0}")]
    Certificate(String),
    /// The key.
    #[error("the key is no PEM with a private key in it: {0}")]
    Key(String),
    /// The authority.
    #[error("the authority of client certificates is no PEM with a certificate in it: {0}")]
    Authority(String),
    /// Each is fine, together they are not.
    #[error("certificate and key cannot be used: {0}")]
    Together(String),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From PEM. With an authority, clients need a certificate of it.
    pub fn new(chain: &[u8], key: &[u8], authority: Option<&[u8]>) -> Result<Self, TlsError> {
        let chain = certificates(chain).map_err(TlsError::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Key(error.to_string()))?;
        let together = |error: &dyn fmt::Display| TlsError::Together(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| together(&error))?;
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(authority).map_err(TlsError::Authority)? {
                    roots.add(certificate).map_err(|error| TlsError::Authority(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| TlsError::Authority(error.to_string()))?,
                )
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| together(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("there is none".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}
