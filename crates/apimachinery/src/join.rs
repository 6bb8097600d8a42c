//! Machines that join without Kubernetes: the token that lets one in once, the credential that it gets, and what a node
//! may write with it.
//!
//! ```text
//! ID.SECRET (the store has the hash of SECRET) --used once--> Node + credential bound to the Node's uid
//! credential: valid while that Node exists and until it expires; a valid one is exchanged for a newer one
//! ```

mod node_writes;
mod proxies;

use model::ProxyUser;
use serde_json::{Value, json};

use crate::rbac::{AUTHENTICATED, UserInfo};
use crate::service_account::FindObject;

pub use node_writes::{NodeWrite, check_node_write};
pub use proxies::{
    AllowedProxies, GATEWAYS_PATH, GATEWAYS_ROLE, JOINED_PROXIES, PROXIES, SIDECARS_PATH, SIDECARS_ROLE,
    bound_node, proxy_claims, proxy_on_node,
};

/// The group of machines that present a token, as in Kubernetes.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// The group of nodes, as in Kubernetes.
pub const NODES: &str = "system:nodes";
/// The path that exchanges a token for a credential, and a credential for a newer one.
pub const PATH: &str = "/join";
/// The namespace of the Secrets that hold tokens.
pub const NAMESPACE: &str = "kube-system";
/// The type of the Secrets that hold tokens.
pub const SECRET_TYPE: &str = "zoneward.dev/join-token";
/// Default lifetime of a credential; it is renewed after a third.
pub const CREDENTIAL_SECONDS: i64 = 30 * 24 * 3_600;
/// Limits of the lifetime. Signing keys are kept for a year.
pub const MIN_CREDENTIAL_SECONDS: i64 = 15;
pub const MAX_CREDENTIAL_SECONDS: i64 = 365 * 24 * 3_600;

/// Prefix of the user name of a node.
const NODE_USER: &str = "system:node:";
/// Prefix of the user name of a machine that presents a token.
const BOOTSTRAP_USER: &str = "system:bootstrap:";
/// Prefix of the name of a token's Secret.
const SECRET_PREFIX: &str = "zoneward-join-";
/// The claim of credentials.
const PRIVATE: &str = "zoneward.dev";
/// Characters of a token's id and secret, as kubeadm's.
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
/// Tolerance for clocks; of a short credential a tenth of its life.
const LEEWAY: i64 = 60;
/// Longest interval between looks at a credential.
const MAX_PAUSE: i64 = 60;
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A token, `ID.SECRET` as kubeadm's.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub id: String,
    pub secret: String,
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinToken({})", self.id)
    }
}

impl JoinToken {
    /// A token of random bytes.
    pub fn new(mut random: impl FnMut() -> u8) -> Self {
        // Bytes above the last multiple of the alphabet's length would favour its first characters.
        let limit = u8::try_from(256 / ALPHABET.len() * ALPHABET.len()).unwrap_or(u8::MAX);
        let mut word = |length: usize| -> String {
            let mut text = String::new();
            while text.len() < length {
                let byte = random();
                if byte < limit {
                    text.push(char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
                }
            }
            text
        };
        Self { id: word(ID_LENGTH), secret: word(SECRET_LENGTH) }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let is_word =
            |word: &str, length: usize| word.len() == length && word.bytes().all(|b| ALPHABET.contains(&b));
        let valid = is_word(id, ID_LENGTH) && is_word(secret, SECRET_LENGTH);
        valid.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    pub fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// The name of the Secret of a token.
pub fn secret_name(id: &str) -> String {
    format!("{SECRET_PREFIX}{id}")
}

/// What the store knows about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredToken {
    pub id: String,
    /// SHA-256 of the secret part, in hexadecimal.
    pub hash: String,
    pub node: String,
    /// Seconds since 1970.
    pub expires: i64,
    /// What the machine may run beside its node proxy.
    pub allowed: AllowedProxies,
}

impl StoredToken {
    /// The Secret. `expires` and `node` are readable without decoding, the hash is data.
    pub fn to_secret(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
            "metadata": {"name": secret_name(&self.id), "namespace": NAMESPACE, "annotations": {
                "zoneward.dev/join-node": self.node, "zoneward.dev/join-expires": self.expires.to_string(),
                "zoneward.dev/join-allowed": self.allowed.to_string(),
            }},
            "stringData": {"token-hash": self.hash},
        })
    }

    /// Reads a Secret; `decode` decodes base64.
    pub fn of_secret(secret: &Value, decode: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Self> {
        if secret["type"] != SECRET_TYPE {
            return None;
        }
        let metadata = &secret["metadata"];
        let id = metadata["name"].as_str()?.strip_prefix(SECRET_PREFIX)?.to_owned();
        let annotation = |name: &str| metadata["annotations"][name].as_str();
        let hash = match secret["data"]["token-hash"].as_str() {
            Some(data) => String::from_utf8(decode(data)?).ok()?,
            None => secret["stringData"]["token-hash"].as_str()?.to_owned(),
        };
        let expires = annotation("zoneward.dev/join-expires")?.parse().ok()?;
        let allowed = AllowedProxies::parse(annotation("zoneward.dev/join-allowed").unwrap_or_default());
        Some(Self { id, hash, node: annotation("zoneward.dev/join-node")?.to_owned(), expires, allowed })
    }

    pub fn is_expired(&self, now: i64) -> bool {
        now >= self.expires
    }
}

/// The user of a machine that presents a token.
pub fn bootstrap_user(id: &str) -> UserInfo {
    UserInfo::new(&format!("{BOOTSTRAP_USER}{id}"), &[BOOTSTRAPPERS, AUTHENTICATED])
}

/// The id of the token that a user presented.
pub fn presented_token(user: &UserInfo) -> Option<&str> {
    let id = user.name.strip_prefix(BOOTSTRAP_USER)?;
    user.groups.iter().any(|group| group == BOOTSTRAPPERS).then_some(id)
}

/// A Node as a credential names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeIdentity {
    pub name: String,
    pub uid: String,
}

impl NodeIdentity {
    /// The user of a credential. Its uid is that of the Node.
    pub fn user(&self) -> UserInfo {
        let mut user = UserInfo::new(&format!("{NODE_USER}{}", self.name), &[NODES, AUTHENTICATED]);
        user.uid.clone_from(&self.uid);
        user
    }

    /// The node of a user; `None` for users that are no nodes.
    pub fn of(user: &UserInfo) -> Option<Self> {
        let name = user.name.strip_prefix(NODE_USER).filter(|name| !name.is_empty())?;
        let is_node = user.groups.iter().any(|group| group == NODES);
        is_node.then(|| Self { name: name.to_owned(), uid: user.uid.clone() })
    }

    /// The claims of a credential; `now` in seconds since 1970, and its lifetime.
    pub fn claims(&self, issuer: &str, audiences: &[String], id: &str, now: i64, seconds: i64) -> Value {
        json!({
            "aud": audiences, "exp": now.saturating_add(seconds), "iat": now, "iss": issuer, "jti": id, "nbf": now,
            "sub": self.user().name, PRIVATE: {"node": {"name": self.name, "uid": self.uid}},
        })
    }

    /// The user that a subject names: this node, or an L7 proxy of it.
    fn user_of(&self, subject: &str) -> Option<UserInfo> {
        let own = self.user();
        match own.name == subject {
            true => Some(own),
            false => ProxyUser::of_name(subject).map(|proxy| proxy_on_node(&proxy, self)),
        }
    }

    /// Whether the Node exists, and is not being deleted.
    pub fn is_live(&self, find: FindObject<'_>) -> bool {
        find("Node", "", &self.name).is_some_and(|live| live.uid == self.uid && live.deletion.is_none())
    }
}

/// Whether claims are those of a node's credential.
pub fn is_node_credential(claims: &Value) -> bool {
    claims[PRIVATE]["node"].is_object()
}

/// The user of a node's credential, and the audiences that it shares with those that are accepted. The signature was
/// verified.
pub fn check_node_claims(
    claims: &Value,
    issuer: &str,
    accepted: &[String],
    now: i64,
    find: FindObject<'_>,
) -> Result<(UserInfo, Vec<String>), String> {
    let text = |name: &str| claims[PRIVATE]["node"][name].as_str().unwrap_or_default().to_owned();
    let node = NodeIdentity { name: text("name"), uid: text("uid") };
    let own = claims["aud"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shared: Vec<String> =
        accepted.iter().filter(|audience| own.iter().any(|own| own == audience.as_str())).cloned().collect();
    let user = node.user_of(claims["sub"].as_str().unwrap_or_default());
    let Some(user) = user.filter(|_| claims["iss"] == issuer && !shared.is_empty()) else {
        return Err("the credential is not for this API".to_owned());
    };
    let name = &node.name;
    let (issued, expires) = (claims["iat"].as_i64().unwrap_or_default(), claims["exp"].as_i64());
    let is_over = |end: i64| {
        let leeway = (end.saturating_sub(issued) / 10).clamp(0, LEEWAY);
        now > end.saturating_add(leeway)
    };
    if expires.is_none_or(is_over) {
        return Err(format!(
            "the credential of node {name} has expired: join again with a token of `zoneward token create --node {name}`"
        ));
    }
    if !node.is_live(find) {
        return Err(format!(
            "the credential of node {name} is revoked, because its Node was deleted: join again with a token of \
             `zoneward token create --node {name}`"
        ));
    }
    Ok((user, shared))
}

/// When a credential that was issued and expires at these times is renewed: after a third of its time, so that a machine
/// that is away for two weeks is not locked out.
pub fn renewal_time(issued: i64, expires: i64) -> i64 {
    issued.saturating_add(expires.saturating_sub(issued) / 3)
}

/// Seconds until the next look at a credential: until its renewal, and after a failed one a 30th of its life, so that a
/// short one is not lost; at most a minute, because clocks are set.
pub fn renewal_pause(issued: i64, expires: i64, now: i64, has_failed: bool) -> u64 {
    let pause = match has_failed {
        true => expires.saturating_sub(issued) / 30,
        false => renewal_time(issued, expires).saturating_sub(now),
    };
    pause.clamp(1, MAX_PAUSE).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_account::LiveObject;

    const ISSUER: &str = "https://issuer";

    fn audiences() -> Vec<String> {
        vec![ISSUER.to_owned()]
    }

    fn node() -> NodeIdentity {
        NodeIdentity { name: "box-2".to_owned(), uid: "u".to_owned() }
    }

    fn live(uid: &str, deletion: Option<i64>) -> impl Fn(&str, &str, &str) -> Option<LiveObject> {
        move |kind: &str, _: &str, name: &str| {
            let found = LiveObject { uid: uid.to_owned(), deletion, ..LiveObject::default() };
            (kind == "Node" && name == "box-2").then_some(found)
        }
    }

    #[test]
    fn tokens_have_the_format_of_kubeadm() {
        let mut next = 0u8;
        let token = JoinToken::new(|| {
            next = next.wrapping_add(97);
            next
        });
        assert_eq!(JoinToken::parse(&token.text()), Some(token.clone()));
        assert_eq!(format!("{token:?}"), format!("JoinToken({})", token.id), "the secret is not shown");
        for wrong in
            ["", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcde.0123456789abcdef0"]
        {
            assert_eq!(JoinToken::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_stored_token_is_read_back_and_expires() {
        let token = StoredToken {
            id: "abcdef".to_owned(),
            hash: "00".to_owned(),
            node: "box-2".to_owned(),
            expires: 10,
            allowed: AllowedProxies { gateways: true, sidecars: false },
        };
        let secret = token.to_secret();
        assert_eq!(StoredToken::of_secret(&secret, |_| None), Some(token.clone()));
        assert!(token.is_expired(10) && !token.is_expired(9));
        let mut other = secret;
        other["type"] = "Opaque".into();
        assert_eq!(StoredToken::of_secret(&other, |_| None), None);
    }

    #[test]
    fn a_credential_is_valid_while_its_node_exists() {
        let claims = node().claims(ISSUER, &audiences(), "id", 1_000, CREDENTIAL_SECONDS);
        assert!(is_node_credential(&claims));
        let check = |find: FindObject<'_>, now| check_node_claims(&claims, ISSUER, &audiences(), now, find);
        let (user, shared) = check(&live("u", None), 1_000).unwrap();
        assert_eq!((user.name.as_str(), shared), ("system:node:box-2", audiences()));
        assert_eq!(NodeIdentity::of(&user), Some(node()));
        for (uid, deletion) in [("other", None), ("u", Some(9_999_999_999))] {
            let error = check(&live(uid, deletion), 1_000).unwrap_err();
            assert!(error.contains("box-2 is revoked, because its Node was deleted"), "{error}");
        }
        let late = 1_000 + CREDENTIAL_SECONDS + LEEWAY + 1;
        assert!(check(&live("u", None), late).unwrap_err().contains("has expired"));
        let edge = ProxyUser::gateway("shop", "edge");
        let claims_of_proxy = proxy_claims(&edge, claims.clone());
        let check_proxy = |find: FindObject<'_>| {
            check_node_claims(&claims_of_proxy, ISSUER, &audiences(), 1_000, find).map(|(user, _)| user)
        };
        assert_eq!(check_proxy(&live("u", None)), Ok(proxy_on_node(&edge, &node())));
        assert!(check_proxy(&live("other", None)).unwrap_err().contains("box-2 is revoked"));
        let elsewhere = check_node_claims(&claims, ISSUER, &["x".to_owned()], 1_000, &live("u", None));
        assert!(elsewhere.is_err());
        let short = node().claims(ISSUER, &audiences(), "id", 1_000, 30);
        let check = |now| check_node_claims(&short, ISSUER, &audiences(), now, &live("u", None));
        assert!(check(1_033).is_ok() && check(1_034).is_err(), "a tenth of its life");
    }

    #[test]
    fn only_members_of_the_group_are_nodes() {
        assert_eq!(NodeIdentity::of(&UserInfo::new("system:node:a", &[])), None);
        assert_eq!(NodeIdentity::of(&UserInfo::new("system:node:", &[NODES])), None);
        assert_eq!(presented_token(&bootstrap_user("abcdef")), Some("abcdef"));
        assert_eq!(presented_token(&UserInfo::new("system:bootstrap:abcdef", &[])), None);
    }

    #[test]
    fn credentials_are_renewed_after_a_third() {
        assert_eq!(renewal_time(100, 400), 200);
        let pause = |now, has_failed| renewal_pause(100, 400, now, has_failed);
        assert_eq!((pause(100, false), pause(190, false), pause(500, false)), (60, 10, 1));
        assert_eq!((pause(200, true), renewal_pause(0, 30, 10, true)), (10, 1));
        assert_eq!(renewal_pause(0, CREDENTIAL_SECONDS, CREDENTIAL_SECONDS, true), 60);
    }
}
