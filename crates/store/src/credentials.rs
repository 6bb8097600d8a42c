//! Credentials: a certificate authority, an admin and a reader, created on first start.
//!
//! ```text
//! DIR/pki/ca.crt, ca.key              the authority; the server's certificate is issued at each start
//! DIR/pki/admin.*, reader.*           certificate, key and token of each user
//! DIR/kubeconfig, reader.kubeconfig   complete configuration for kubectl
//! ```
//!
//! All files are readable by their owner only. Clients authenticate by exactly their certificate, or by their token;
//! there is no anonymous access. Keys and tokens are random bytes of the operating system.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::api::Caller;
use plan::rbac::AUTHENTICATED;

/// The users of the API, and the authority that issues certificates.
pub struct Credentials {
    folder: PathBuf,
    authority: KeyPair,
    authority_pem: String,
    users: Vec<User>,
}

struct User {
    caller: Caller,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
    token: String,
}

/// (name of the files, user name, group); roles are bound to the groups at start.
const USERS: &[(&str, &str, &str)] =
    &[("admin", "kubernetes-admin", "system:masters"), ("reader", "zoneward-reader", "zoneward:readers")];

impl Credentials {
    /// Reads the credentials in a folder, and creates missing ones.
    pub fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("pki");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let authority = key_at(&folder.join("ca.key"))?;
        let authority_pem = text_at(&folder.join("ca.crt"), || {
            Ok(authority_params().self_signed(&authority).map_err(io::Error::other)?.pem())
        })?;
        let mut users = Vec::new();
        for (file, name, group) in USERS {
            let key = key_at(&folder.join(format!("{file}.key")))?;
            let certificate_pem = text_at(&folder.join(format!("{file}.crt")), || {
                let params = authority_params();
                let issuer = Issuer::from_params(&params, &authority);
                let signed = user_params(name, group).signed_by(&key, &issuer).map_err(io::Error::other)?;
                Ok(signed.pem())
            })?;
            let token = text_at(&folder.join(format!("{file}.token")), new_token)?.trim().to_owned();
            let certificate =
                CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(io::Error::other)?;
            let caller = Caller::new(name, &[group, AUTHENTICATED]);
            users.push(User { caller, certificate, certificate_pem, key_pem: key.serialize_pem(), token });
        }
        Ok(Self { folder: data.to_owned(), authority, authority_pem, users })
    }

    /// TLS for a server at these addresses.
    pub fn server_config(&self, addresses: &[IpAddr]) -> io::Result<ServerConfig> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let params = authority_params();
        let issuer = Issuer::from_params(&params, &self.authority);
        let certificate = server_params(addresses)?.signed_by(&key, &issuer).map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        let authority =
            CertificateDer::from_pem_slice(self.authority_pem.as_bytes()).map_err(io::Error::other)?;
        roots.add(authority.clone()).map_err(io::Error::other)?;
        let provider = Arc::new(crypto::ring::default_provider());
        // A client may come with a token instead of a certificate.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(io::Error::other)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone(), authority], key)
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// The user of a certificate that the handshake verified.
    pub fn by_certificate(&self, certificate: &CertificateDer<'_>) -> Option<&Caller> {
        self.users.iter().find(|user| user.certificate == *certificate).map(|user| &user.caller)
    }

    pub fn by_token(&self, token: &str) -> Option<&Caller> {
        self.users
            .iter()
            .find(|user| constant_time_eq(user.token.as_bytes(), token.as_bytes()))
            .map(|user| &user.caller)
    }

    /// Writes the kubeconfigs for a server; returns the path of the admin's.
    pub fn write_kubeconfigs(&self, server: SocketAddr) -> io::Result<PathBuf> {
        let paths = ["kubeconfig", "reader.kubeconfig"].map(|name| self.folder.join(name));
        for (path, user) in paths.iter().zip(&self.users) {
            write_private(path, self.kubeconfig(user, server).as_bytes())?;
        }
        let [admin, _] = paths;
        Ok(admin)
    }

    /// Written as JSON, which is YAML.
    fn kubeconfig(&self, user: &User, server: SocketAddr) -> String {
        let name = &user.caller.user.name;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "zoneward", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority-data": STANDARD.encode(&self.authority_pem),
            }}],
            "users": [{"name": name, "user": {
                "client-certificate-data": STANDARD.encode(&user.certificate_pem),
                "client-key-data": STANDARD.encode(&user.key_pem),
            }}],
            "contexts": [{"name": "zoneward", "context": {"cluster": "zoneward", "user": name}}],
            "current-context": "zoneward",
        });
        format!("{config:#}\n")
    }
}

/// Compares in constant time.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
}

fn new_token() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| io::Error::other(format!("the system has no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Sets the validity of a certificate that is issued now: this many days, and one before, for clocks that are behind.
pub fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let date = |days: i64| {
        let date = (now + SignedDuration::from_hours(24 * days)).to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (date(-1), date(days));
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "zoneward-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn user_params(name: &str, group: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn server_params(addresses: &[IpAddr]) -> io::Result<CertificateParams> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut params = CertificateParams::new(names.map(str::to_owned).to_vec()).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, "zoneward");
    params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn key_at(path: &Path) -> io::Result<KeyPair> {
    let make = || Ok(KeyPair::generate().map_err(io::Error::other)?.serialize_pem());
    let pem = text_at(path, make)?;
    let unreadable =
        |error| io::Error::other(format!("{}: {error}: remove the file to create it again", path.display()));
    KeyPair::from_pem(&pem).map_err(unreadable)
}

/// The content of a file, which is created if missing.
fn text_at(path: &Path, make: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = make()?;
            write_private(path, text.as_bytes())?;
            Ok(text)
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// Writes a file that only its owner can read, atomically.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
