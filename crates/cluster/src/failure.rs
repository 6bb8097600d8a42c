//! API errors as text: the cause and what to do. The only formatter of `kube::Error`, whose own text repeats itself and
//! contains Debug output.

use std::error::Error as StdError;

use kube::runtime::watcher;

/// The causes of an error in one line, without repetitions; API errors with advice.
///
/// ```text
/// the API at https://10.0.0.1:6443: listing services: connection refused. Check that it runs ...
/// ```
pub fn text(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(api) = cause.downcast_ref::<kube::Error>() {
            parts.push(api_text(api));
            break;
        }
        let text = cause.to_string();
        if parts.last().is_none_or(|last| !last.ends_with(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// The cause and advice.
pub fn api_text(error: &kube::Error) -> String {
    match advice(error) {
        Some(advice) => format!("{}. {advice}", cause(error).trim_end_matches('.')),
        None => cause(error),
    }
}

/// The message of the API, or why it is unreachable.
pub fn cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status_text(status),
        kube::Error::Service(error) => innermost(error.as_ref()),
        other => other.source().map_or_else(|| other.to_string(), innermost),
    }
}

/// Why a watch failed.
pub fn watch_cause(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => cause(error),
        watcher::Error::WatchError(status) => status_text(status),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// The message of a Status; a load balancer may have sent none.
fn status_text(status: &kube::core::Status) -> String {
    match (status.message.is_empty(), status.reason.is_empty()) {
        (false, _) => status.message.clone(),
        (true, false) => format!("{} ({})", status.reason, status.code),
        (true, true) => format!("status {}", status.code),
    }
}

/// The innermost cause is what happened; the outer ones name layers.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(inner) = last.source() {
        last = inner;
    }
    last.to_string()
}

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;

fn advice(error: &kube::Error) -> Option<&'static str> {
    match error {
        kube::Error::Api(status) if status.code == UNAUTHORIZED => Some(
            "The API rejects the credentials of the kubeconfig: renew them, or use another one with --kubeconfig FILE",
        ),
        kube::Error::Api(status) if status.code == FORBIDDEN => Some(
            "This user lacks the permission: bind a role to it, or use another kubeconfig with --kubeconfig FILE",
        ),
        kube::Error::Api(_) => None,
        kube::Error::Auth(_) => Some(
            "Authentication of the kubeconfig failed: try it with kubectl, or use another one with --kubeconfig FILE",
        ),
        kube::Error::Service(error) if is_certificate(error.as_ref()) => Some(
            "The kubeconfig belongs to another API, or the API's CA has changed: fetch the kubeconfig again",
        ),
        kube::Error::Service(_) | kube::Error::HyperError(_) => Some(
            "Check that it runs and is reachable, or select another API with --kubeconfig FILE and --context NAME",
        ),
        _ => None,
    }
}

fn is_certificate(error: &(dyn StdError + 'static)) -> bool {
    innermost(error).contains("certificate")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(kube::core::Status::failure(message, "Forbidden").with_code(code).boxed())
    }

    #[test]
    fn an_api_error_has_advice_and_no_debug_output() {
        let result: Result<(), _> = Err(api(403, "services is forbidden: User \"x\" cannot list"));
        let error = result.context("listing services").context("the API at https://a:1").unwrap_err();
        assert_eq!(
            text(&error),
            "the API at https://a:1: listing services: services is forbidden: User \"x\" cannot list. This user \
             lacks the permission: bind a role to it, or use another kubeconfig with --kubeconfig FILE"
        );
    }

    #[test]
    fn an_unreachable_api_is_reported_with_the_innermost_cause() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let error = kube::Error::Service(Box::new(refused));
        assert!(
            api_text(&error).starts_with("connection refused. Check that it runs"),
            "{}",
            api_text(&error)
        );
        let error = watcher::Error::WatchStartFailed(api(410, ""));
        assert_eq!(watch_cause(&error), "Forbidden (410)");
    }

    #[test]
    fn other_errors_keep_their_causes() {
        let error = anyhow::anyhow!("no such file").context("reading x.yaml");
        assert_eq!(text(&error), "reading x.yaml: no such file");
    }
}
