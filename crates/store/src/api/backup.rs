//! `GET /backup`: a consistent copy of everything, while everything goes on. For the admin alone, since Secrets are inside.
//! The copy is whole before its first byte is sent, and the length is said first, so that a client knows a torn one.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;

use super::{Api, Body, Caller, body};
use crate::engine::Snapshot;
use crate::status::Failure;

/// The header that says up to which revision a backup holds everything.
pub const REVISION_HEADER: &str = "zoneward-revision";

/// How many bytes are read at once, and how many such pieces may wait for the client.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// A copy takes room on the disk: one at a time.
pub(super) fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

impl Api {
    pub(super) async fn backup(&self, caller: &Caller) -> Result<Response<Body>, Failure> {
        if caller.read_only {
            return Err(Failure::forbidden(format!(
                "backup is forbidden: User {:?} may not see Secrets, which are inside: use the admin's kubeconfig",
                caller.name
            )));
        }
        let turn = self.backups.clone().try_acquire_owned().map_err(|_| {
            Failure::too_many_requests("another backup is under way: try again when it has ended")
        })?;
        let engine = self.engine.clone();
        let made = spawn_blocking(move || engine.snapshot()).await.map_err(Failure::internal)?;
        let snapshot = made.map_err(Failure::internal)?;
        let (revision, length) = (snapshot.revision.0, snapshot.length);
        let (sender, pieces) = mpsc::channel(PIECES);
        spawn_blocking(move || send(snapshot, &sender, turn));
        let mut response = body::stream(pieces);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, length.into());
        headers.insert(REVISION_HEADER, revision.into());
        Ok(response)
    }
}

/// An error ends the body before its length is reached, which every client notices.
fn send(mut snapshot: Snapshot, sender: &mpsc::Sender<Bytes>, _turn: OwnedSemaphorePermit) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = snapshot.file.read(&mut piece) {
        if sender.blocking_send(Bytes::copy_from_slice(&piece[..read])).is_err() {
            return;
        }
    }
}
