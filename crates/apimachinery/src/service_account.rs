//! Tokens of service accounts: what a TokenRequest grants, and whether the claims of a token still hold.
//!
//! A token is bound to its service account, and to a Pod, a Secret or a Node if requested: it is valid while those exist
//! with the same uid. Signing is the API server's.

use serde_json::{Map, Value, json};

use crate::rbac::{UserInfo, service_account_name};

const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3_600;
/// What kubelets request for Pods that may not reload their token.
const WARN_SECONDS: i64 = 3_607;
/// How long such a token lives.
const EXTENDED_SECONDS: i64 = 365 * 24 * 3_600;
/// Tolerance for clocks, and for bound objects that are being deleted.
const LEEWAY: i64 = 60;
/// The claim of Kubernetes.
const PRIVATE: &str = "kubernetes.io";

/// How the server issues tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// The claim `iss`.
    pub issuer: String,
    /// The audiences of the API itself; the default of requests.
    pub api_audiences: Vec<String>,
    /// Longest lifetime in seconds; 0 for no limit.
    pub max_seconds: i64,
    /// Whether tokens of Pods that request 3607 seconds live for a year.
    pub extend: bool,
}

/// An object that a token is bound to, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveObject {
    pub uid: String,
    /// When it is or was to be gone, in seconds since 1970.
    pub deletion: Option<i64>,
    /// Of a Pod.
    pub service_account: String,
    /// Of a Pod.
    pub node: String,
}

/// Finds an object by kind, namespace (empty for a Node) and name.
pub type FindObject<'a> = &'a dyn Fn(&str, &str, &str) -> Option<LiveObject>;

/// A token to sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPlan {
    pub audiences: Vec<String>,
    /// The lifetime in the response.
    pub seconds: i64,
    /// The lifetime of the token, which may be longer.
    pub token_seconds: i64,
    pub warning: Option<String>,
    /// The claim of Kubernetes, without `warnafter`.
    private: Value,
}

/// Why a TokenRequest is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRequestError {
    /// An object does not exist: kind and name.
    NotFound(String, String),
    BadRequest(String),
    /// The uid of the bound object differs: kind, name and message.
    Conflict(String, String, String),
    /// A field is invalid: its path and the message.
    Invalid(String, String),
}

/// What a TokenRequest grants. `spec` is that of the request.
pub fn plan_token(
    config: &TokenConfig,
    namespace: &str,
    name: &str,
    spec: &Value,
    find: FindObject<'_>,
) -> Result<TokenPlan, TokenRequestError> {
    let wanted = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    let invalid = |message: &str| {
        Err(TokenRequestError::Invalid("spec.expirationSeconds".to_owned(), format!("{wanted}: {message}")))
    };
    if wanted < MIN_SECONDS {
        return invalid("may not specify a duration less than 10 minutes");
    }
    if wanted > MAX_SECONDS {
        return invalid("may not specify a duration larger than 2^32 seconds");
    }
    let account = found("ServiceAccount", namespace, name, find)?;
    let mut private = json!({
        "namespace": namespace, "serviceaccount": {"name": name, "uid": account.uid},
    });
    let is_pod = bind(&spec["boundObjectRef"], namespace, name, find, &mut private)?;
    let audiences: Vec<String> = match spec["audiences"].as_array() {
        Some(list) if !list.is_empty() => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => config.api_audiences.clone(),
    };
    let (mut seconds, mut warning) = (wanted, None);
    if config.max_seconds > 0 && wanted > config.max_seconds {
        seconds = config.max_seconds;
        warning = Some(format!("requested expiration of {wanted} seconds shortened to {seconds} seconds"));
    }
    let for_api = audiences.iter().all(|audience| config.api_audiences.contains(audience));
    let extended = config.extend && is_pod && seconds == WARN_SECONDS && for_api;
    let token_seconds = if extended { EXTENDED_SECONDS } else { seconds };
    Ok(TokenPlan { audiences, seconds, token_seconds, warning, private })
}

fn found(
    kind: &str,
    namespace: &str,
    name: &str,
    find: FindObject<'_>,
) -> Result<LiveObject, TokenRequestError> {
    let missing = || TokenRequestError::NotFound(kind.to_owned(), name.to_owned());
    find(kind, namespace, name).ok_or_else(missing)
}

/// Adds the bound object to the claim; returns whether it is a Pod.
fn bind(
    reference: &Value,
    namespace: &str,
    account: &str,
    find: FindObject<'_>,
    private: &mut Value,
) -> Result<bool, TokenRequestError> {
    if reference.is_null() {
        return Ok(false);
    }
    let text = |name: &str| reference[name].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let live = match (text("apiVersion"), kind) {
        ("" | "v1", "Pod") => found(kind, namespace, name, find)?,
        ("" | "v1", "Secret") => found(kind, namespace, name, find)?,
        ("" | "v1", "Node") => found(kind, "", name, find)?,
        (version, _) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let what = format!("{group}/{version}, Kind={kind}");
            return Err(TokenRequestError::BadRequest(format!("cannot bind token to object of type {what}")));
        }
    };
    if kind == "Pod" && live.service_account != account {
        return Err(TokenRequestError::BadRequest(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with serviceaccount {:?}",
            live.service_account
        )));
    }
    if !uid.is_empty() && uid != live.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(TokenRequestError::Conflict(kind.to_owned(), name.to_owned(), why));
    }
    private[kind.to_ascii_lowercase()] = json!({"name": name, "uid": live.uid});
    if kind == "Pod" && !live.node.is_empty() {
        // The node may not be registered; the claim then has its name only.
        let mut node = json!({"name": live.node});
        if let Some(found) = find("Node", "", &live.node) {
            node["uid"] = found.uid.into();
        }
        private["node"] = node;
    }
    Ok(kind == "Pod")
}

impl TokenPlan {
    /// The claims of the token; `now` in seconds since 1970.
    pub fn claims(&self, issuer: &str, id: &str, now: i64) -> Value {
        let mut private = self.private.clone();
        if self.token_seconds != self.seconds {
            private["warnafter"] = (now + self.seconds).into();
        }
        let text = |name: &str| private["serviceaccount"][name].as_str().unwrap_or_default();
        let namespace = private["namespace"].as_str().unwrap_or_default();
        let subject = service_account_name(namespace, text("name"));
        json!({
            "aud": self.audiences, "exp": now.saturating_add(self.token_seconds), "iat": now, "iss": issuer,
            "jti": id, PRIVATE: private, "nbf": now, "sub": subject,
        })
    }

    /// Names of the bound objects.
    pub fn bound(&self) -> Map<String, Value> {
        let kinds = ["pod", "secret", "node"].into_iter();
        let named = kinds.filter_map(|kind| Some((kind.to_owned(), self.private[kind].get("name")?.clone())));
        named.collect()
    }
}

/// The user of a token, and the audiences that it shares with those that are accepted. The signature was verified.
pub fn check_claims(
    claims: &Value,
    issuer: &str,
    accepted: &[String],
    now: i64,
    find: FindObject<'_>,
) -> Result<(UserInfo, Vec<String>), String> {
    let time = |name: &str| claims[name].as_i64();
    if claims["iss"] != issuer {
        return Err("the token has another issuer".to_owned());
    }
    if time("exp").is_none_or(|end| now > end.saturating_add(LEEWAY)) {
        return Err("the token has expired".to_owned());
    }
    if time("nbf").is_some_and(|start| now.saturating_add(LEEWAY) < start) {
        return Err("the token is not valid yet".to_owned());
    }
    let one = std::slice::from_ref(&claims["aud"]);
    let given = claims["aud"].as_array().map_or(one, Vec::as_slice);
    let shared: Vec<String> = accepted
        .iter()
        .filter(|audience| given.iter().any(|own| own == audience.as_str()))
        .cloned()
        .collect();
    if shared.is_empty() {
        return Err(format!("token audiences {given:?} is invalid for the target audiences {accepted:?}"));
    }
    let private = &claims[PRIVATE];
    let text = |part: &str, name: &str| private[part][name].as_str().unwrap_or_default();
    let namespace = private["namespace"].as_str().unwrap_or_default();
    let (name, uid) = (text("serviceaccount", "name"), text("serviceaccount", "uid"));
    if claims["sub"] != service_account_name(namespace, name).as_str() {
        return Err("the subject of the token is not its service account".to_owned());
    }
    let holds = |kind: &str, namespace: &str, name: &str, uid: &str| -> Result<(), String> {
        let live = find(kind, namespace, name).filter(|live| live.uid == uid);
        let alive =
            live.is_some_and(|live| live.deletion.is_none_or(|end| end.saturating_add(LEEWAY) >= now));
        if alive { Ok(()) } else { Err(format!("the {kind} {name:?} that the token is bound to is gone")) }
    };
    holds("ServiceAccount", namespace, name, uid)?;
    let mut user = UserInfo::service_account(namespace, name, uid);
    if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    let has = |part: &str| private[part].is_object();
    // The node of a Pod is not checked again: the Pod is.
    for (part, kind, scope, checked) in [
        ("pod", "Pod", namespace, true),
        ("secret", "Secret", namespace, true),
        ("node", "Node", "", !has("pod")),
    ] {
        if !has(part) {
            continue;
        }
        let (name, uid) = (text(part, "name"), text(part, "uid"));
        if checked {
            holds(kind, scope, name, uid)?;
        }
        if part != "secret" {
            for (field, value) in [("name", name), ("uid", uid)] {
                if !value.is_empty() {
                    let key = format!("authentication.kubernetes.io/{part}-{field}");
                    user.extra.insert(key, vec![value.to_owned()]);
                }
            }
        }
    }
    Ok((user, shared))
}
