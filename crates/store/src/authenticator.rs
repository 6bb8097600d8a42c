//! Authentication by bearer token: the tokens of [`Credentials`], and the tokens of service accounts, which are JWTs.
//!
//! ```text
//! DIR/pki/sa-SECONDS.key   a signing key, by when it was created; the newest signs, all verify
//! ```
//!
//! A new key is created after [`ROTATION`]; an old one is deleted when no token that it signed can be valid any more.
//! Both need no restart.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use apimachinery::join::{self, JoinToken, NodeIdentity, StoredToken};
use apimachinery::rbac::UserInfo;
use apimachinery::service_account::{LiveObject, TokenConfig, TokenPlan, check_claims};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use model::ProxyUser;
use rcgen::PublicKeyData;
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::Api;
use crate::credentials::{Credentials, constant_time_eq, write_private};
use crate::engine::Engine;
use crate::kinds;
use crate::meta;
use crate::object_txn::key;

/// The issuer of tokens, and the audience of the API.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Age at which a new signing key is created.
pub const ROTATION: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The longest lifetime of a token: an old key must not be kept for ever.
const MAX_SECONDS: i64 = 365 * 24 * 3_600;
/// How often the age of the keys is checked.
const CHECK_PERIOD: Duration = Duration::from_secs(3_600);
/// Tokens whose signature was verified.
const VERIFIED: usize = 1_024;
/// A longer token is not looked at.
const MAX_TOKEN: usize = 16 << 10;

const PREFIX: &str = "sa-";
const SUFFIX: &str = ".key";

/// Authenticates bearer tokens and signs those of service accounts.
pub(crate) struct Authenticator {
    keys: RwLock<SigningKeys>,
    credentials: OnceLock<Arc<Credentials>>,
    config: TokenConfig,
    /// Lifetime of credentials of nodes.
    node_seconds: AtomicI64,
    verified: Mutex<VerifiedTokens>,
}

/// Why a token is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthenticationError {
    #[error("{0}")]
    Invalid(String),
    /// It was valid: its holder is told why it is not any more.
    #[error("{0}")]
    Ended(String),
}

/// A key pair and its public parts.
struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
    /// Seconds since 1970; 0 for a key that is not stored.
    created: i64,
}

/// The signing keys, the newest last.
#[derive(Default)]
struct SigningKeys {
    folder: Option<PathBuf>,
    keys: Vec<Arc<SigningKey>>,
}

/// The claims of verified tokens by the hash of the token, the oldest first.
#[derive(Default)]
struct VerifiedTokens {
    claims: BTreeMap<Vec<u8>, Arc<Value>>,
    order: VecDeque<Vec<u8>>,
}

impl Default for Authenticator {
    /// With a signing key that is lost with the process.
    fn default() -> Self {
        let config = TokenConfig {
            issuer: ISSUER.to_owned(),
            api_audiences: vec![ISSUER.to_owned()],
            max_seconds: MAX_SECONDS,
            extend: true,
        };
        let keys = RwLock::new(SigningKeys::default());
        let node_seconds = AtomicI64::new(join::CREDENTIAL_SECONDS);
        Self { keys, credentials: OnceLock::new(), config, node_seconds, verified: Mutex::default() }
    }
}

impl Authenticator {
    pub(crate) fn config(&self) -> &TokenConfig {
        &self.config
    }

    /// Seconds that a credential of a node is valid.
    pub(crate) fn node_seconds(&self) -> i64 {
        self.node_seconds.load(Ordering::Relaxed)
    }

    pub(crate) fn set_node_seconds(&self, seconds: i64) {
        self.node_seconds.store(seconds, Ordering::Relaxed);
    }

    /// Adds the credentials of the server's own users.
    pub(crate) fn set_credentials(&self, credentials: Arc<Credentials>) {
        // A second server of the same API has the same credentials.
        let _ = self.credentials.set(credentials);
    }

    /// Reads the signing keys in `DIR/pki`, and creates one if there is none.
    pub(crate) fn open_keys(&self, data: &Path, now: i64) -> io::Result<()> {
        let folder = data.join("pki");
        let mut keys = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let Some(created) = created(&name.to_string_lossy()) else { continue };
            let path = folder.join(&name);
            let pem = fs::read_to_string(&path)?;
            let unreadable = || {
                io::Error::other(format!(
                    "{}: not a PKCS #8 key of curve P-256: remove the file",
                    path.display()
                ))
            };
            keys.push(Arc::new(SigningKey::parse(&pem, created).ok_or_else(unreadable)?));
        }
        keys.sort_by_key(|key| key.created);
        *self.write_keys() = SigningKeys { folder: Some(folder), keys };
        self.rotate(now)
    }

    /// Creates a new signing key if the newest is too old, and deletes those that no valid token needs.
    pub(crate) fn rotate(&self, now: i64) -> io::Result<()> {
        let due = |key: &Arc<SigningKey>| key.created.saturating_add_unsigned(ROTATION.as_secs()) <= now;
        let (folder, is_due, has_key) = {
            let keys = self.read_keys();
            (keys.folder.clone(), keys.keys.last().is_none_or(due), !keys.keys.is_empty())
        };
        let Some(folder) = folder else { return Ok(()) };
        if is_due && let Err(error) = self.add_key(&folder, now) {
            // On a full disk the old key signs until the next attempt.
            if !has_key || error.kind() != io::ErrorKind::StorageFull {
                return Err(error);
            }
        }
        let mut keys = self.write_keys();
        // A key is needed for as long as tokens live that were signed before the next one was created.
        let needed = |at: usize| {
            let next = keys.keys.get(at + 1);
            next.is_none_or(|next| next.created.saturating_add(MAX_SECONDS).saturating_add(60) >= now)
        };
        let (kept, old): (Vec<usize>, Vec<usize>) = (0..keys.keys.len()).partition(|at| needed(*at));
        for at in old {
            let name = format!("{PREFIX}{}{SUFFIX}", keys.keys[at].created);
            match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        keys.keys = kept.into_iter().map(|at| keys.keys[at].clone()).collect();
        Ok(())
    }

    /// Creates a signing key. Verified tokens stay valid: their keys stay.
    pub(crate) fn add_key(&self, folder: &Path, now: i64) -> io::Result<()> {
        let (key, pem) = SigningKey::generate(now)?;
        write_private(&folder.join(format!("{PREFIX}{now}{SUFFIX}")), pem.as_bytes())?;
        self.write_keys().keys.push(Arc::new(key));
        Ok(())
    }

    fn read_keys(&self) -> std::sync::RwLockReadGuard<'_, SigningKeys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_keys(&self) -> std::sync::RwLockWriteGuard<'_, SigningKeys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that signs; one in memory is created if there is none.
    fn signing_key(&self) -> io::Result<Arc<SigningKey>> {
        if let Some(key) = self.read_keys().keys.last() {
            return Ok(key.clone());
        }
        let mut keys = self.write_keys();
        if keys.keys.is_empty() {
            keys.keys.push(Arc::new(SigningKey::generate(0)?.0));
        }
        keys.keys.last().cloned().ok_or_else(|| io::Error::other("there is no signing key"))
    }

    /// Signs a token.
    pub(crate) fn sign(&self, plan: &TokenPlan, id: &str, now: i64) -> io::Result<String> {
        self.sign_claims(&plan.claims(&self.config.issuer, id, now))
    }

    /// Signs the credential of a node, or that of an L7 proxy of it.
    pub(crate) fn sign_node(
        &self,
        node: &NodeIdentity,
        proxy: Option<&ProxyUser>,
        id: &str,
        now: i64,
    ) -> io::Result<String> {
        let TokenConfig { issuer, api_audiences, .. } = &self.config;
        let claims = node.claims(issuer, api_audiences, id, now, self.node_seconds());
        self.sign_claims(&match proxy {
            Some(proxy) => join::proxy_claims(proxy, claims),
            None => claims,
        })
    }

    fn sign_claims(&self, claims: &Value) -> io::Result<String> {
        let key = self.signing_key()?;
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = part(&json!({"alg": "ES256", "kid": key.id}));
        let signed = format!("{header}.{}", part(claims));
        let signature = key
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .map_err(|_| io::Error::other("the token could not be signed"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    /// The user of a token, and the audiences that it is valid for. Without audiences, those of the API are meant.
    pub(crate) fn authenticate(
        &self,
        engine: &Engine,
        token: &str,
        audiences: &[String],
        now: i64,
    ) -> Result<(UserInfo, Vec<String>), AuthenticationError> {
        let accepted = if audiences.is_empty() { &self.config.api_audiences } else { audiences };
        let for_api = |user: UserInfo| {
            let api = &self.config.api_audiences;
            let shared: Vec<String> = accepted.iter().filter(|item| api.contains(item)).cloned().collect();
            match shared.is_empty() {
                true => Err(AuthenticationError::Invalid("the token is valid for the API only".to_owned())),
                false => Ok((user, shared)),
            }
        };
        if let Some(user) = self.credentials.get().and_then(|credentials| credentials.by_token(token)) {
            return for_api(UserInfo::clone(&user.user));
        }
        if let Some(token) = JoinToken::parse(token) {
            return check_join_token(engine, &token, now).and_then(for_api);
        }
        let invalid = || AuthenticationError::Invalid("the token is not valid".to_owned());
        let claims = self.verify(token).ok_or_else(invalid)?;
        let find = |kind: &str, namespace: &str, name: &str| find_object(engine, kind, namespace, name);
        let issuer = &self.config.issuer;
        match join::is_node_credential(&claims) {
            true => join::check_node_claims(&claims, issuer, accepted, now, &find)
                .map_err(AuthenticationError::Ended),
            false => {
                check_claims(&claims, issuer, accepted, now, &find).map_err(AuthenticationError::Invalid)
            }
        }
    }

    /// The claims of a token with a valid signature.
    fn verify(&self, token: &str) -> Option<Arc<Value>> {
        if token.len() > MAX_TOKEN || token.split('.').count() != 3 {
            return None;
        }
        let hash = digest::digest(&digest::SHA256, token.as_bytes()).as_ref().to_vec();
        if let Some(claims) = self.lock_verified().claims.get(&hash) {
            return Some(claims.clone());
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        let signature = decode(signature)?;
        if header["alg"] != "ES256" {
            return None;
        }
        let keys = self.read_keys().keys.clone();
        // Every token from here names its key: others cost no verification.
        let id = header["kid"].as_str()?;
        let key = keys.iter().find(|key| key.id == id)?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.pair.public_key().as_ref());
        public.verify(signed.as_bytes(), &signature).ok()?;
        let claims: Arc<Value> = Arc::new(serde_json::from_slice(&decode(claims)?).ok()?);
        self.lock_verified().insert(hash, claims.clone());
        Some(claims)
    }

    fn lock_verified(&self) -> std::sync::MutexGuard<'_, VerifiedTokens> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `/.well-known/openid-configuration`.
    pub(crate) fn openid_configuration(&self) -> Value {
        json!({
            "issuer": self.config.issuer, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// `/openid/v1/jwks`: the public keys.
    pub(crate) fn key_set(&self) -> Value {
        // So that there is one.
        let _ = self.signing_key();
        let shown = |key: &Arc<SigningKey>| {
            // An uncompressed point: 4, then both coordinates.
            let point = key.pair.public_key().as_ref();
            let part =
                |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(point.get(range).unwrap_or_default());
            json!({"use": "sig", "kty": "EC", "kid": key.id, "crv": "P-256", "alg": "ES256",
                "x": part(1..33), "y": part(33..65)})
        };
        let keys: Vec<Value> = self.read_keys().keys.iter().map(shown).collect();
        json!({"keys": keys})
    }
}

impl VerifiedTokens {
    fn insert(&mut self, hash: Vec<u8>, claims: Arc<Value>) {
        if self.claims.insert(hash.clone(), claims).is_some() {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > VERIFIED
            && let Some(oldest) = self.order.pop_front()
        {
            self.claims.remove(&oldest);
        }
    }
}

impl SigningKey {
    fn generate(created: i64) -> io::Result<(Self, String)> {
        let pem = rcgen::KeyPair::generate().map_err(io::Error::other)?.serialize_pem();
        let key = Self::parse(&pem, created).ok_or_else(|| io::Error::other("a new key cannot be read"))?;
        Ok((key, pem))
    }

    fn parse(pem: &str, created: i64) -> Option<Self> {
        let read = rcgen::KeyPair::from_pem(pem).ok()?;
        let (der, random) = (read.serialize_der(), SystemRandom::new());
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random).ok()?;
        // As Kubernetes: the hash of the public key as SubjectPublicKeyInfo.
        let hash = digest::digest(&digest::SHA256, &read.subject_public_key_info());
        let id = URL_SAFE_NO_PAD.encode(hash.as_ref());
        Some(Self { pair, id, created })
    }
}

/// The user of a token to join with. One that was used is not stored any more.
fn check_join_token(engine: &Engine, token: &JoinToken, now: i64) -> Result<UserInfo, AuthenticationError> {
    let invalid = || AuthenticationError::Invalid("the token is not valid".to_owned());
    let secrets = kinds::named("Secret").ok_or_else(invalid)?;
    let key = key(secrets, join::NAMESPACE, &join::secret_name(&token.id));
    let stored = engine.get_cached(&key).ok().flatten().ok_or_else(invalid)?;
    let secret: Value = serde_json::from_slice(&stored.json).map_err(|_| invalid())?;
    let stored = stored_token(&secret).ok_or_else(invalid)?;
    if !constant_time_eq(stored.hash.as_bytes(), sha256(token.secret.as_bytes()).as_bytes()) {
        return Err(invalid());
    }
    if stored.is_expired(now) {
        return Err(AuthenticationError::Ended(format!("the token {} has expired", token.id)));
    }
    Ok(join::bootstrap_user(&token.id))
}

/// The token of a Secret.
pub(crate) fn stored_token(secret: &Value) -> Option<StoredToken> {
    StoredToken::of_secret(secret, |data| STANDARD.decode(data).ok())
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// When the key of a file was created.
fn created(name: &str) -> Option<i64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// An object that tokens are bound to, as it is stored.
pub(crate) fn find_object(engine: &Engine, kind: &str, namespace: &str, name: &str) -> Option<LiveObject> {
    let kind = kinds::named(kind)?;
    // The event history has every acknowledged write, deletions included.
    let stored = engine.get_cached(&key(kind, namespace, name)).ok()??;
    let object: Value = serde_json::from_slice(&stored.json).ok()?;
    let time = object["metadata"]["deletionTimestamp"].as_str();
    let text = |path: &str| meta::at(&object, path).as_str().unwrap_or_default().to_owned();
    let service_account = match text("spec.serviceAccountName") {
        // As admission in Kubernetes sets it.
        name if name.is_empty() && kind.kind == "Pod" => "default".to_owned(),
        name => name,
    };
    Some(LiveObject {
        uid: meta::text(&object, "uid").to_owned(),
        deletion: time.and_then(|time| time.parse::<jiff::Timestamp>().ok()).map(|time| time.as_second()),
        service_account,
        node: text("spec.nodeName"),
    })
}

/// Rotates the signing keys until `stop` turns true. A failure is reported and retried in the next period; the keys stay
/// as they are.
pub async fn keep_signing_keys(api: Api, failed: impl Fn(io::Error), mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(CHECK_PERIOD) => {}
        }
        if let Err(error) = api.authenticator().rotate(api.clock().timestamp().as_second()) {
            failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3_600;

    fn folder(name: &str) -> PathBuf {
        let data = std::env::temp_dir().join(format!("zoneward-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&data);
        fs::create_dir_all(data.join("pki")).unwrap();
        data
    }

    fn files(data: &Path) -> Vec<i64> {
        let names = fs::read_dir(data.join("pki")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut found: Vec<i64> = names.filter_map(|name| created(&name.to_string_lossy())).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn keys_are_added_by_age_and_deleted_when_no_token_can_need_them() {
        let (data, keys) = (folder("rotation"), Authenticator::default());
        let start = 1_800_000_000;
        keys.open_keys(&data, start).unwrap();
        keys.rotate(start + 29 * DAY).unwrap();
        assert_eq!(files(&data), [start]);
        let second = start + 30 * DAY;
        keys.rotate(second).unwrap();
        assert_eq!(files(&data), [start, second]);
        // A token of the first key, issued just before the second, lives for a year at most.
        let mut now = second;
        while now < second + 365 * DAY {
            now += 10 * DAY;
            keys.rotate(now.min(second + 365 * DAY + 60)).unwrap();
            assert!(files(&data).contains(&start), "day {}", (now - start) / DAY);
        }
        keys.rotate(second + 365 * DAY + 61).unwrap();
        assert!(!files(&data).contains(&start) && files(&data).contains(&second));
        assert_eq!(files(&data).len(), keys.read_keys().keys.len());
        assert!(files(&data).len() <= 14, "{:?}", files(&data));
        let _ = fs::remove_dir_all(&data);
    }

    #[test]
    fn key_files_are_private_and_a_broken_one_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let (data, keys) = (folder("private"), Authenticator::default());
        keys.open_keys(&data, 1_000).unwrap();
        let path = data.join("pki/sa-1000.key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "x").unwrap();
        let error = Authenticator::default().open_keys(&data, 2_000).unwrap_err().to_string();
        assert!(error.contains("sa-1000.key: not a PKCS #8 key"), "{error}");
        let _ = fs::remove_dir_all(&data);
    }

    /// The first bytes are those of every SubjectPublicKeyInfo of P-256 (RFC 5480).
    #[test]
    fn the_id_of_a_key_is_the_hash_of_its_subject_public_key_info() {
        let (key, pem) = SigningKey::generate(0).unwrap();
        let mut der = vec![
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
            0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
        ];
        der.extend_from_slice(key.pair.public_key().as_ref());
        let wanted = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &der).as_ref());
        assert_eq!(key.id, wanted);
        assert_eq!(SigningKey::parse(&pem, 0).unwrap().id, wanted);
    }

    fn forged(keys: &Authenticator, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let key = keys.signing_key().unwrap();
        let signature = key.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    #[test]
    fn only_tokens_of_the_own_algorithm_and_a_known_key_are_verified() {
        let keys = Authenticator::default();
        let id = keys.signing_key().unwrap().id.clone();
        let claims = json!({"sub": "x"});
        let good = forged(&keys, &json!({"alg": "ES256", "kid": id}), &claims);
        assert_eq!(keys.verify(&good).as_deref(), Some(&claims));
        for header in [
            json!({"alg": "none", "kid": id}),
            json!({"alg": "HS256", "kid": id}),
            json!({"alg": "RS256", "kid": id}),
            json!({"alg": "es256", "kid": id}),
            json!({"alg": ["ES256"], "kid": id}),
            json!({"kid": id}),
            json!({"alg": "ES256"}),
            json!({"alg": "ES256", "kid": "other"}),
            json!({"alg": "ES256", "kid": "../sa"}),
            json!({"alg": "ES256", "kid": [id]}),
        ] {
            assert_eq!(keys.verify(&forged(&keys, &header, &claims)), None, "{header}");
        }
        let (signed, _) = good.rsplit_once('.').unwrap();
        for signature in [String::new(), URL_SAFE_NO_PAD.encode([0; 64]), "AA".to_owned()] {
            assert_eq!(keys.verify(&format!("{signed}.{signature}")), None, "{signature}");
        }
        let other = Authenticator::default();
        let theirs = forged(&other, &json!({"alg": "ES256", "kid": id}), &claims);
        assert_eq!(keys.verify(&theirs), None, "another key under this id");
        assert_eq!(keys.verify(&format!("{good}.")), None);
        assert_eq!(keys.verify(&"x".repeat(MAX_TOKEN + 1)), None);
    }

    #[test]
    fn verified_tokens_are_bounded() {
        let keys = Authenticator::default();
        let id = keys.signing_key().unwrap().id.clone();
        for count in 0..VERIFIED + 50 {
            let token = forged(&keys, &json!({"alg": "ES256", "kid": id}), &json!({"jti": count}));
            assert!(keys.verify(&token).is_some());
        }
        let verified = keys.lock_verified();
        assert_eq!((verified.claims.len(), verified.order.len()), (VERIFIED, VERIFIED));
    }
}
