//! Errors of the API for people: the cause in its own words, and what to do. The only formatter of `kube::Error`, whose
//! own text repeats itself and carries Debug output.

use std::error::Error as StdError;

use kube::runtime::watcher;

/// The causes of an error in one line, each once; those of the API with advice.
///
/// ```text
/// the API at https://10.0.0.1:6443: listing services: connection refused. Is it running? ...
/// ```
pub fn text(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(api) = cause.downcast_ref::<kube::Error>() {
            parts.push(api_text(api));
            break;
        }
        let said = cause.to_string();
        if parts.last().is_none_or(|last| !last.ends_with(&said)) {
            parts.push(said);
        }
    }
    parts.join(": ")
}

/// The cause and what to do about it.
pub fn api_text(error: &kube::Error) -> String {
    match advice(error) {
        Some(advice) => format!("{}. {advice}", cause(error).trim_end_matches('.')),
        None => cause(error),
    }
}

/// What the API said, or why it cannot be reached.
pub fn cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => said(status),
        kube::Error::Service(error) => innermost(error.as_ref()),
        other => other.source().map_or_else(|| other.to_string(), innermost),
    }
}

/// Why a watch broke.
pub fn watch_cause(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => cause(error),
        watcher::Error::WatchError(status) => said(status),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// The API's own sentence; a proxy in between may have given none.
fn said(status: &kube::core::Status) -> String {
    match (status.message.is_empty(), status.reason.is_empty()) {
        (false, _) => status.message.clone(),
        (true, false) => format!("{} ({})", status.reason, status.code),
        (true, true) => format!("status {}", status.code),
    }
}

/// The last cause says what happened; those around it say only through which layers it came.
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
            "The credentials of the kubeconfig do not count there: renew them, or give another with --kubeconfig FILE",
        ),
        kube::Error::Api(status) if status.code == FORBIDDEN => Some(
            "This user lacks the right: bind a role to it, or give another kubeconfig with --kubeconfig FILE",
        ),
        kube::Error::Api(_) => None,
        kube::Error::Auth(_) => {
            Some("The kubeconfig's way to log in failed: try it with kubectl, or give --kubeconfig FILE")
        }
        kube::Error::Service(error) if is_certificate(error.as_ref()) => Some(
            "The kubeconfig is for another API, or its authority has changed: fetch the kubeconfig again",
        ),
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            Some("Check that it runs and can be reached; --kubeconfig FILE and --context NAME choose another")
        }
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
    fn an_answer_of_the_api_is_told_once_with_advice_and_without_debug_output() {
        let result: Result<(), _> = Err(api(403, "services is forbidden: User \"x\" cannot list"));
        let error = result.context("listing services").context("the API at https://a:1").unwrap_err();
        assert_eq!(
            text(&error),
            "the API at https://a:1: listing services: services is forbidden: User \"x\" cannot list. This user \
             lacks the right: bind a role to it, or give another kubeconfig with --kubeconfig FILE"
        );
    }

    #[test]
    fn an_api_that_is_away_is_told_by_the_last_cause() {
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
