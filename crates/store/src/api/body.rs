//! Bodies of requests and responses.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::{Body as _, Frame, SizeHint};
use model::protobuf::MEDIA_TYPE;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;
use tokio::sync::mpsc;

use super::fairness::HeldShare;
use super::paged_list::ListStream;
use super::watch::WatchStream;
use crate::audit::AuditEvent;
use crate::protobuf::{self, ProtobufError};
use crate::status::StatusError;
use crate::strict_json::StrictJson;

/// The body of a response.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known in full; `None` once it was sent.
    Full(Option<Bytes>),
    /// Chunk by chunk.
    Stream(mpsc::Receiver<Bytes>),
    Watch(Box<WatchStream>),
    /// A watch whose end is recorded in the audit log.
    Audited(Box<ResponseBody>, Box<AuditEvent>),
    /// Page by page; an error aborts the response.
    PagedList(Box<ListStream>),
    /// Frame by frame, and charged to its user.
    Metered(Box<MeteredBody>),
}

/// Size of a frame: with its header one TLS record, and one HTTP/2 frame.
pub(super) const FRAME: usize = (16 << 10) - 9;

/// Bytes of a body after which other connections have a turn: a client that sends or takes megabytes at once must not
/// delay small requests of others.
pub(super) const BYTES_PER_TURN: usize = 16 << 10;

/// A body in frames: the connection buffers few of them, and the bytes that the client has not taken are charged, those
/// in the buffers of the connection included.
#[derive(Debug)]
pub struct MeteredBody {
    inner: ResponseBody,
    /// Taken from the inner body, and not sent.
    unsent: Bytes,
    share: Option<Arc<ResponseShare>>,
    /// Bytes in this turn.
    in_turn: usize,
}

/// The share of a response, held by its body and by the frames that the connection has not written.
#[derive(Debug)]
struct ResponseShare {
    held: Mutex<HeldShare>,
    body: AtomicUsize,
    frames: AtomicUsize,
}

impl ResponseShare {
    fn charge(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.charge(self.body.load(Ordering::Relaxed) + self.frames.load(Ordering::Relaxed));
    }
}

/// A frame that is charged until the connection has written it. HTTP/2 holds one or two for each stream whose window is
/// closed, also after the end of the body.
struct ChargedFrame {
    bytes: Bytes,
    share: Arc<ResponseShare>,
}

impl ChargedFrame {
    fn new(bytes: Bytes, share: &Arc<ResponseShare>) -> Self {
        share.frames.fetch_add(bytes.len(), Ordering::Relaxed);
        Self { bytes, share: share.clone() }
    }
}

impl AsRef<[u8]> for ChargedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ChargedFrame {
    fn drop(&mut self) {
        self.share.frames.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.share.charge();
    }
}

impl MeteredBody {
    /// `share` is `None` for callers that are exempt.
    fn new(inner: ResponseBody, share: Option<HeldShare>) -> Self {
        let share = share.map(|held| {
            let (held, body, frames) = (Mutex::new(held), AtomicUsize::new(0), AtomicUsize::new(0));
            Arc::new(ResponseShare { held, body, frames })
        });
        let body = Self { inner, unsent: Bytes::new(), share, in_turn: 0 };
        body.charge();
        body
    }

    fn charge(&self) {
        if let Some(share) = &self.share {
            share.body.store(self.unsent.len() + self.inner.held(), Ordering::Relaxed);
            share.charge();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TruncatedBody>>> {
        if self.in_turn >= BYTES_PER_TURN {
            self.in_turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.unsent.is_empty() {
            match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => self.unsent = frame.into_data().unwrap_or_default(),
                other => return other,
            }
        }
        let len = self.unsent.len().min(FRAME);
        let mut frame = self.unsent.split_to(len);
        self.in_turn += len;
        if let Some(share) = &self.share {
            frame = Bytes::from_owner(ChargedFrame::new(frame, share));
        }
        if self.unsent.is_empty() {
            // Not a slice of what was sent, which would keep it in memory.
            self.unsent = Bytes::new();
        }
        self.charge();
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            share.body.store(0, Ordering::Relaxed);
            share.charge();
        }
    }
}

impl ResponseBody {
    /// Bytes in memory.
    fn held(&self) -> usize {
        match self {
            Self::Full(bytes) => bytes.as_ref().map_or(0, Bytes::len),
            Self::Stream(_) => 0,
            Self::Watch(watch) => watch.held(),
            Self::Audited(inner, _) => inner.held(),
            Self::PagedList(list) => list.held(),
            Self::Metered(body) => body.unsent.len() + body.inner.held(),
        }
    }

    /// The same body, charged to a user; small ones of exempt callers as they are.
    pub(super) fn metered(self, share: Option<HeldShare>) -> Self {
        match self {
            Self::Full(_) | Self::Watch(_) if share.is_none() => self,
            inner => Self::Metered(Box::new(MeteredBody::new(inner, share))),
        }
    }
}

/// A body that ends early. The connection or stream is reset, so that clients do not take it for complete.
#[derive(Debug, thiserror::Error)]
#[error("the response could not be completed: {0}")]
pub struct TruncatedBody(pub String);

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = TruncatedBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TruncatedBody>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(chunks) => {
                chunks.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Audited(inner, event) => {
                let polled = Pin::new(inner.as_mut()).poll_frame(context);
                if matches!(polled, Poll::Ready(None)) {
                    event.end_watch();
                }
                polled
            }
            Self::Watch(watch) => {
                watch.poll_chunk(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::PagedList(list) => Poll::Ready(list.next_chunk().map(|chunk| chunk.map(Frame::data))),
            Self::Metered(body) => body.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Metered(body) => body.unsent.is_empty() && body.inner.is_end_stream(),
            _ => false,
        }
    }

    /// A known size saves HTTP/1 the chunked encoding.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Metered(body) => match body.inner.size_hint().exact() {
                Some(rest) => SizeHint::with_exact(rest + body.unsent.len() as u64),
                None => SizeHint::default(),
            },
            Self::Stream(_) | Self::Watch(_) | Self::Audited(..) | Self::PagedList(_) => SizeHint::default(),
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROTOBUF_STREAM: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

fn response(code: u16, content_type: HeaderValue, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-cache, private"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

pub(crate) fn json(code: u16, value: &Value) -> Response<ResponseBody> {
    bytes(code, Bytes::from(value.to_string()))
}

/// A response with encoded JSON.
pub(crate) fn bytes(code: u16, bytes: Bytes) -> Response<ResponseBody> {
    response(code, JSON, ResponseBody::Full(Some(bytes)))
}

/// A response whose content type depends on the Accept header.
pub(crate) fn negotiated(content_type: &'static str, bytes: Bytes) -> Response<ResponseBody> {
    let mut response = response(200, HeaderValue::from_static(content_type), ResponseBody::Full(Some(bytes)));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    response
}

pub(crate) fn text(code: u16, text: &'static str) -> Response<ResponseBody> {
    response(code, TEXT, ResponseBody::Full(Some(Bytes::from_static(text.as_bytes()))))
}

pub(crate) fn stream(chunks: mpsc::Receiver<Bytes>) -> Response<ResponseBody> {
    response(200, JSON, ResponseBody::Stream(chunks))
}

pub(super) fn watch(watch: WatchStream) -> Response<ResponseBody> {
    let is_compressed = watch.is_compressed();
    let content_type = if watch.is_protobuf() { PROTOBUF_STREAM } else { JSON };
    let mut response = response(200, content_type, ResponseBody::Watch(Box::new(watch)));
    if is_compressed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// A watch with one event.
pub(super) fn watch_event(event: Bytes, is_protobuf: bool) -> Response<ResponseBody> {
    let content_type = if is_protobuf { PROTOBUF_STREAM } else { JSON };
    response(200, content_type, ResponseBody::Full(Some(event)))
}

pub(super) fn protobuf(bytes: Bytes) -> Response<ResponseBody> {
    response(200, HeaderValue::from_static(MEDIA_TYPE), ResponseBody::Full(Some(bytes)))
}

pub(super) fn pages(list: ListStream) -> Response<ResponseBody> {
    response(200, JSON, ResponseBody::PagedList(Box::new(list)))
}

pub(crate) fn error(error: &StatusError) -> Response<ResponseBody> {
    let mut response = json(error.code, &error.to_json());
    if error.code == 429 {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
    }
    if error.code == 401 {
        response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    response
}

/// Characters of all warnings above which each is truncated, and further ones are left out, as in kube-apiserver.
const MAX_WARNINGS: usize = 4 << 10;
/// Characters of a truncated warning.
const MAX_WARNING: usize = 256;

/// Adds Warning headers, which kubectl prints.
pub(crate) fn warn(response: &mut Response<ResponseBody>, warnings: &[String]) {
    let total: usize = warnings.iter().take(MAX_WARNINGS).map(|warning| warning.chars().count()).sum();
    let (mut written, longest) = (0, if total > MAX_WARNINGS { MAX_WARNING } else { usize::MAX });
    for warning in warnings {
        if written >= MAX_WARNINGS {
            return;
        }
        let shown: String = warning.chars().take(longest).collect();
        written += shown.chars().count();
        let quoted = shown.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append("warning", value);
        }
    }
}

/// The content type without its parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Decodes the object of a request: JSON, YAML or protobuf. `wanted` is its kind, for errors.
pub(crate) fn object(headers: &HeaderMap, content: &[u8], wanted: &str) -> Result<StrictJson, StatusError> {
    let unreadable = |error: &dyn std::fmt::Display| unrecognized(wanted, error);
    let decoded = match media_type(headers) {
        "" | "application/json" | "text/json" => StrictJson::decode(content)
            .map_err(|error| unreadable(&format!("couldn't get version/kind; json parse error: {error}")))?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            yaml(content).map_err(|error| unreadable(&error))?
        }
        MEDIA_TYPE => match protobuf::object(content) {
            Ok(object) => object.into(),
            Err(ProtobufError::TooLarge) => return Err(StatusError::object_too_large(None)),
            Err(ProtobufError::Malformed(error)) => return Err(unreadable(&error)),
        },
        other => {
            return Err(StatusError::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/yaml, application/vnd.kubernetes.protobuf; got {other:?}"
            )));
        }
    };
    if decoded.value.is_object() { Ok(decoded) } else { Err(unreadable(&"expected an object")) }
}

/// The object of an apply: YAML, of which JSON is a part.
pub(crate) fn apply_patch(content: &[u8], wanted: &str) -> Result<StrictJson, StatusError> {
    let decoded = match StrictJson::decode(content) {
        Ok(decoded) => decoded,
        Err(_) => yaml(content).map_err(|error| unrecognized(wanted, &error))?,
    };
    if decoded.value.is_object() { Ok(decoded) } else { Err(unrecognized(wanted, &"expected an object")) }
}

/// Decodes YAML; the last of duplicate fields counts, and strict validation reports them.
fn yaml(content: &[u8]) -> Result<StrictJson, String> {
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let strict = match serde_saphyr::from_str::<Value>(text) {
        Ok(value) => return Ok(value.into()),
        Err(error) => error.to_string(),
    };
    let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::from_str_with_options(text, lenient).map_err(|error| error.to_string())?;
    Ok(StrictJson { value, duplicates: vec![format!("yaml: {}", strict.lines().next().unwrap_or_default())] })
}

fn unrecognized(wanted: &str, error: &dyn std::fmt::Display) -> StatusError {
    StatusError::bad_request(format!(
        "the object provided is unrecognized (must be of type {wanted}): {error}"
    ))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn large_body_gives_other_connections_a_turn() {
        let inner = ResponseBody::Full(Some(Bytes::from(vec![b'x'; 1 << 20])));
        let mut body = MeteredBody::new(inner, None);
        let (mut sent, mut turns) = (0, vec![0]);
        loop {
            match body.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(frame)) => {
                    let bytes = frame.unwrap().into_data().unwrap().len();
                    sent += bytes;
                    *turns.last_mut().unwrap() += bytes;
                }
                Poll::Ready(None) => break,
                Poll::Pending => turns.push(0),
            }
        }
        assert_eq!(sent, 1 << 20);
        assert!(turns.iter().all(|bytes| *bytes < BYTES_PER_TURN + FRAME), "{turns:?}");
    }
}
