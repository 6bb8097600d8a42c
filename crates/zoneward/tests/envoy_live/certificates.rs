//! Several certificates of one listener, at the embedded proxy and at a real Envoy: clients that offer RSA or ECDSA alone, and
//! names.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use fixtures::{TestCertificate, eventually};
use serde_json::{Value, json};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
    SupportedProtocolVersion, version,
};

use crate::envoy_live::control::{Control, envoy};
use crate::mesh_live::world::{Machine, Upstream, ask_over};

const RSA: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256];
const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
const PROXIES: [(&str, &str); 2] = [("embedded", "127.0.0.1:8443"), ("envoy", "127.0.0.2:8443")];

/// A client that offers these signatures alone, takes every certificate, and checks that the server has its key.
#[derive(Debug)]
struct Offers(Vec<SignatureScheme>, Arc<CryptoProvider>);

impl ServerCertVerifier for Offers {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// The certificate that was presented, and the body of the answer.
fn ask(
    at: &str,
    host: &str,
    offered: &[&[SignatureScheme]],
    version: &'static SupportedProtocolVersion,
) -> Option<(CertificateDer<'static>, String)> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Offers(offered.concat(), provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect_timeout(&at.parse().unwrap(), Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut stream = StreamOwned::new(connection, stream);
    let answer = ask_over(&mut stream, host, "/", "")?;
    Some((stream.conn.peer_certificates()?.first()?.clone(), answer.body))
}

/// A certificate with a key of this kind, as a Secret.
fn certificate(
    machine: &Machine,
    secret: &str,
    host: &str,
    key: &[&str],
) -> (Value, CertificateDer<'static>) {
    let file = |ending: &str| machine.folder.join(format!("{secret}.{ending}"));
    let made = toolbox::command("openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-newkey"])
        .args(key)
        .args(["-subj", &format!("/CN={host}"), "-addext", &format!("subjectAltName=DNS:{host}")])
        .arg("-keyout")
        .arg(file("key"))
        .arg("-out")
        .arg(file("crt"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |ending: &str| std::fs::read_to_string(file(ending)).unwrap();
    let (chain, key) = (read("crt"), read("key"));
    let der = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
    let made = TestCertificate { chain, key, der };
    (made.secret(secret), made.der)
}

/// Status, reason and message of a condition of the MeshGateway.
fn condition(machine: &Machine, kind: &str) -> (String, String) {
    let path = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways/edge";
    let all = machine.read(path)["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|own| own["type"] == kind).unwrap_or_default();
    let field = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (format!("{} {}", field("status"), field("reason")), field("message"))
}

#[test]
fn name_and_signatures_choose_one_of_several_certificates() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("envoy-certificates", &["--mesh-bind", "127.0.0.1"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    let ec: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let (shop, api) = ("shop.example.com", "api.example.com");
    let (rsa_secret, rsa) = certificate(&machine, "shop-rsa", shop, &["rsa:2048"]);
    let (ecdsa_secret, ecdsa) = certificate(&machine, "shop-ecdsa", shop, ec);
    let (api_secret, other) = certificate(&machine, "api", api, ec);
    let refs = ["shop-rsa", "shop-ecdsa", "api"].map(|name| json!({"name": name}));
    machine.apply(&json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "https", "port": 8443, "protocol": "HTTPS", "hostname": "*.example.com",
            "tls": {"certificateRefs": refs}}]}}));
    machine.apply(&json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute", "metadata": {"name": "all"},
        "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": ["*"],
            "rules": [{"matches": [{"path": {"type": "Prefix", "value": "/"}}],
                "default": {"backendRefs": [{"kind": "MeshService", "name": "backend"}]}}]}}));
    machine.apply(&rsa_secret);
    machine.apply(&ecdsa_secret);
    let _control = Control::start(&machine, &[]);
    let _envoy = envoy(&["--gateway", "edge", "--bind", "127.0.0.2"]);

    // One certificate is missing, and the listener is served with the others.
    eventually("a missing Secret", || condition(&machine, "ResolvedRefs").0 == "False InvalidCertificateRef");
    let message = condition(&machine, "ResolvedRefs").1;
    assert!(message.starts_with("spec.listeners[0].tls.certificateRefs[2]: Secret default/api"), "{message}");
    assert_eq!(condition(&machine, "Programmed").0, "True Programmed");
    let served =
        |at: &str, host: &str, wanted: &CertificateDer<'_>, offered: &[&[SignatureScheme]], version| {
            ask(at, host, offered, version).is_some_and(|(shown, body)| shown == *wanted && body == "one")
        };
    for (name, at) in PROXIES {
        for version in [&version::TLS13, &version::TLS12] {
            let text = |of: &str| format!("{name}, {:?}: {of}", version.version);
            eventually(&text("RSA alone"), || served(at, shop, &rsa, &[RSA], version));
            eventually(&text("ECDSA alone"), || served(at, shop, &ecdsa, &[ECDSA], version));
            assert!(served(at, shop, &ecdsa, &[RSA, ECDSA], version), "{}", text("ECDSA is preferred"));
        }
    }

    machine.apply(&api_secret);
    eventually("all certificates", || condition(&machine, "ResolvedRefs").0 == "True ResolvedRefs");
    for (name, at) in PROXIES {
        eventually(&format!("{name}: by name"), || served(at, api, &other, &[RSA, ECDSA], &version::TLS13));
        assert!(served(at, shop, &ecdsa, &[RSA, ECDSA], &version::TLS13), "{name}: the first name");
        assert!(served(at, shop, &rsa, &[RSA], &version::TLS13), "{name}: RSA alone");
    }
}
