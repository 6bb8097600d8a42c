//! Bodies: what requests bring, and what responses carry.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, VARY};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::{Frame, SizeHint};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;
use tokio::sync::mpsc;

use super::watch::Following;
use crate::document::Document;
use crate::protobuf;
use crate::status::Failure;

/// The body of a response: all at once, or as long as a watch lasts.
#[derive(Debug)]
pub enum Body {
    /// Everything, or nothing more.
    Full(Option<Bytes>),
    /// Piece by piece.
    Stream(mpsc::Receiver<Bytes>),
    /// A watch.
    Watch(Box<Following>),
    /// Piece by piece, where one may be missing.
    Pages(mpsc::Receiver<Result<Bytes, Broken>>),
}

/// Why a body ends before it is complete; the connection or stream is reset, so that nobody takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the answer could not be completed: {0}")]
pub struct Broken(pub String);

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Watch(watch) => {
                watch.poll_piece(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Pages(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    /// What is known is said, so that HTTP/1 needs no chunks.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) | Self::Watch(_) | Self::Pages(_) => SizeHint::default(),
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

fn response(code: u16, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-cache, private"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

/// A response with JSON.
pub fn json(code: u16, value: &Value) -> Response<Body> {
    bytes(code, Bytes::from(value.to_string()))
}

/// A response with JSON that is bytes already.
pub fn bytes(code: u16, bytes: Bytes) -> Response<Body> {
    response(code, JSON, Body::Full(Some(bytes)))
}

/// A response whose content type depends on what the client accepts.
pub fn negotiated(content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = response(200, HeaderValue::from_static(content_type), Body::Full(Some(bytes)));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    response
}

/// A response with plain words.
pub fn text(code: u16, text: &'static str) -> Response<Body> {
    response(code, TEXT, Body::Full(Some(Bytes::from_static(text.as_bytes()))))
}

/// A response that is made while it is sent.
pub fn stream(pieces: mpsc::Receiver<Bytes>) -> Response<Body> {
    response(200, JSON, Body::Stream(pieces))
}

/// A response that lasts.
pub(super) fn watch(watch: Following) -> Response<Body> {
    response(200, JSON, Body::Watch(Box::new(watch)))
}

/// A response that is read while it is sent.
pub fn pages(pieces: mpsc::Receiver<Result<Bytes, Broken>>) -> Response<Body> {
    response(200, JSON, Body::Pages(pieces))
}

/// A refusal.
pub fn failure(failure: &Failure) -> Response<Body> {
    let mut response = json(failure.code, &failure.to_json());
    if failure.code == 429 {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
    }
    if failure.code == 401 {
        response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    response
}

/// Adds warnings, as kubectl prints them.
pub fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append("warning", value);
        }
    }
}

/// The content type without its parameters.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads the object of a request: JSON, or YAML or protobuf where the client says so.
pub fn object(headers: &HeaderMap, content: &[u8]) -> Result<Document, Failure> {
    let document = match media_type(headers) {
        "" | "application/json" | "text/json" => Document::read(content).map_err(unreadable)?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => yaml(content)?,
        "application/vnd.kubernetes.protobuf" => protobuf::object(content).map_err(unreadable)?.into(),
        other => {
            return Err(Failure::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/yaml, application/vnd.kubernetes.protobuf; this one is {other:?}"
            )));
        }
    };
    if document.value.is_object() { Ok(document) } else { Err(unreadable("it is no object")) }
}

/// YAML; of two members with one name the last counts, and strict clients are told.
fn yaml(content: &[u8]) -> Result<Document, Failure> {
    let text = std::str::from_utf8(content).map_err(unreadable)?;
    let strict = match serde_saphyr::from_str::<Value>(text) {
        Ok(value) => return Ok(value.into()),
        Err(error) => error.to_string(),
    };
    let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::from_str_with_options(text, lenient).map_err(unreadable)?;
    Ok(Document { value, doubles: vec![format!("yaml: {}", strict.lines().next().unwrap_or_default())] })
}

fn unreadable(error: impl std::fmt::Display) -> Failure {
    Failure::bad_request(format!(
        "the object provided is unrecognized (must be of type JSON, YAML or protobuf): {error}"
    ))
}
