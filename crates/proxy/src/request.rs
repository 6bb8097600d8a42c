//! A request as routing looks at it, and what is refused before routing looks.

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, Version, header};
use model::route::HeaderLines;

/// Headers as hyper has them.
pub(crate) struct Headers<'a>(pub(crate) &'a HeaderMap);

impl HeaderLines for Headers<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get_all(name).iter().any(|value| test(value.as_bytes()))
    }
}

/// The host of a request; empty for HTTP/1.0, which need not have one. What could be read in two ways is refused.
pub(crate) fn host(parts: &Parts) -> Result<&str, StatusCode> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let (line, more) = (lines.next(), lines.next());
    if more.is_some() {
        return Err(StatusCode::BAD_REQUEST);
    }
    let line = line.map(|line| line.to_str()).transpose().map_err(|_| StatusCode::BAD_REQUEST)?;
    let host = match (parts.uri.authority().map(Authority::as_str), line) {
        // RFC 9113, 8.3.1: the two must not disagree.
        (Some(authority), Some(line)) if parts.version == Version::HTTP_2 && authority != line => {
            return Err(StatusCode::BAD_REQUEST);
        }
        // RFC 9112, 3.2.2: an absolute address goes before the Host header.
        (Some(authority), _) => authority,
        (None, Some(line)) => line,
        (None, None) if parts.version == Version::HTTP_10 => "",
        (None, None) => return Err(StatusCode::BAD_REQUEST),
    };
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%~!$&'()*+,;=".contains(&byte);
    if host.bytes().all(is_of_host) { Ok(host) } else { Err(StatusCode::BAD_REQUEST) }
}

/// Whether a request may be sent twice: it changes nothing, and has no body that is gone after the first time.
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// Whether the client wants its errors as gRPC has them.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
