//! One simulated node: its watches of slices, each a connection of its own. It counts events and bytes and keeps nothing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

const RETRY: Duration = Duration::from_millis(20);

/// What a node has received.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Nanoseconds since the epoch.
    pub(crate) last_at: AtomicU64,
}

/// A watch or a list.
pub(crate) struct SliceRequest {
    pub(crate) socket: PathBuf,
    pub(crate) uri: String,
    pub(crate) accept: &'static str,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Counts the events of a watch: lines of JSON, or messages with their length in front.
#[derive(Default)]
struct EventCounter {
    /// Bytes of the length so far, and of the message that are still to come.
    head: Vec<u8>,
    rest: usize,
}

impl EventCounter {
    fn count(&mut self, accept: &str, mut data: &[u8]) -> u64 {
        if accept.starts_with("application/json") {
            return data.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
        let mut events = 0;
        while !data.is_empty() {
            let wanted = if self.rest > 0 { self.rest } else { 4 - self.head.len() };
            let (taken, left) = data.split_at(wanted.min(data.len()));
            data = left;
            if self.rest > 0 {
                self.rest -= taken.len();
                events += u64::from(self.rest == 0);
                continue;
            }
            self.head.extend_from_slice(taken);
            if let Ok(head) = <[u8; 4]>::try_from(self.head.as_slice()) {
                self.rest = u32::from_be_bytes(head) as usize;
                self.head.clear();
            }
        }
        events
    }
}

/// Connects; again while the queue of the listener is full.
async fn connect(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
            connected => return connected.unwrap(),
        }
    }
}

/// Reads until the API ends the response.
pub(crate) async fn read(request: &SliceRequest, received: &Received) {
    let stream = connect(&request.socket).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let get = Request::get(&request.uri).header(header::HOST, "localhost");
    let get = get.header(header::ACCEPT, request.accept).body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(get).await.unwrap();
    assert!(response.status().is_success(), "{}: {}", request.uri, response.status());
    let (mut body, mut counter) = (response.into_body(), EventCounter::default());
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else { continue };
        let events = counter.count(request.accept, data);
        received.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        received.last_at.store(now(), Ordering::Relaxed);
        received.events.fetch_add(events, Ordering::Release);
    }
}
