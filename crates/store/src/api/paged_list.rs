//! Long lists in bounded memory: read and sent page by page, all at one revision.
//!
//! ```text
//! first page -> start of the list -> page -> page -> ... -> end
//!                    each waits until the client has taken the ones before
//! ```
//!
//! If the revision is compacted before a slow client has everything, the body is aborted instead of truncated.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use tokio::sync::mpsc;

use super::body::TruncatedBody;
use super::list::{ListedPage, list_head};
use super::request_info::RequestInfo;
use super::{Api, ResourceRequest, ResponseBody, body};
use crate::engine::Revision;
use crate::query::ListOptions;
use crate::status::StatusError;

/// Objects per page.
const PAGE: usize = 500;
/// Pages buffered for a slow client.
const BUFFERED: usize = 2;

/// The pages of a list without a limit.
pub(super) struct PagedList {
    api: Api,
    info: RequestInfo,
    options: ListOptions,
    next: Option<ListedPage>,
}

impl PagedList {
    /// Reads the first page, which fixes the revision.
    pub(super) fn begin(api: &Api, info: &RequestInfo, options: &ListOptions) -> Result<Self, StatusError> {
        let options = ListOptions { limit: PAGE, ..options.clone() };
        let first = api.page(info, &options, false)?;
        Ok(Self { api: api.clone(), info: info.clone(), options, next: Some(first) })
    }

    pub(super) fn revision(&self) -> Revision {
        self.next.as_ref().map_or(Revision(0), |page| page.revision)
    }

    /// The first page, if it is the only one.
    pub(super) fn into_single(mut self) -> Result<ListedPage, Box<Self>> {
        match self.next.take() {
            Some(page) if page.next_token().is_none() => Ok(page),
            page => Err(Box::new(Self { next: page, ..self })),
        }
    }

    /// The objects of the next page; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Bytes>>, StatusError> {
        let Some(page) = self.next.take() else { return Ok(None) };
        if let Some(token) = page.next_token() {
            self.options.continue_token = Some(token);
            self.next = Some(self.api.page(&self.info, &self.options, false)?);
        }
        Ok(Some(page.items))
    }
}

/// Responds with a list that is read while it is sent.
pub(super) fn respond(request: &ResourceRequest, mut pages: PagedList) -> Response<ResponseBody> {
    let meta = serde_json::json!({"resourceVersion": pages.revision().to_string()});
    let head = list_head(request.info.kind, &meta);
    let (sender, chunks) = mpsc::channel(BUFFERED);
    tokio::spawn(async move {
        let mut chunk = BytesMut::from(head.as_bytes());
        let mut is_first = true;
        loop {
            let items = match pages.next() {
                Ok(Some(items)) => items,
                Ok(None) => break,
                Err(error) => {
                    let _ = sender.send(Err(TruncatedBody(error.message))).await;
                    return;
                }
            };
            for item in &items {
                if !is_first {
                    chunk.put_u8(b',');
                }
                is_first = false;
                chunk.put_slice(item);
            }
            drop(items);
            if sender.send(Ok(chunk.split().freeze())).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Ok(Bytes::from_static(b"]}"))).await;
    });
    body::pages(chunks)
}
