//! `/api/status`: the report as JSON.

use std::time::Duration;

use cluster::admin_server::AdminPage;
use http::StatusCode;
use serde_json::json;

use crate::status_board::{StatusBoard, StatusQuery, StatusUnavailable};

/// What the ledger keeps.
const MAX_WINDOW: u64 = 24 * 3_600;

/// The response for `/api/status`.
pub async fn report_page(board: &StatusBoard, parameters: &str) -> AdminPage {
    match query(parameters) {
        Ok(query) => answer(board, query).await,
        Err(why) => error(StatusCode::BAD_REQUEST, &why),
    }
}

async fn answer(board: &StatusBoard, query: StatusQuery) -> AdminPage {
    match board.ask(query).await {
        Ok(report) => match serde_json::to_value(&report) {
            Ok(value) => AdminPage::json(StatusCode::OK, &value),
            Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
        },
        Err(StatusUnavailable::NotLeading) => {
            error(StatusCode::MISDIRECTED_REQUEST, &StatusUnavailable::NotLeading.to_string())
        }
        Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, &why.to_string()),
    }
}

fn error(status: StatusCode, message: &str) -> AdminPage {
    AdminPage::json(status, &json!({"error": message}))
}

/// `namespace`, `name` and `window` in seconds; other parameters are refused.
fn query(text: &str) -> Result<StatusQuery, String> {
    let mut query = StatusQuery::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            // Names of Kubernetes need no encoding; another text names nothing.
            "namespace" => query.namespace = Some(value.to_owned()),
            "name" => query.name = Some(value.to_owned()),
            "window" => {
                let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                let seconds =
                    seconds.ok_or_else(|| format!("window={value}: expected seconds, 1 or more"))?;
                query.window = Some(Duration::from_secs(seconds.min(MAX_WINDOW)));
            }
            other => return Err(format!("unknown parameter {other}: there are namespace, name and window")),
        }
    }
    if query.name.is_some() && query.namespace.is_none() {
        return Err("name requires namespace".to_owned());
    }
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        let parsed = query("namespace=shop&name=cart&window=60").expect("valid");
        assert_eq!((parsed.namespace.as_deref(), parsed.name.as_deref()), (Some("shop"), Some("cart")));
        assert_eq!(parsed.window, Some(Duration::from_secs(60)));
        assert_eq!(query("").map(|query| query.window), Ok(None));
        assert_eq!(query("window=9999999999").map(|q| q.window), Ok(Some(Duration::from_secs(MAX_WINDOW))));
        for wrong in ["window=0", "window=-1", "window=x", "name=cart", "verbose=1", "window"] {
            assert!(query(wrong).is_err(), "{wrong}");
        }
    }
}
