//! Certificates of listeners and clients, and certificate authorities: parsed once per Secret or ConfigMap.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig, SignatureAlgorithm, SignatureScheme};

pub(crate) fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate chain and its key, parsed once per Secret: of a listener, or of the proxy as a client of backends.
#[derive(Clone)]
pub struct ServerCertificate {
    pub(crate) key: Arc<SingleCertAndKey>,
    certified: Arc<CertifiedKey>,
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
        let certified = Arc::new(certified);
        let key = Arc::new(SingleCertAndKey::from(certified.clone()));
        Ok(Self { configs: ServerConfigs::new(key.clone(), None)?, key, certified })
    }
}

/// The certificates of a listener.
#[derive(Debug)]
struct ListenerCertificates(Box<[Arc<CertifiedKey>]>);

/// Chooses one of several certificates at each handshake.
pub(crate) fn resolver(certificates: &[Arc<ServerCertificate>]) -> Arc<dyn ResolvesServerCert> {
    match certificates {
        [only] => only.key.clone(),
        all => Arc::new(ListenerCertificates(all.iter().map(|own| own.certified.clone()).collect())),
    }
}

impl ResolvesServerCert for ListenerCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let own = choose(&self.0, hello.server_name(), hello.signature_schemes());
        own.cloned()
    }
}

/// The certificate with the server name, else with a wildcard for it, else the first; the client has to support its key. Of
/// several with the name one with an ECDSA key is preferred, as by Envoy.
fn choose<'c>(
    certificates: &'c [Arc<CertifiedKey>],
    server_name: Option<&str>,
    schemes: &[SignatureScheme],
) -> Option<&'c Arc<CertifiedKey>> {
    let is_usable = |own: &&Arc<CertifiedKey>| own.key.choose_scheme(schemes).is_some();
    let rank = |own: &&Arc<CertifiedKey>| {
        let by_name = server_name.map_or(NameMatch::None, |name| name_match(own, name));
        (by_name, by_name != NameMatch::None && own.key.algorithm() == SignatureAlgorithm::RSA)
    };
    // Of equals the first counts.
    certificates.iter().filter(is_usable).min_by_key(rank).or(certificates.first())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameMatch {
    Exact,
    Wildcard,
    None,
}

fn name_match(certificate: &CertifiedKey, name: &str) -> NameMatch {
    let Some(parsed) = certificate.cert.first().and_then(|first| ParsedCertificate::try_from(first).ok())
    else {
        return NameMatch::None;
    };
    let has =
        |name: &str| ServerName::try_from(name).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok());
    // A wildcard is also valid for a sibling of the name.
    let sibling = name.split_once('.').map(|(label, parent)| format!("{label}-0.{parent}"));
    match (has(name), sibling.is_some_and(|sibling| has(&sibling))) {
        (true, false) => NameMatch::Exact,
        (true, true) => NameMatch::Wildcard,
        (false, _) => NameMatch::None,
    }
}

impl ServerConfigs {
    /// `clients` verifies client certificates; `None` does not ask for them.
    pub(crate) fn new(
        key: Arc<dyn ResolvesServerCert>,
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};

    use super::*;

    fn certificate(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Arc<CertifiedKey> {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = CertificateParams::new(names).expect("names").self_signed(&key).expect("signed");
        let parsed = ServerCertificate::parse(made.pem().as_bytes(), key.serialize_pem().as_bytes());
        parsed.expect("a pair").certified
    }

    #[test]
    fn the_server_name_and_the_keys_of_the_client_choose_a_certificate() {
        let wild = certificate(&["*.a.test"], &PKCS_ECDSA_P256_SHA256);
        let edwards = certificate(&["one.a.test"], &PKCS_ED25519);
        let one = certificate(&["one.a.test", "two.test"], &PKCS_ECDSA_P256_SHA256);
        let all = [wild.clone(), edwards.clone(), one.clone()];
        let both = [SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256];
        let chosen = |name: Option<&str>, schemes: &[SignatureScheme]| {
            let own = choose(&all, name, schemes).expect("one");
            all.iter().position(|other| Arc::ptr_eq(own, other)).expect("of them")
        };
        assert_eq!(chosen(Some("one.a.test"), &both), 1, "an exact name comes before a wildcard");
        assert_eq!(chosen(Some("one.a.test"), &both[1..]), 2, "the client does not support the key");
        assert_eq!(chosen(Some("x.a.test"), &both), 0, "by wildcard");
        assert_eq!(chosen(Some("two.test"), &both), 2);
        assert_eq!(chosen(Some("other.test"), &both), 0, "without the name, the first");
        assert_eq!(chosen(None, &both[..1]), 1, "the first that the client supports");
        assert_eq!(chosen(None, &[]), 0);
    }
}
