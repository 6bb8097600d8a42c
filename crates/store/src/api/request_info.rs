//! Request info: the resource, object and subresource of a path.

use model::ProxyUser;

use crate::kinds::{self, ResourceKind};
use crate::query::{QueryParams, decode};
use crate::status::StatusError;

/// A parsed path.
#[derive(Debug, PartialEq)]
pub(crate) enum RequestPath<'a> {
    Resource(RequestInfo),
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// `/metrics`.
    Metrics,
    /// `/backup`.
    Backup,
    /// `/.well-known/openid-configuration`.
    OpenIdConfiguration,
    /// `/openid/v1/jwks`.
    SigningKeys,
    /// `/join`, and `/join/gateways/NAMESPACE/NAME` for the credential of an L7 proxy.
    Join(Option<ProxyUser>),
    /// `/version`.
    Version,
    /// Discovery: `api`, `apis`, `apis/GROUP`, `api/v1`, `apis/GROUP/VERSION`.
    Discovery(&'a str),
    /// OpenAPI v3: empty for the index, or `api/v1`, `apis/GROUP/VERSION`.
    OpenApi(&'a str),
    OpenApiV2,
    /// A path that is not served.
    Unknown,
}

/// The objects of a path.
#[derive(Clone, Debug)]
pub(crate) struct RequestInfo {
    pub(crate) kind: &'static ResourceKind,
    /// `None` for all namespaces, and for cluster-scoped kinds.
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Subresource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    None,
    Status,
    Binding,
    Eviction,
    Token,
}

impl Subresource {
    /// As in paths; empty for the object itself.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Status => "status",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Token => "token",
        }
    }
}

impl RequestInfo {
    /// Whether a request to read is one for many objects, or for their changes.
    pub(super) fn is_list_or_watch(&self, query: &QueryParams) -> bool {
        self.subresource == Subresource::None && (self.name.is_none() || query.is_watch())
    }
}

impl PartialEq for RequestInfo {
    fn eq(&self, other: &Self) -> bool {
        let fields =
            |info: &Self| (info.kind.id, info.namespace.clone(), info.name.clone(), info.subresource);
        fields(self) == fields(other)
    }
}

pub(super) fn parse(path: &str) -> Result<RequestPath<'_>, StatusError> {
    let path = path.trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Ok(RequestPath::Health),
        ["metrics"] => Ok(RequestPath::Metrics),
        ["backup"] => Ok(RequestPath::Backup),
        [".well-known", "openid-configuration"] => Ok(RequestPath::OpenIdConfiguration),
        ["openid", "v1", "jwks"] => Ok(RequestPath::SigningKeys),
        ["join"] => Ok(RequestPath::Join(None)),
        ["join", kind, namespace, name] => match ProxyUser::of_path(kind, namespace, name) {
            Some(proxy) => Ok(RequestPath::Join(Some(proxy))),
            None => Err(StatusError::no_such_path()),
        },
        ["version"] => Ok(RequestPath::Version),
        ["openapi", "v2"] => Ok(RequestPath::OpenApiV2),
        ["openapi", "v3"] => Ok(RequestPath::OpenApi("")),
        ["openapi", "v3", ..] => Ok(RequestPath::OpenApi(&path["openapi/v3/".len()..])),
        ["" | "api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => Ok(RequestPath::Discovery(path)),
        ["api", version, rest @ ..] => request_info("", version, rest).map(RequestPath::Resource),
        ["apis", group, version, rest @ ..] => request_info(group, version, rest).map(RequestPath::Resource),
        _ => Err(StatusError::no_such_path()),
    }
}

/// What `kubectl debug POD` reports.
const EPHEMERAL_CONTAINERS: &str = "pods/ephemeralcontainers is not served: no kubelet runs containers here";

fn request_info(group: &str, version: &str, rest: &[&str]) -> Result<RequestInfo, StatusError> {
    // The deprecated prefix /watch/ is not served.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if !is_subresource(group, plural) => {
            (Some(*namespace), [&[*plural], rest].concat())
        }
        rest => (None, rest.to_vec()),
    };
    let [plural, rest @ ..] = rest.as_slice() else { return Err(StatusError::no_such_path()) };
    let kind = kinds::find(group, version, plural).ok_or_else(StatusError::no_such_path)?;
    if namespace.is_some() && !kind.namespaced {
        return Err(StatusError::no_such_path());
    }
    let (name, subresource) = match rest {
        [] => (None, Subresource::None),
        [name] => (Some(*name), Subresource::None),
        [name, "status"] if kind.status => (Some(*name), Subresource::Status),
        [_, "ephemeralcontainers"] if kind.binds => {
            return Err(StatusError::not_served(EPHEMERAL_CONTAINERS));
        }
        [name, "binding"] if kind.binds => (Some(*name), Subresource::Binding),
        [name, "eviction"] if kind.binds => (Some(*name), Subresource::Eviction),
        [name, "token"] if kind.issues_tokens => (Some(*name), Subresource::Token),
        _ => return Err(StatusError::no_such_path()),
    };
    if name.is_some() && kind.namespaced && namespace.is_none() {
        return Err(StatusError::no_such_path());
    }
    Ok(RequestInfo { kind, namespace: namespace.map(segment), name: name.map(segment), subresource })
}

/// Decodes a segment of a path, where a plus sign is no space.
fn segment(text: &str) -> String {
    decode(&text.replace('+', "%2B"))
}

/// `/api/v1/namespaces/NAME/status` is the status of a namespace, not a kind in one.
fn is_subresource(group: &str, word: &str) -> bool {
    group.is_empty() && word == "status"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(path: &str) -> Option<(&'static str, Option<String>, Option<String>, bool)> {
        match parse(path) {
            Ok(RequestPath::Resource(info)) => {
                Some((info.kind.kind, info.namespace, info.name, info.subresource == Subresource::Status))
            }
            _ => None,
        }
    }

    #[test]
    fn paths_lead_to_kinds_namespaces_and_names() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(words("/api/v1/pods"), Some(("Pod", None, None, false)));
        assert_eq!(words("/api/v1/namespaces"), Some(("Namespace", None, None, false)));
        assert_eq!(words("/api/v1/namespaces/a"), Some(("Namespace", None, some("a"), false)));
        assert_eq!(words("/api/v1/namespaces/a/status"), Some(("Namespace", None, some("a"), true)));
        assert_eq!(words("/api/v1/namespaces/a/services/b"), Some(("Service", some("a"), some("b"), false)));
        assert_eq!(
            words("/api/v1/namespaces/a/services/b/status"),
            Some(("Service", some("a"), some("b"), true))
        );
        assert_eq!(
            words("/apis/networking.k8s.io/v1/servicecidrs/kubernetes"),
            Some(("ServiceCIDR", None, some("kubernetes"), false))
        );
    }

    #[test]
    fn paths_to_nowhere_are_not_found() {
        for path in [
            "/x",
            "/api/v2/pods",
            "/api/v1/pods/a",
            "/api/v1/namespaces/a/nodes/b",
            "/api/v1/namespaces/a/configmaps/b/status",
            "/apis/apps/v1/deployments",
            "/api/v1/namespaces/a/pods/b/log/c",
            "//",
            "/api/v1/",
        ] {
            assert!(words(path).is_none(), "{path}");
        }
    }
}
