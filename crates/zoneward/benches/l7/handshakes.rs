//! Full TLS 1.3 handshakes: X25519, a certificate with an ECDSA P-256 key, no resumption. Each is a connection of its own
//! that is closed when the proxy has answered its end.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, HandshakeKind, NamedGroup, RootCertStore, crypto, version,
};

use super::load::{Protocol, Sample};
use super::rival::Running;

/// The name in the certificate.
pub const HOST: &str = "bench.example.com";
const CLIENTS: usize = 8;

/// The same certificate and key for all proxies, as PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Identity {
    pub fn new() -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let params = rcgen::CertificateParams::new(vec![HOST.to_owned()]).unwrap();
        Self { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    /// A client that trusts it, and that leaves proxies no choice of the key exchange.
    pub fn client(&self) -> Arc<ClientConfig> {
        let mut provider = crypto::ring::default_provider();
        provider.kx_groups.retain(|group| group.name() == NamedGroup::X25519);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

/// Handshakes of several clients at once for a while; the "requests" of the sample are handshakes.
pub fn run(running: &Running, client: &Arc<ClientConfig>, lasts: Duration) -> Sample {
    let (done, before, begin) = (AtomicU64::new(0), running.cpu(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while begin.elapsed() < lasts {
                    handshake(running, client);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let lasted = begin.elapsed();
    Sample { requests: done.into_inner(), failed: 0, cpu: running.cpu() - before, lasted }
}

fn handshake(running: &Running, client: &Arc<ClientConfig>) {
    let mut tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, running.port(Protocol::Http1))).unwrap();
    tcp.set_nodelay(true).unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let mut tls = ClientConnection::new(client.clone(), name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).unwrap();
    }
    assert_eq!(tls.handshake_kind(), Some(HandshakeKind::Full), "{}", running.rival.as_str());
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut tcp).unwrap();
    }
    // The proxy has done its part when it closes, too.
    let mut rest = [0; 4096];
    loop {
        match tcp.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{}: {error}", running.rival.as_str()),
        }
    }
}
