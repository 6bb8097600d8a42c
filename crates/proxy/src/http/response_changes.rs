//! The changes to the headers of a response, in their order: CORS, the rule, the backendRef.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use model::route::{CorsFilter, CorsRequest};

use super::route_rule::CompiledRule;
use crate::upstream::weighted_backends::BackendMutations;

pub(super) struct ResponseChanges<'s> {
    pub(super) rule: Option<&'s CompiledRule>,
    /// `None`: the rule has no CORS filter.
    pub(super) cors: Option<CorsHeaders>,
    pub(super) backend: Option<&'s BackendMutations>,
}

impl ResponseChanges<'_> {
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        if let Some(cors) = &self.cors {
            cors.apply(headers);
        }
        if let Some(rule) = self.rule {
            rule.response.apply(headers);
        }
        if let Some(backend) = self.backend {
            backend.response.apply(headers);
        }
    }
}

/// The CORS headers of a response; none if the origin is not allowed.
pub(super) struct CorsHeaders {
    headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) is_preflight: bool,
}

impl CorsHeaders {
    pub(super) fn new(filter: &CorsFilter, method: &str, headers: &HeaderMap) -> Self {
        let value = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let request = CorsRequest {
            method,
            origin: value(header::ORIGIN),
            request_method: value(header::ACCESS_CONTROL_REQUEST_METHOD),
            request_headers: value(header::ACCESS_CONTROL_REQUEST_HEADERS),
        };
        let headers = filter.response_headers(&request);
        let headers = headers.into_iter().filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(&value).ok()?))
        });
        Self { headers: headers.collect(), is_preflight: request.is_preflight() }
    }

    /// The policy of the route replaces that of the backend.
    fn apply(&self, headers: &mut HeaderMap) {
        let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
        let own: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
        own.into_iter().for_each(|name| drop(headers.remove(name)));
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
    }
}
