//! Access to the admin server off loopback, as kube-scheduler has it: HTTPS, and a token that the API reviews. Health
//! stays open for probes, in plain HTTP and in HTTPS on the same port.
//!
//! ```text
//! first byte of a connection --a TLS record--> handshake -> every path: health, or TokenReview -> SubjectAccessReview
//!                            \--anything else--> plain HTTP -> health only
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ::listener::{ConnectionOwner, HandshakeTurns};
use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

use super::AdminPage;

/// How long a decision holds: as long as kube-scheduler caches.
const DECISION_TTL: Duration = Duration::from_secs(10);
/// Cached decisions.
const MAX_DECISIONS: usize = 256;
/// The same for reports of nodes: there are thousands of them, and each reports every 30 s.
const REPORT_DECISION_TTL: Duration = Duration::from_secs(300);
const MAX_REPORT_DECISIONS: usize = 16_384;
/// Tokens under review at a time: a flood of wrong tokens must not become a flood of reviews.
const MAX_REVIEWS: usize = 4;
/// Deadline of a review, waiting included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer tokens are refused without a review.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Validity of a self-signed certificate, and the age at which it is replaced.
const CERTIFICATE_DAYS: i64 = 365;
const CERTIFICATE_RENEWAL: Duration = Duration::from_secs(CERTIFICATE_DAYS as u64 * 86_400 / 3 * 2);
/// The type of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// The flags for access off loopback.
#[derive(Clone, Debug, Default, Args)]
pub struct AdminAccessArgs {
    /// Serve /metrics and /status off loopback in plain HTTP and without authentication, as kube-proxy does
    #[arg(long)]
    pub metrics_plain_http: bool,
    /// Certificate chain of /metrics off loopback (PEM); reloaded when it changes [default: self-signed]
    #[arg(long, value_name = "FILE", requires = "metrics_tls_private_key_file")]
    pub metrics_tls_cert_file: Option<PathBuf>,
    /// Key of --metrics-tls-cert-file (PEM)
    #[arg(long, value_name = "FILE", requires = "metrics_tls_cert_file")]
    pub metrics_tls_private_key_file: Option<PathBuf>,
}

impl AdminAccessArgs {
    /// How an address is protected; `None` on loopback and with --metrics-plain-http. Without a client, tokens cannot be
    /// reviewed, and only health is served.
    pub fn access(
        &self,
        address: SocketAddr,
        client: Option<Client>,
        clock: &Clock,
    ) -> Result<Option<Arc<AdminAccess>>> {
        if address.ip().to_canonical().is_loopback() {
            return Ok(None);
        }
        if self.metrics_plain_http {
            warn!(%address, "metrics are served in plain HTTP to every client that reaches the address");
            return Ok(None);
        }
        if client.is_none() {
            warn!(%address, "metrics are not served: there is no API to review tokens; set --metrics-plain-http to serve them without");
        }
        let files = match (&self.metrics_tls_cert_file, &self.metrics_tls_private_key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            _ => None,
        };
        let certificate = ServingCertificate::new(files, clock.clone())
            .context("--metrics-tls-cert-file, --metrics-tls-private-key-file")?;
        AdminAccess::new(certificate, client, clock.clone()).map(|access| Some(Arc::new(access)))
    }

    /// The flags again, for a child process.
    pub fn words(&self) -> Vec<std::ffi::OsString> {
        let mut words = Vec::new();
        if self.metrics_plain_http {
            words.push("--metrics-plain-http".into());
        }
        let files = [
            ("--metrics-tls-cert-file", &self.metrics_tls_cert_file),
            ("--metrics-tls-private-key-file", &self.metrics_tls_private_key_file),
        ];
        for (flag, file) in files {
            words.extend(file.iter().flat_map(|file| [flag.into(), file.into()]));
        }
        words
    }
}

/// Decides which requests are answered.
pub struct AdminAccess {
    acceptor: TlsAcceptor,
    client: Option<Client>,
    clock: Clock,
    reviews: Semaphore,
    reads: DecisionCache,
    reports: DecisionCache,
    certificate: Arc<ServingCertificate>,
}

struct DecisionCache {
    ttl: Duration,
    max: usize,
    decisions: Mutex<BTreeMap<Question, (Instant, Decision)>>,
}

/// An account whose token the API reviewed, with what the token says about its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewedUser {
    pub name: String,
    /// `authentication.kubernetes.io/node-name`.
    pub node: Option<String>,
    /// `authentication.kubernetes.io/pod-name`.
    pub pod: Option<String>,
}

impl ReviewedUser {
    /// Whether it is a machine or an L7 proxy of one, whose credential ends at once with its Node:
    /// `kubectl delete node`.
    fn is_machine(&self) -> bool {
        self.name.starts_with("system:node:") || model::ProxyUser::of_name(&self.name).is_some()
    }
}

/// A token, a verb and a path.
type Question = (String, String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Allowed(ReviewedUser),
    /// The token is not valid.
    Unknown,
    /// The user may not read the path.
    Forbidden(String),
}

/// A connection after its first byte.
pub(super) enum AdminStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AdminAccess {
    fn new(certificate: ServingCertificate, client: Option<Client>, clock: Clock) -> Result<Self> {
        let certificate = Arc::new(certificate);
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("configuring TLS")?
            .with_no_client_auth()
            .with_cert_resolver(certificate.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            client,
            clock,
            reviews: Semaphore::new(MAX_REVIEWS),
            reads: DecisionCache::new(DECISION_TTL, MAX_DECISIONS),
            reports: DecisionCache::new(REPORT_DECISION_TTL, MAX_REPORT_DECISIONS),
            certificate,
        })
    }

    /// The SHA-256 of the certificate, in hexadecimal: nodes that report recognise it.
    pub fn certificate_digest(&self) -> String {
        let key = self.certificate.current();
        crate::ledger_client::certificate_digest(key.cert.first().map_or(&[][..], |first| first.as_ref()))
    }

    /// Looks at the first byte, and completes the handshake of a TLS connection.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<AdminStream> {
        let source = ConnectionOwner::source(stream.peer_addr()?.ip());
        let mut first = [0];
        match stream.peek(&mut first).await? {
            1 if first == [TLS_HANDSHAKE] => {
                let handshake = async { self.acceptor.accept(stream).await };
                let stream = HandshakeTurns::of_process().run(&source, handshake).await?;
                Ok(AdminStream::Tls(Box::new(stream)))
            }
            _ => Ok(AdminStream::Plain(stream)),
        }
    }

    /// Whether a request for a page other than health is answered, or the response that refuses it.
    pub(super) async fn check(&self, head: &Parts, is_tls: bool) -> Result<ReviewedUser, AdminPage> {
        let refuse = |status, text: String| Err(AdminPage::text(status, text + "\n"));
        if !is_tls {
            let text = "this path is served over HTTPS only; health is served in plain HTTP".to_owned();
            return refuse(StatusCode::BAD_REQUEST, text);
        }
        let Some(client) = &self.client else {
            let text = "tokens cannot be reviewed without an API: start with --metrics-plain-http to serve this path without";
            return refuse(StatusCode::FORBIDDEN, text.to_owned());
        };
        let Some(token) = bearer_token(head) else {
            return Err(unauthorized("missing token: send `Authorization: Bearer TOKEN`"));
        };
        let path = head.uri.path().to_owned();
        let question = (token.to_owned(), head.method.as_str().to_ascii_lowercase(), path.clone());
        match self.decide(client, question).await {
            Ok(Decision::Allowed(user)) => Ok(user),
            Ok(Decision::Unknown) => Err(unauthorized("the token is not valid")),
            Ok(Decision::Forbidden(user)) => {
                let verb = head.method.as_str().to_ascii_lowercase();
                refuse(StatusCode::FORBIDDEN, format!("forbidden: User {user:?} cannot {verb} path {path:?}"))
            }
            Err(error) => {
                warn!(error, "token of a metrics request could not be reviewed");
                refuse(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the API could not review the token; retry later".to_owned(),
                )
            }
        }
    }

    async fn decide(&self, client: &Client, question: Question) -> Result<Decision, String> {
        let cache = if question.1 == "post" { &self.reports } else { &self.reads };
        if let Some(decision) = cache.find(&question, &self.clock) {
            return Ok(decision);
        }
        let reviewed = async {
            let _permit = self.reviews.acquire().await.map_err(|error| error.to_string())?;
            // Another request may have asked the same meanwhile.
            match cache.find(&question, &self.clock) {
                Some(decision) => Ok(decision),
                None => review(client, &question).await.map_err(|error| error.to_string()),
            }
        };
        let decision = tokio::time::timeout(REVIEW_TIMEOUT, reviewed)
            .await
            .map_err(|_| "the review timed out".to_owned())??;
        // Machines are few, and their credentials are revoked: each of their requests is reviewed.
        if !matches!(&decision, Decision::Allowed(user) if user.is_machine()) {
            cache.remember(question, decision.clone(), &self.clock);
        }
        Ok(decision)
    }
}

impl DecisionCache {
    fn new(ttl: Duration, max: usize) -> Self {
        Self { ttl, max, decisions: Mutex::default() }
    }

    fn find(&self, question: &Question, clock: &Clock) -> Option<Decision> {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, decision) = decisions.get(question)?;
        // Refusals are short-lived in both caches: a right that was just granted works soon.
        let ttl = if matches!(decision, Decision::Allowed(_)) { self.ttl } else { DECISION_TTL };
        (clock.since(*at) < ttl).then(|| decision.clone())
    }

    fn remember(&self, question: Question, decision: Decision, clock: &Clock) {
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        if decisions.len() >= self.max {
            decisions.retain(|_, (at, _)| clock.since(*at) < self.ttl);
        }
        if decisions.len() >= self.max {
            // Wrong tokens must not displace the scraper's.
            decisions.retain(|_, (_, decision)| matches!(decision, Decision::Allowed(_)));
        }
        if decisions.len() < self.max {
            decisions.insert(question, (clock.now(), decision));
        }
    }
}

fn unauthorized(text: &str) -> AdminPage {
    AdminPage::text(StatusCode::UNAUTHORIZED, format!("{text}\n"))
        .with_header("www-authenticate", "Bearer".to_owned())
}

fn bearer_token(head: &Parts) -> Option<&str> {
    let (scheme, token) = head.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN_BYTES)
        .then_some(token)
}

/// Asks the API for the user of the token, then whether the user may read the path.
async fn review(client: &Client, (token, verb, path): &Question) -> Result<Decision, kube::Error> {
    let spec = TokenReviewSpec { token: token.clone(), ..TokenReviewSpec::default() };
    let asked = TokenReview { spec, ..TokenReview::default() };
    let status = create(client, &asked).await?.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
        return Ok(Decision::Unknown);
    };
    let UserInfo { username, groups, uid, extra } = user;
    let attributes = NonResourceAttributes { path: Some(path.clone()), verb: Some(verb.clone()) };
    let from_token = |key: &str| extra.as_ref().and_then(|all| all.get(key)?.first().cloned());
    let reviewed = ReviewedUser {
        name: username.clone().unwrap_or_default(),
        node: from_token("authentication.kubernetes.io/node-name"),
        pod: from_token("authentication.kubernetes.io/pod-name"),
    };
    let spec = SubjectAccessReviewSpec {
        user: username.clone(),
        groups,
        uid,
        extra,
        non_resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let asked = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let status = create(client, &asked).await?.status.unwrap_or_default();
    Ok(match status.allowed && status.denied != Some(true) {
        true => Decision::Allowed(reviewed),
        false => Decision::Forbidden(username.unwrap_or_default()),
    })
}

async fn create<K>(client: &Client, object: &K) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    Api::<K>::all(client.clone()).create(&PostParams::default(), object).await
}

/// The certificate of the server: from files, read again when they change, or self-signed and renewed in time.
#[derive(Debug)]
struct ServingCertificate {
    files: Option<(PathBuf, PathBuf)>,
    clock: Clock,
    current: Mutex<LoadedCertificate>,
}

#[derive(Debug)]
struct LoadedCertificate {
    key: Arc<CertifiedKey>,
    /// Of the files that it was read from.
    modified: Option<[SystemTime; 2]>,
    created: Instant,
}

impl ServingCertificate {
    fn new(files: Option<(PathBuf, PathBuf)>, clock: Clock) -> Result<Self> {
        let current = Mutex::new(LoadedCertificate::load(files.as_ref(), &clock)?);
        Ok(Self { files, clock, current })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stale = match &self.files {
            // Files that are being replaced keep the previous certificate.
            Some(files) => modified(files).is_ok_and(|modified| Some(modified) != current.modified),
            None => self.clock.since(current.created) >= CERTIFICATE_RENEWAL,
        };
        if is_stale {
            match LoadedCertificate::load(self.files.as_ref(), &self.clock) {
                Ok(loaded) => {
                    info!("certificate of the metrics server reloaded");
                    *current = loaded;
                }
                Err(error) => {
                    warn!(error = %format_args!("{error:#}"), "certificate of the metrics server was not reloaded; the previous one stays");
                    // Logged once per change.
                    current.modified = self.files.as_ref().and_then(|files| modified(files).ok());
                }
            }
        }
        current.key.clone()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl LoadedCertificate {
    fn load(files: Option<&(PathBuf, PathBuf)>, clock: &Clock) -> Result<Self> {
        let (modified, chain, key) = match files {
            Some(files) => {
                let modified = modified(files).context("reading the certificate")?;
                let (chain, key) = read_pem(&files.0, &files.1)?;
                (Some(modified), chain, key)
            }
            None => {
                let (chain, key) = self_signed(clock)?;
                (None, chain, key)
            }
        };
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .context("certificate and key do not match")?;
        Ok(Self { key: Arc::new(key), modified, created: clock.now() })
    }
}

fn modified((certificate, key): &(PathBuf, PathBuf)) -> io::Result<[SystemTime; 2]> {
    Ok([fs::metadata(certificate)?.modified()?, fs::metadata(key)?.modified()?])
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_pem(certificate: &Path, key: &Path) -> Result<ChainAndKey> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let chain = chain.with_context(|| format!("{}: not PEM", certificate.display()))?;
    if chain.is_empty() {
        bail!("{}: no certificate found", certificate.display());
    }
    let key = PrivateKeyDer::from_pem_slice(&read(key)?)
        .with_context(|| format!("{}: not a PEM private key", key.display()))?;
    Ok((chain, key))
}

/// For clients that do not verify certificates, as kube-scheduler's own.
fn self_signed(clock: &Clock) -> Result<ChainAndKey> {
    let key = rcgen::KeyPair::generate().context("creating a key")?;
    let mut params =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).context("creating a certificate")?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "zoneward-metrics");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let date = |days: i64| {
        let date = clock.timestamp() + jiff::SignedDuration::from_hours(24 * days);
        let date = date.to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    // From a day ago on: clocks of clients may be behind.
    (params.not_before, params.not_after) = (date(-1), date(CERTIFICATE_DAYS));
    let certificate = params.self_signed(&key).context("creating a certificate")?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok((vec![certificate.der().clone()], key))
}

#[cfg(test)]
mod tests;
