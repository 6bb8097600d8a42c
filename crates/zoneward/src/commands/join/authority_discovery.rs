//! The certificate authority of an API that is known by the hash of its public key alone, as kubeadm discovers it. The
//! server sends its authority in the handshake; nothing is sent to it before the hash was compared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::certificate_check::tls_client;
use store::credentials::public_key_hash;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

/// Deadline of the handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Hash of the public key, and certificate (DER).
type HashedCertificate = (String, Vec<u8>);

/// The authority (DER) with this hash (`sha256:HEX`) at `HOST:PORT`. Its signature of the server's certificate is not
/// verified here: the next connection does, with the authority as its only root.
pub(super) async fn authority(host: &str, hash: &str) -> Result<Vec<u8>> {
    // All that the server sent.
    let seen: Arc<Mutex<Vec<HashedCertificate>>> = Arc::default();
    let (sent, wanted) = (seen.clone(), hash.to_owned());
    let accepts = move |own: &CertificateDer<'_>, chain: &[CertificateDer<'_>]| {
        let all = std::iter::once(own).chain(chain);
        let hashed: Vec<_> = all.filter_map(|der| Some((public_key_hash(der)?, der.to_vec()))).collect();
        let is_known = hashed.iter().any(|(hash, _)| *hash == wanted);
        *sent.lock().unwrap_or_else(PoisonError::into_inner) = hashed;
        is_known
    };
    let config = tls_client(accepts).context("configuring TLS")?;
    let name = ServerName::try_from("kubernetes").context("the name of the API")?;
    let handshake = async {
        let stream = TcpStream::connect(host).await?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let shaken = tokio::time::timeout(TIMEOUT, handshake).await;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
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
