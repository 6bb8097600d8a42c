//! One simulated node: its watches of slices, each a connection of its own. It counts events and bytes and keeps nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

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

/// Reads until the API ends the response. A line is an event.
pub(crate) async fn read(request: &SliceRequest, received: &Received) {
    let stream = UnixStream::connect(&request.socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let get = Request::get(&request.uri).header(header::HOST, "localhost");
    let get = get.header(header::ACCEPT, request.accept).body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(get).await.unwrap();
    assert!(response.status().is_success(), "{}: {}", request.uri, response.status());
    let mut body = response.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else { continue };
        let lines = data.iter().filter(|byte| **byte == b'\n').count() as u64;
        received.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        received.last_at.store(now(), Ordering::Relaxed);
        received.events.fetch_add(lines, Ordering::Release);
    }
}
