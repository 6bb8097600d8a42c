//! Which part of the API a path leads to.

use crate::kinds::{self, Kind};
use crate::query::decode;
use crate::status::Failure;

/// Where a path leads.
#[derive(Debug, PartialEq)]
pub(super) enum Route<'a> {
    /// Objects.
    Resource(Target),
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// `/backup`.
    Backup,
    /// `/version`.
    Version,
    /// What is served: `api`, `apis`, `apis/GROUP`, `api/v1`, `apis/GROUP/VERSION`.
    Discovery(&'a str),
    /// The schemas: empty for the index, or `api/v1`, `apis/GROUP/VERSION`.
    OpenApi(&'a str),
    /// All schemas in one document, as older clients read them.
    OpenApiV2,
}

/// The objects that a path names.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) kind: &'static Kind,
    /// The namespace; `None`: all, or the kind has none.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) part: Part,
}

/// What of an object a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Status,
    /// Its binding to a node.
    Binding,
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        let parts =
            |target: &Self| (target.kind.id, target.namespace.clone(), target.name.clone(), target.part);
        parts(self) == parts(other)
    }
}

/// Reads a path.
pub(super) fn parse(path: &str) -> Result<Route<'_>, Failure> {
    let path = path.trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Ok(Route::Health),
        ["backup"] => Ok(Route::Backup),
        ["version"] => Ok(Route::Version),
        ["openapi", "v2"] => Ok(Route::OpenApiV2),
        ["openapi", "v3"] => Ok(Route::OpenApi("")),
        ["openapi", "v3", ..] => Ok(Route::OpenApi(&path["openapi/v3/".len()..])),
        ["" | "api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => Ok(Route::Discovery(path)),
        ["api", version, rest @ ..] => target("", version, rest).map(Route::Resource),
        ["apis", group, version, rest @ ..] => target(group, version, rest).map(Route::Resource),
        _ => Err(Failure::no_such_path()),
    }
}

fn target(group: &str, version: &str, rest: &[&str]) -> Result<Target, Failure> {
    // Old clients write /watch/ in front instead of ?watch=true; nobody does any more.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if !is_subresource(group, plural) => {
            (Some(*namespace), [&[*plural], rest].concat())
        }
        rest => (None, rest.to_vec()),
    };
    let [plural, rest @ ..] = rest.as_slice() else { return Err(Failure::no_such_path()) };
    if *plural == "serviceaccounts" {
        return Err(no_service_accounts());
    }
    let kind = kinds::find(group, version, plural).ok_or_else(Failure::no_such_path)?;
    if namespace.is_some() && !kind.namespaced {
        return Err(Failure::no_such_path());
    }
    let (name, part) = match rest {
        [] => (None, Part::Whole),
        [name] => (Some(*name), Part::Whole),
        [name, "status"] if kind.status => (Some(*name), Part::Status),
        [name, "binding"] if kind.binds => (Some(*name), Part::Binding),
        _ => return Err(Failure::no_such_path()),
    };
    if name.is_some() && kind.namespaced && namespace.is_none() {
        return Err(Failure::no_such_path());
    }
    Ok(Target { kind, namespace: namespace.map(decode), name: name.map(decode), part })
}

/// `/api/v1/namespaces/NAME/status` is the status of a namespace, not a kind in one.
fn is_subresource(group: &str, word: &str) -> bool {
    group.is_empty() && word == "status"
}

fn no_service_accounts() -> Failure {
    let mut failure = Failure::no_such_path();
    failure.message =
        "service accounts and their tokens are not served here: `zoneward up` wrote the admin's and the \
                       reader's credentials into its data directory (kubeconfig, reader.kubeconfig)"
            .to_owned();
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(path: &str) -> Option<(&'static str, Option<String>, Option<String>, bool)> {
        match parse(path) {
            Ok(Route::Resource(target)) => {
                Some((target.kind.kind, target.namespace, target.name, target.part == Part::Status))
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
        let failure = parse("/api/v1/namespaces/default/serviceaccounts/x/token").unwrap_err();
        assert!(failure.message.contains("not served"));
    }
}
