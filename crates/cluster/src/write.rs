//! Writes to the API as plain JSON: one request, with a deadline.

use std::time::Duration;

use http::{Method, Request};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Content type of a whole object.
pub const JSON: &str = "application/json";
/// Content type of a JSON patch.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// Content type of a merge patch.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// Content type of a strategic merge patch.
pub const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// Deadline of one request.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Sends a request with a JSON body; `null` sends none.
pub async fn send<T: DeserializeOwned>(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<T, Error> {
    let mut request = Request::builder().method(method).uri(path);
    let mut bytes = Vec::new();
    if !body.is_null() {
        request = request.header(http::header::CONTENT_TYPE, content_type);
        bytes = serde_json::to_vec(body).map_err(Error::SerdeError)?;
    }
    let request = request.body(bytes).map_err(Error::HttpError)?;
    match tokio::time::timeout(TIMEOUT, client.request(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Service("the API did not answer in time".into())),
    }
}
