//! The certificate authority of a data directory, and what it issues: certificates of users, of servers, and of Envoys.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clock::Clock;
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::text_at;

/// Validity of a certificate; it is replaced after two thirds.
pub(super) const VALIDITY_DAYS: i64 = 365;
/// Names of the API.
const API_NAMES: [&str; 4] = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// The authority in `pki/`.
pub struct Authority {
    key: KeyPair,
    pem: String,
}

/// A certificate with its key, as PEM.
pub struct IssuedCertificate {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// Reads the authority of a data directory, and creates a missing one.
    pub(super) fn create(data: &Path, now: Timestamp) -> io::Result<Self> {
        let folder = data.join("pki");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let key = key_at(&folder.join("ca.key"))?;
        let pem = text_at(&folder.join("ca.crt"), || {
            let mut params = authority_params();
            // Clients have its certificate in their kubeconfigs: it outlives what it issues.
            set_validity(&mut params, now, 10 * VALIDITY_DAYS);
            Ok(params.self_signed(&key).map_err(io::Error::other)?.pem())
        })?;
        Ok(Self { key, pem })
    }

    /// Reads the authority of a data directory of `zoneward up`.
    pub fn open(data: &Path) -> io::Result<Self> {
        let read = |name: &str| {
            let path = data.join("pki").join(name);
            fs::read_to_string(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        let key = KeyPair::from_pem(&read("ca.key")?).map_err(io::Error::other)?;
        Ok(Self { key, pem: read("ca.crt")? })
    }

    /// Its certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn certificate(&self) -> io::Result<CertificateDer<'static>> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).map_err(io::Error::other)
    }

    fn sign(&self, mut params: CertificateParams, key: &KeyPair, now: Timestamp) -> io::Result<Certificate> {
        set_validity(&mut params, now, VALIDITY_DAYS);
        let authority = authority_params();
        params.signed_by(key, &Issuer::from_params(&authority, &self.key)).map_err(io::Error::other)
    }

    /// The certificate of a user of the API.
    pub(super) fn issue_user(
        &self,
        key: &KeyPair,
        name: &str,
        group: &str,
        now: Timestamp,
    ) -> io::Result<Certificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, key, now)
    }

    /// The certificate of a client that a URI names, such as an Envoy. It is no user of the API.
    pub fn issue_client(&self, uri: &str, now: Timestamp) -> io::Result<IssuedCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "zoneward-envoy");
        params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(io::Error::other)?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, now)
    }

    /// The certificate of a server.
    pub fn issue_server(
        &self,
        names: &[&str],
        addresses: &[IpAddr],
        now: Timestamp,
    ) -> io::Result<IssuedCertificate> {
        self.issue(server_params(names, addresses)?, now)
    }

    fn issue(&self, params: CertificateParams, now: Timestamp) -> io::Result<IssuedCertificate> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = self.sign(params, &key, now)?.pem();
        Ok(IssuedCertificate { certificate, key: key.serialize_pem() })
    }
}

/// The certificate of the API in memory, replaced after two thirds of its time.
#[derive(Debug)]
pub(super) struct ServerCertificate {
    authority: AuthorityHandle,
    addresses: Vec<IpAddr>,
    clock: Clock,
    current: Mutex<(Arc<CertifiedKey>, Timestamp)>,
}

/// Without its key in debug output.
struct AuthorityHandle(Arc<Authority>);

impl std::fmt::Debug for AuthorityHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl ServerCertificate {
    pub(super) fn new(authority: Arc<Authority>, addresses: &[IpAddr], clock: Clock) -> io::Result<Self> {
        let now = clock.timestamp();
        let current = Mutex::new((issue_api(&authority, addresses, now)?, now));
        Ok(Self { authority: AuthorityHandle(authority), addresses: addresses.to_vec(), clock, current })
    }

    pub(super) fn current(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.timestamp();
        if now.duration_since(current.1) >= SignedDuration::from_hours(24 * VALIDITY_DAYS / 3 * 2)
            && let Ok(issued) = issue_api(&self.authority.0, &self.addresses, now)
        {
            *current = (issued, now);
        }
        current.0.clone()
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

fn issue_api(authority: &Authority, addresses: &[IpAddr], now: Timestamp) -> io::Result<Arc<CertifiedKey>> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = authority.sign(server_params(&API_NAMES, addresses)?, &key, now)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![certificate.der().clone(), authority.certificate()?];
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map(Arc::new).map_err(io::Error::other)
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "zoneward-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn server_params(names: &[&str], addresses: &[IpAddr]) -> io::Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, "zoneward");
    params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// Sets the validity of a certificate that is issued now: this many days, and one before, for clocks that are behind.
pub fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let date = |days: i64| {
        let date = (now + SignedDuration::from_hours(24 * days)).to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (date(-1), date(days));
}

/// The key in a file, which is created if missing.
pub(super) fn key_at(path: &Path) -> io::Result<KeyPair> {
    let make = || Ok(KeyPair::generate().map_err(io::Error::other)?.serialize_pem());
    let pem = text_at(path, make)?;
    let unreadable =
        |error| io::Error::other(format!("{}: {error}: remove the file to create it again", path.display()));
    KeyPair::from_pem(&pem).map_err(unreadable)
}

/// The fields of a certificate from its validity on (RFC 5280, section 4.1).
fn from_validity(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    // The version is optional; then serial number, signature algorithm and issuer.
    let (tag, _, rest) = element(fields)?;
    if tag == 0xa0 {
        fields = rest;
    }
    for _ in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    Some(fields)
}

/// The hash of a certificate's public key, as kubeadm's `--discovery-token-ca-cert-hash`: `sha256:` and the SHA-256 of
/// its SubjectPublicKeyInfo.
pub fn public_key_hash(certificate: &[u8]) -> Option<String> {
    let (_, _, subject) = element(from_validity(certificate)?)?;
    let (_, _, key) = element(subject)?;
    let (_, _, rest) = element(key)?;
    let key = key.get(..key.len() - rest.len())?;
    Some(format!("sha256:{}", crate::authenticator::sha256(key)))
}

/// The end of a certificate's validity.
pub(super) fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (_, validity, _) = element(from_validity(certificate)?)?;
    let (_, _, validity) = element(validity)?;
    let (tag, time, _) = element(validity)?;
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    // UTCTime has two digits of the year: 50 and above are of the last century.
    let digits = match (tag, digits.get(..2)?.parse::<u8>().ok()?) {
        (0x17, 50..) => format!("19{digits}"),
        (0x17, _) => format!("20{digits}"),
        _ => digits.to_owned(),
    };
    let time = DateTime::strptime("%Y%m%d%H%M%S", &digits).ok()?;
    time.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|time| time.timestamp())
}

/// A DER element: tag, content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = der else { return None };
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}
