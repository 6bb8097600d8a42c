//! `GET /backup`: a consistent copy of the store while it serves. It contains Secrets, so no default role but
//! cluster-admin allows it. The copy is complete before its first byte is sent, and Content-Length lets clients detect a
//! truncated one.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;

use super::{Api, ResponseBody, body};
use crate::engine::BackupSnapshot;
use crate::status::StatusError;

/// The header with the revision of a backup.
pub const REVISION_HEADER: &str = "zoneward-revision";

/// Bytes per chunk, and chunks buffered for the client.
const CHUNK: usize = 256 << 10;
const BUFFERED: usize = 4;

/// A copy takes disk space: one at a time.
pub(super) fn semaphore() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

impl Api {
    pub(super) async fn backup(&self) -> Result<Response<ResponseBody>, StatusError> {
        let permit =
            self.backups.clone().try_acquire_owned().map_err(|_| {
                StatusError::too_many_requests("another backup is in progress: try again later")
            })?;
        let engine = self.engine.clone();
        let made = spawn_blocking(move || engine.snapshot()).await.map_err(StatusError::internal)?;
        let snapshot = made.map_err(StatusError::internal)?;
        let (revision, length) = (snapshot.revision.0, snapshot.length);
        let (sender, chunks) = mpsc::channel(BUFFERED);
        spawn_blocking(move || send(snapshot, &sender, permit));
        let mut response = body::stream(chunks);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, length.into());
        headers.insert(REVISION_HEADER, revision.into());
        Ok(response)
    }
}

/// An error ends the body before its Content-Length, which clients detect.
fn send(mut snapshot: BackupSnapshot, sender: &mpsc::Sender<Bytes>, _permit: OwnedSemaphorePermit) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(read @ 1..) = snapshot.file.read(&mut chunk) {
        if sender.blocking_send(Bytes::copy_from_slice(&chunk[..read])).is_err() {
            return;
        }
    }
}
