//! The watch of a kind that may come as protobuf: the steps of `kube::runtime::watcher`, which reads JSON alone.
//!
//! ```text
//! Start --watch with initial events--> Initial --bookmark--> Watching --end--> Listed --watch--> Watching
//!   \----list, page by page----------> Pages ----last page--> Listed              any --410--> Start
//! ```
//!
//! The content type of each response decides how it is read: an API server that does not know protobuf answers with JSON.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use kube::api::{ListParams, WatchParams};
use kube::client::Body;
use kube::core::{ObjectList, Status, WatchEvent};
use kube::runtime::watcher;
use kube::{Client, Resource};
use model::protobuf::wire::WireError;
use model::protobuf::{self, FRAME_HEADER, MEDIA_TYPE};

use super::{WatchSpec, WatchedObject};

/// As client-go: protobuf if the server has it.
const ACCEPT: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
/// Duration of a watch, which the server ends, and after which its silence means that the connection is dead.
const WATCH_SECONDS: u32 = 290;
const IDLE_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// Longest line of JSON, and bytes of an error that are read.
const MAX_LINE: usize = protobuf::MAX_FRAME;

type Item = Result<watcher::Event<WatchedObject>, watcher::Error>;

/// The events of one watch, without an end.
pub(super) fn events(client: Client, spec: &WatchSpec) -> impl Stream<Item = Item> + use<> {
    let path = WatchedObject::url_path(&spec.kind.resource(), spec.namespace.as_deref());
    let watch = EncodedWatch { client, path, config: spec.config.clone(), step: Step::Start };
    stream::unfold(watch, |mut watch| async {
        loop {
            if let Some(item) = watch.next().await {
                return Some((item, watch));
            }
        }
    })
}

struct EncodedWatch {
    client: Client,
    path: String,
    config: watcher::Config,
    step: Step,
}

enum Step {
    Start,
    Pages(ListedPages),
    Initial(EventReader),
    /// To watch from this version.
    Listed(String),
    Watching(String, EventReader),
}

/// A list in progress.
#[derive(Default)]
struct ListedPages {
    objects: VecDeque<WatchedObject>,
    continue_token: Option<String>,
    /// Of the pages that were read.
    version: Option<String>,
}

impl EncodedWatch {
    /// One step; an item, if it has one. An error leaves the step from which to go on.
    async fn next(&mut self) -> Option<Item> {
        match std::mem::replace(&mut self.step, Step::Start) {
            Step::Start if self.config.initial_list_strategy == watcher::InitialListStrategy::ListWatch => {
                self.step = Step::Pages(ListedPages::default());
                Some(Ok(watcher::Event::Init))
            }
            Step::Start => match self.watch("0", true).await {
                Ok(reader) => {
                    self.step = Step::Initial(reader);
                    Some(Ok(watcher::Event::Init))
                }
                Err(error) => Some(Err(watcher::Error::WatchStartFailed(error))),
            },
            Step::Pages(pages) => self.page(pages).await,
            Step::Initial(reader) => self.initial(reader).await,
            Step::Listed(version) => match self.watch(&version, false).await {
                Ok(reader) => {
                    self.step = Step::Watching(version, reader);
                    None
                }
                Err(error) => {
                    self.step = Step::Listed(version);
                    Some(Err(watcher::Error::WatchStartFailed(error)))
                }
            },
            Step::Watching(version, reader) => self.watching(version, reader).await,
        }
    }

    async fn page(&mut self, mut pages: ListedPages) -> Option<Item> {
        if let Some(object) = pages.objects.pop_front() {
            self.step = Step::Pages(pages);
            return Some(Ok(watcher::Event::InitApply(object)));
        }
        if let (None, Some(version)) = (&pages.continue_token, pages.version.take()) {
            self.step = Step::Listed(version);
            return Some(Ok(watcher::Event::InitDone));
        }
        match self.list(pages.continue_token.as_deref()).await {
            Ok(read) if read.version.is_none() && read.continue_token.is_none() => {
                Some(Err(watcher::Error::NoResourceVersion))
            }
            Ok(read) => {
                self.step = Step::Pages(read);
                None
            }
            Err(error) => Some(Err(watcher::Error::InitialListFailed(error))),
        }
    }

    async fn initial(&mut self, mut reader: EventReader) -> Option<Item> {
        let event = reader.next_in_time().await?;
        let (item, next) = match event {
            Ok(ReadEvent::Applied(object)) => {
                (Some(Ok(watcher::Event::InitApply(object))), Step::Initial(reader))
            }
            Ok(ReadEvent::Bookmark { version, ends_initial_events: true }) => {
                (Some(Ok(watcher::Event::InitDone)), Step::Watching(version, reader))
            }
            // There are no deletions among the initial objects.
            Ok(ReadEvent::Bookmark { .. } | ReadEvent::Deleted(_)) => (None, Step::Initial(reader)),
            Ok(ReadEvent::Failed(status)) => {
                let next = if status.code == GONE { Step::Start } else { Step::Initial(reader) };
                (Some(Err(watcher::Error::WatchError(status))), next)
            }
            Err(error) => (Some(Err(watcher::Error::WatchFailed(error))), Step::Initial(reader)),
        };
        self.step = next;
        item
    }

    async fn watching(&mut self, version: String, mut reader: EventReader) -> Option<Item> {
        let Some(event) = reader.next_in_time().await else {
            self.step = Step::Listed(version);
            return None;
        };
        let (item, next) = match event {
            Ok(ReadEvent::Applied(object) | ReadEvent::Deleted(object))
                if object.resource_version().is_empty() =>
            {
                (Some(Err(watcher::Error::NoResourceVersion)), Step::Start)
            }
            Ok(ReadEvent::Applied(object)) => {
                let next = Step::Watching(object.resource_version().to_owned(), reader);
                (Some(Ok(watcher::Event::Apply(object))), next)
            }
            Ok(ReadEvent::Deleted(object)) => {
                let next = Step::Watching(object.resource_version().to_owned(), reader);
                (Some(Ok(watcher::Event::Delete(object))), next)
            }
            Ok(ReadEvent::Bookmark { version, .. }) => (None, Step::Watching(version, reader)),
            Ok(ReadEvent::Failed(status)) => {
                let next = if status.code == GONE { Step::Start } else { Step::Watching(version, reader) };
                (Some(Err(watcher::Error::WatchError(status))), next)
            }
            Err(error) => (Some(Err(watcher::Error::WatchFailed(error))), Step::Watching(version, reader)),
        };
        self.step = next;
        item
    }

    async fn watch(&mut self, version: &str, sends_initial_events: bool) -> Result<EventReader, kube::Error> {
        let params = WatchParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: sends_initial_events,
        };
        let request = kube::core::Request::new(&self.path).watch(&params, version);
        let response = self.send(request.map_err(kube::Error::BuildRequest)?).await?;
        let is_protobuf = is_protobuf(response.headers());
        Ok(EventReader { body: Some(response.into_body()), buffer: BytesMut::new(), scanned: 0, is_protobuf })
    }

    async fn list(&mut self, continue_token: Option<&str>) -> Result<ListedPages, kube::Error> {
        let params = ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            limit: self.config.page_size,
            continue_token: continue_token.map(str::to_owned),
            ..ListParams::default()
        };
        let request = kube::core::Request::new(&self.path).list(&params);
        let response = self.send(request.map_err(kube::Error::BuildRequest)?).await?;
        let is_protobuf = is_protobuf(response.headers());
        let content = response.into_body().collect().await?.to_bytes();
        if is_protobuf {
            return protobuf_list(&content).map_err(|error| unreadable(&error));
        }
        let list: ObjectList<WatchedObject> =
            serde_json::from_slice(&content).map_err(kube::Error::SerdeError)?;
        Ok(ListedPages {
            objects: list.items.into(),
            continue_token: list.metadata.continue_.filter(|token| !token.is_empty()),
            version: list.metadata.resource_version.filter(|version| !version.is_empty()),
        })
    }

    /// The response, or the error that it contains.
    async fn send(&mut self, mut request: Request<Vec<u8>>) -> Result<Response<Body>, kube::Error> {
        request.headers_mut().insert(header::ACCEPT, ACCEPT);
        let response = self.client.send(request.map(Body::from)).await?;
        let code = response.status();
        if !(code.is_client_error() || code.is_server_error()) {
            return Ok(response);
        }
        let content = http_body_util::Limited::new(response.into_body(), MAX_LINE);
        let content = content.collect().await.map_err(kube::Error::Service)?.to_bytes();
        Err(kube::Error::Api(failure(&content, code.as_u16()).boxed()))
    }
}

const GONE: u16 = 410;

fn is_protobuf(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.split(';').next().is_some_and(|kind| kind.trim() == MEDIA_TYPE))
}

/// The Status of a response, in any form. Proxies on the way answer with text.
fn failure(content: &[u8], code: u16) -> Status {
    if let Ok(status) = serde_json::from_slice::<Status>(content) {
        return status;
    }
    match protobuf::envelope(content).and_then(|envelope| protobuf_status(envelope.raw)) {
        Ok(status) if status.code > 0 => status,
        Ok(status) => status.with_code(code),
        Err(_) => {
            let text = String::from_utf8_lossy(content);
            Status::failure(text.trim(), "Failed to parse error data").with_code(code)
        }
    }
}

fn protobuf_status(raw: &[u8]) -> Result<Status, WireError> {
    let status = protobuf::status(raw)?;
    Ok(Status::failure(status.message, status.reason).with_code(status.code))
}

fn unreadable(error: &WireError) -> kube::Error {
    let error = io::Error::new(io::ErrorKind::InvalidData, format!("malformed protobuf: {error}"));
    kube::Error::ReadEvents(error)
}

/// A page of a list. An item without readable metadata is left out: it has no name to report.
fn protobuf_list(content: &Bytes) -> Result<ListedPages, WireError> {
    let list = protobuf::list(protobuf::envelope(content)?.raw)?;
    let mut pages = ListedPages::default();
    for item in list.items {
        match WatchedObject::from_message(content.slice_ref(item)) {
            Ok(object) => pages.objects.push_back(object),
            Err(error) => tracing::warn!(%error, "ignored an object with malformed metadata"),
        }
    }
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    pages.version = given(list.resource_version);
    pages.continue_token = given(list.continue_token);
    Ok(pages)
}

enum ReadEvent {
    Applied(WatchedObject),
    Deleted(WatchedObject),
    Bookmark { version: String, ends_initial_events: bool },
    Failed(Box<Status>),
}

/// The events of one response.
struct EventReader {
    /// `None` after its end.
    body: Option<Body>,
    buffer: BytesMut,
    /// Bytes of the buffer without the end of a line.
    scanned: usize,
    is_protobuf: bool,
}

impl EventReader {
    /// The next event; `None` at the end, or if the server is silent for too long.
    async fn next_in_time(&mut self) -> Option<Result<ReadEvent, kube::Error>> {
        tokio::time::timeout(IDLE_TIMEOUT, self.next()).await.unwrap_or(None)
    }

    async fn next(&mut self) -> Option<Result<ReadEvent, kube::Error>> {
        loop {
            match self.split() {
                Ok(Some(event)) => return Some(self.read(event)),
                Ok(None) => {}
                Err(error) => {
                    // Without the length of a frame there is no next one.
                    (self.body, self.buffer) = (None, BytesMut::new());
                    return Some(Err(unreadable(&error)));
                }
            }
            match self.body.as_mut()?.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                // What was cut is sent again.
                None => (self.body, self.buffer) = (None, BytesMut::new()),
                Some(Err(error)) => {
                    (self.body, self.buffer) = (None, BytesMut::new());
                    return match is_cut(&error) {
                        true => None,
                        false => Some(Err(kube::Error::ReadEvents(io::Error::other(error)))),
                    };
                }
            }
        }
    }

    /// The bytes of the next event, if they are complete.
    fn split(&mut self) -> Result<Option<Bytes>, WireError> {
        if self.is_protobuf {
            let length = protobuf::frame_length(&self.buffer)?;
            let Some(length) = length.filter(|length| self.buffer.len() >= FRAME_HEADER + length) else {
                return Ok(None);
            };
            self.buffer.advance(FRAME_HEADER);
            return Ok(Some(self.buffer.split_to(length).freeze()));
        }
        let unscanned = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(end) = unscanned.iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return if self.scanned > MAX_LINE { Err(WireError("a line is too long")) } else { Ok(None) };
        };
        let line = self.buffer.split_to(self.scanned + end + 1).freeze();
        self.scanned = 0;
        Ok(Some(line))
    }

    fn read(&self, event: Bytes) -> Result<ReadEvent, kube::Error> {
        if self.is_protobuf {
            return protobuf_event(&event).map_err(|error| unreadable(&error));
        }
        match serde_json::from_slice::<WatchEvent<WatchedObject>>(&event) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Ok(ReadEvent::Applied(object)),
            Ok(WatchEvent::Deleted(object)) => Ok(ReadEvent::Deleted(object)),
            Ok(WatchEvent::Bookmark(bookmark)) => Ok(ReadEvent::Bookmark {
                ends_initial_events: bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end"),
                version: bookmark.metadata.resource_version,
            }),
            Ok(WatchEvent::Error(status)) => Ok(ReadEvent::Failed(status)),
            Err(error) => Err(match serde_json::from_slice::<Status>(&event) {
                Ok(status) => kube::Error::Api(status.boxed()),
                Err(_) => kube::Error::SerdeError(error),
            }),
        }
    }
}

fn protobuf_event(frame: &Bytes) -> Result<ReadEvent, WireError> {
    let (word, object) = protobuf::watch_event(frame)?;
    let raw = protobuf::envelope(object)?.raw;
    match word {
        "ADDED" | "MODIFIED" => WatchedObject::from_message(frame.slice_ref(raw)).map(ReadEvent::Applied),
        "DELETED" => WatchedObject::from_message(frame.slice_ref(raw)).map(ReadEvent::Deleted),
        "BOOKMARK" => {
            let head = protobuf::head(raw)?;
            let ends_initial_events = head.ends_initial_events;
            Ok(ReadEvent::Bookmark { version: head.resource_version.to_owned(), ends_initial_events })
        }
        "ERROR" => Ok(ReadEvent::Failed(protobuf_status(raw)?.boxed())),
        _ => Err(WireError("an event of an unknown type")),
    }
}

/// Whether a connection ended within a response, which is how watches end after minutes.
fn is_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_eof = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    error.to_string().contains("unexpected EOF during chunk")
        || causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_eof))
}

#[cfg(test)]
mod tests;
