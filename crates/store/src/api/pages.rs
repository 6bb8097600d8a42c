//! Long lists in bounded memory: all objects that a client asked for, some at a time, all at one revision.
//!
//! ```text
//! first page -> head of the answer -> page -> page -> ... -> end
//!                    each waits until the client has taken the ones before
//! ```
//!
//! A client that takes so long that the revision is compacted gets a broken body and not half a list.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use tokio::sync::mpsc;

use super::body::Broken;
use super::read::{Listed, list_head};
use super::route::Target;
use super::{Api, Body, Call, body};
use crate::engine::Revision;
use crate::query::ListOptions;
use crate::status::Failure;

/// How many objects are read at once.
const PAGE: usize = 500;
/// How many pages may wait for a slow client.
const WAITING: usize = 2;

/// The pages of a list that has no limit of its own.
pub(super) struct Pages {
    api: Api,
    target: Target,
    options: ListOptions,
    next: Option<Listed>,
}

impl Pages {
    /// Reads the first page, which fixes the revision of the others.
    pub(super) fn begin(api: &Api, target: &Target, options: &ListOptions) -> Result<Self, Failure> {
        let options = ListOptions { limit: PAGE, ..options.clone() };
        let first = api.page(target, &options, false)?;
        Ok(Self { api: api.clone(), target: target.clone(), options, next: Some(first) })
    }

    /// The revision of the list.
    pub(super) fn revision(&self) -> Revision {
        self.next.as_ref().map_or(Revision(0), |page| page.revision)
    }

    /// The first page if it is all.
    pub(super) fn into_one(mut self) -> Result<Listed, Box<Self>> {
        match self.next.take() {
            Some(page) if page.next_token().is_none() => Ok(page),
            page => Err(Box::new(Self { next: page, ..self })),
        }
    }

    /// The objects of the next page; `None` behind the last one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Bytes>>, Failure> {
        let Some(page) = self.next.take() else { return Ok(None) };
        if let Some(token) = page.next_token() {
            self.options.continue_token = Some(token);
            self.next = Some(self.api.page(&self.target, &self.options, false)?);
        }
        Ok(Some(page.items))
    }
}

/// Answers with a list that is read while it is sent.
pub(super) fn respond(call: &Call, mut pages: Pages) -> Response<Body> {
    let meta = serde_json::json!({"resourceVersion": pages.revision().to_string()});
    let head = list_head(call.target.kind, &meta);
    let (sender, pieces) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut piece = BytesMut::from(head.as_bytes());
        let mut is_first = true;
        loop {
            let items = match pages.next() {
                Ok(Some(items)) => items,
                Ok(None) => break,
                Err(failure) => {
                    let _ = sender.send(Err(Broken(failure.message))).await;
                    return;
                }
            };
            for item in &items {
                if !is_first {
                    piece.put_u8(b',');
                }
                is_first = false;
                piece.put_slice(item);
            }
            drop(items);
            if sender.send(Ok(piece.split().freeze())).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Ok(Bytes::from_static(b"]}"))).await;
    });
    body::pages(pieces)
}
