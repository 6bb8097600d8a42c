//! The certificate authority of an API that is known by the hash of its public key alone, as kubeadm discovers it. The
//! server sends its authority in the handshake; nothing is sent to it before the hash was compared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use store::credentials::public_key_hash;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
};

/// Deadline of the handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The authority (DER) with this hash (`sha256:HEX`) at `HOST:PORT`. Its signature of the server's certificate is not
/// verified here: the next connection does, with the authority as its only root.
pub(super) async fn authority(host: &str, hash: &str) -> Result<Vec<u8>> {
    let provider = Arc::new(ring::default_provider());
    let verifier =
        Arc::new(HashVerifier { hash: hash.to_owned(), provider: provider.clone(), seen: Mutex::default() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("configuring TLS")?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    let name = ServerName::try_from("kubernetes").context("the name of the API")?;
    let handshake = async {
        let stream = TcpStream::connect(host).await?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let shaken = tokio::time::timeout(TIMEOUT, handshake).await;
    let seen = std::mem::take(&mut *verifier.seen.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some((_, found)) = seen.iter().find(|(found, _)| found == hash) {
        return Ok(found.clone());
    }
    if let Some((last, _)) = seen.last() {
        bail!(
            "--ca-hash: the API at {host} has another certificate authority, with the hash {last}: another server \
             answers there, or the hash is of another installation"
        );
    }
    shaken.context("timed out")?.with_context(|| format!("connecting to {host}"))?;
    bail!("the server at {host} sent no certificate")
}

/// Accepts a chain with a certificate of this hash, and remembers what it saw.
#[derive(Debug)]
struct HashVerifier {
    hash: String,
    provider: Arc<CryptoProvider>,
    /// Hash and certificate.
    seen: Mutex<Vec<(String, Vec<u8>)>>,
}

impl ServerCertVerifier for HashVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let all = std::iter::once(certificate).chain(chain);
        let hashed = |der: &CertificateDer<'_>| Some((public_key_hash(der)?, der.to_vec()));
        let seen: Vec<(String, Vec<u8>)> = all.filter_map(hashed).collect();
        let is_known = seen.iter().any(|(hash, _)| *hash == self.hash);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        match is_known {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
