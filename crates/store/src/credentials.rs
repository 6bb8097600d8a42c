//! Credentials: a certificate authority, an admin and a reader, created on first start and renewed in time.
//!
//! ```text
//! DIR/pki/ca.crt, ca.key              the authority; the server's certificate is in memory only
//! DIR/pki/admin.*, reader.*           certificate, key and token of each user; *.previous.* until they expire
//! DIR/kubeconfig, reader.kubeconfig   complete configuration for kubectl
//! ```
//!
//! All files are readable by their owner only. Clients authenticate by exactly their certificate, or by their token;
//! there is no anonymous access. Keys and tokens are random bytes of the operating system. Certificates and tokens are
//! valid for a year and replaced after two thirds of it, certificates with their keys; the one before stays valid until it
//! expires.

mod authority;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clock::Clock;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::api::Caller;
use apimachinery::rbac::AUTHENTICATED;
pub use authority::{Authority, IssuedCertificate, public_key_hash, set_validity};
use authority::{ServerCertificate, VALIDITY_DAYS, key_at, not_after};

/// Interval between checks for credentials to renew, or that were deleted to be replaced.
const REFRESH_PERIOD: Duration = Duration::from_secs(60);

/// The users of the API, and the authority that issues certificates.
pub struct Credentials {
    folder: PathBuf,
    clock: Clock,
    authority: Arc<Authority>,
    users: RwLock<Vec<User>>,
    /// The server in the kubeconfigs, once they were written.
    server: OnceLock<SocketAddr>,
}

#[derive(Clone, PartialEq)]
struct User {
    caller: Caller,
    /// The current one, and the one before, each with its end.
    certificates: Vec<(CertificateDer<'static>, Timestamp)>,
    certificate_pem: String,
    key_pem: String,
    /// The current one, and the one before.
    tokens: Vec<String>,
}

/// (name of the files, user name, group); roles are bound to the groups at start.
const USERS: &[(&str, &str, &str)] =
    &[("admin", "kubernetes-admin", "system:masters"), ("reader", "zoneward-reader", "zoneward:readers")];

impl Credentials {
    /// Reads the credentials in a folder, and creates missing ones.
    pub fn open(data: &Path) -> io::Result<Self> {
        Self::open_at(data, Clock::system())
    }

    /// As [`Credentials::open`], with another clock.
    pub fn open_at(data: &Path, clock: Clock) -> io::Result<Self> {
        let authority = Arc::new(Authority::create(data, clock.timestamp())?);
        let users = users(data, &authority, clock.timestamp())?;
        let (users, server) = (RwLock::new(users), OnceLock::new());
        Ok(Self { folder: data.to_owned(), clock, authority, users, server })
    }

    /// Renews what is due and reads again what was replaced; returns whether anything changed.
    pub fn refresh(&self) -> io::Result<bool> {
        let now = users(&self.folder, &self.authority, self.clock.timestamp())?;
        let is_changed = *self.users() != now;
        if is_changed {
            *self.users.write().unwrap_or_else(PoisonError::into_inner) = now;
            if let Some(server) = self.server.get() {
                self.write_kubeconfigs(*server)?;
            }
        }
        Ok(is_changed)
    }

    fn users(&self) -> std::sync::RwLockReadGuard<'_, Vec<User>> {
        self.users.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// TLS for a server at these addresses. Its certificate is renewed without a restart.
    pub fn server_config(&self, addresses: &[IpAddr]) -> io::Result<ServerConfig> {
        let certificate = ServerCertificate::new(self.authority.clone(), addresses, self.clock.clone())?;
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate()?).map_err(io::Error::other)?;
        let provider = Arc::new(crypto::ring::default_provider());
        // A client may come with a token instead of a certificate.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(io::Error::other)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(certificate));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// The user of a certificate that the handshake verified, as of now: a certificate can expire or be replaced while
    /// its connection is open, so it is looked up for each request, among two of each user.
    pub fn by_certificate(&self, certificate: &CertificateDer<'_>) -> Option<Caller> {
        let now = self.clock.timestamp();
        let is_own = |(own, end): &(CertificateDer<'_>, Timestamp)| own == certificate && now < *end;
        let users = self.users();
        users.iter().find(|user| user.certificates.iter().any(is_own)).map(|user| user.caller.clone())
    }

    pub fn by_token(&self, token: &str) -> Option<Caller> {
        let now = self.clock.timestamp();
        let is_own = |own: &String| {
            constant_time_eq(own.as_bytes(), token.as_bytes())
                && token_expiry(own).is_none_or(|expiry| now < expiry)
        };
        let users = self.users();
        users.iter().find(|user| user.tokens.iter().any(is_own)).map(|user| user.caller.clone())
    }

    /// Writes the kubeconfigs for a server; returns the path of the admin's.
    pub fn write_kubeconfigs(&self, server: SocketAddr) -> io::Result<PathBuf> {
        let _ = self.server.set(server);
        let paths = ["kubeconfig", "reader.kubeconfig"].map(|name| self.folder.join(name));
        for (path, user) in paths.iter().zip(self.users().iter()) {
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
                "certificate-authority-data": STANDARD.encode(self.authority.pem()),
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

/// Renews credentials until `stop` turns true. A failure is reported and retried in the next period; the credentials stay
/// as they are.
pub async fn keep_credentials(
    credentials: Arc<Credentials>,
    changed: impl Fn(io::Result<()>),
    mut stop: watch::Receiver<bool>,
) {
    while tokio::time::timeout(REFRESH_PERIOD, stop.wait_for(|stop| *stop)).await.is_err() {
        match credentials.refresh() {
            Ok(false) => {}
            Ok(true) => changed(Ok(())),
            Err(error) => changed(Err(error)),
        }
    }
}

/// The users of the files in a folder, with missing and old ones replaced.
fn users(data: &Path, authority: &Authority, now: Timestamp) -> io::Result<Vec<User>> {
    let folder = data.join("pki");
    let user = |(file, name, group): &(&str, &str, &str)| {
        let path = |ending: &str| folder.join(format!("{file}.{ending}"));
        let mut key = key_at(&path("key"))?;
        let issue = |key: &rcgen::KeyPair| Ok(authority.issue_user(key, name, group, now)?.pem());
        let mut certificate_pem = text_at(&path("crt"), || issue(&key))?;
        let (has_own_key, end) = (has_key(&certificate_pem, &key)?, expiry(&certificate_pem)?);
        if is_due(end, now) || !has_own_key {
            // A stolen key ends with its certificate.
            let new_key = rcgen::KeyPair::generate().map_err(io::Error::other)?;
            let new = issue(&new_key)?;
            // The key comes before its certificate: interrupted in between, a certificate is issued at the next start.
            let renewed = write_all_private(&[
                (&path("previous.crt"), &certificate_pem),
                (&path("key"), &new_key.serialize_pem()),
                (&path("crt"), &new),
            ]);
            if unless_full(renewed, has_own_key && end > now)? {
                (key, certificate_pem) = (new_key, new);
            }
        }
        let mut token = text_at(&path("token"), || new_token(now))?.trim().to_owned();
        let end = token_expiry(&token);
        if end.is_none_or(|end| is_due(end, now)) {
            let new = new_token(now)?;
            let renewed = write_all_private(&[(&path("previous.token"), &token), (&path("token"), &new)]);
            if unless_full(renewed, end.is_some_and(|end| end > now))? {
                token = new;
            }
        }
        let with_end = |pem: &str| Ok::<_, io::Error>((parse(pem)?, expiry(pem)?));
        let mut certificates = vec![with_end(&certificate_pem)?];
        certificates.extend(optional(&path("previous.crt"))?.map(|pem| with_end(&pem)).transpose()?);
        let mut tokens = vec![token];
        tokens.extend(optional(&path("previous.token"))?.map(|token| token.trim().to_owned()));
        let caller = Caller::new(name, &[group, AUTHENTICATED]);
        Ok(User { caller, certificates, certificate_pem, key_pem: key.serialize_pem(), tokens })
    };
    USERS.iter().map(user).collect()
}

/// A credential that cannot be renewed because the disk is full stays while it is usable, so that a restart succeeds.
/// Returns whether it was renewed.
fn unless_full(renewed: io::Result<()>, is_usable: bool) -> io::Result<bool> {
    match renewed {
        Err(error) if is_usable && error.kind() == io::ErrorKind::StorageFull => Ok(false),
        renewed => renewed.map(|()| true),
    }
}

fn parse(pem: &str) -> io::Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(io::Error::other)
}

fn expiry(pem: &str) -> io::Result<Timestamp> {
    not_after(&parse(pem)?).ok_or_else(|| io::Error::other("a certificate has no end of its validity"))
}

/// The hash of the public key of a certificate in PEM; see [`public_key_hash`].
pub fn certificate_hash(pem: &[u8]) -> io::Result<String> {
    let certificate = CertificateDer::from_pem_slice(pem).map_err(io::Error::other)?;
    public_key_hash(&certificate).ok_or_else(|| io::Error::other("a certificate has no public key"))
}

/// A certificate in PEM.
pub fn certificate_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    // Base64 is ASCII, so every chunk is text.
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Whether a certificate is for a key: it contains its public key.
fn has_key(pem: &str, key: &rcgen::KeyPair) -> io::Result<bool> {
    let public = key.public_key_raw();
    Ok(parse(pem)?.windows(public.len()).any(|window| window == public))
}

/// Whether a credential is replaced: two thirds of its time are over, or it is valid for longer than we issue.
fn is_due(expiry: Timestamp, now: Timestamp) -> bool {
    let left = expiry.duration_since(now);
    left <= SignedDuration::from_hours(24 * VALIDITY_DAYS / 3)
        || left > SignedDuration::from_hours(24 * (VALIDITY_DAYS + 2))
}

fn optional(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// Compares in constant time.
pub(crate) fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
}

/// Random bytes behind the time at which the token expires, in seconds.
fn new_token(now: Timestamp) -> io::Result<String> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| io::Error::other(format!("the system has no random bytes: {error}")))?;
    let expiry = now.as_second() + VALIDITY_DAYS * 86_400;
    Ok(format!("{expiry}-{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// When a token expires; `None` for one of a version without expiry.
fn token_expiry(token: &str) -> Option<Timestamp> {
    Timestamp::from_second(token.split_once('-')?.0.parse().ok()?).ok()
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

/// Writes a file that only its owner can read, atomically. A file with this content stays: a restart needs no space.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) {
        return fs::set_permissions(path, fs::Permissions::from_mode(0o600));
    }
    fs::rename(write_temporary(path, content)?, path)
}

/// Writes files that belong together. If there is no space for one of them, all stay as they are.
fn write_all_private(files: &[(&Path, &str)]) -> io::Result<()> {
    let mut temporaries = Vec::new();
    for (path, content) in files {
        match write_temporary(path, content.as_bytes()) {
            Ok(temporary) => temporaries.push(temporary),
            Err(error) => {
                temporaries.iter().for_each(|temporary| drop(fs::remove_file(temporary)));
                return Err(error);
            }
        }
    }
    files.iter().zip(temporaries).try_for_each(|((path, _), temporary)| fs::rename(temporary, path))
}

/// The content of a file that will be renamed.
fn write_temporary(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()
    };
    let written = write().inspect_err(|_| drop(fs::remove_file(&temporary)));
    written.map(|()| temporary.into())
}

#[cfg(test)]
mod tests;
