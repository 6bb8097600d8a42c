//! Single requests to the API with JSON bodies and a deadline.

use std::time::Duration;

use http::{Method, Request};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub const JSON: &str = "application/json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
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
        Ok(response) => response,
        Err(_) => Err(Error::Service("the API did not answer in time".into())),
    }
}
