//! Long lists in bounded memory: read and sent page by page, all at one revision.
//!
//! ```text
//! first page -> start of the list -> page -> page -> ... -> end
//!                    each is read when the client has taken the one before
//! ```
//!
//! If the revision is compacted before a slow client has everything, the body is aborted instead of truncated.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;

use super::body::TruncatedBody;
use super::list::{ListedPage, list_head};
use super::negotiation::Accept;
use super::request_info::RequestInfo;
use super::{Api, ResourceRequest, ResponseBody, body};
use crate::engine::Revision;
use crate::query::ListOptions;
use crate::status::StatusError;

/// Objects per page.
const PAGE: usize = 500;
/// Bytes per page, not counting its last object.
const PAGE_BYTES: usize = 128 << 10;

/// The pages of a list without a limit. Between two pages it holds no objects.
pub(super) struct PagedList {
    api: Api,
    info: RequestInfo,
    options: ListOptions,
    revision: Revision,
    next: NextPage,
}

enum NextPage {
    /// The first, which was read to fix the revision.
    Read(ListedPage),
    /// From [`ListOptions::continue_token`].
    Unread,
    End,
}

impl PagedList {
    /// Reads the first page, which fixes the revision.
    pub(super) fn begin(api: &Api, info: &RequestInfo, options: &ListOptions) -> Result<Self, StatusError> {
        let options = ListOptions { limit: PAGE, ..options.clone() };
        let first = api.page(info, &options, PAGE_BYTES, false)?;
        let (revision, next) = (first.revision, NextPage::Read(first));
        Ok(Self { api: api.clone(), info: info.clone(), options, revision, next })
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Bytes in memory.
    pub(super) fn held(&self) -> usize {
        match &self.next {
            NextPage::Read(page) => page.items.iter().map(Bytes::len).sum(),
            NextPage::Unread | NextPage::End => 0,
        }
    }

    /// The first page, if it is the only one.
    pub(super) fn into_single(mut self) -> Result<ListedPage, Box<Self>> {
        match std::mem::replace(&mut self.next, NextPage::End) {
            NextPage::Read(page) if page.next_token().is_none() => Ok(page),
            next => Err(Box::new(Self { next, ..self })),
        }
    }

    /// The objects of the next page; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Bytes>>, StatusError> {
        let page = match std::mem::replace(&mut self.next, NextPage::End) {
            NextPage::Read(page) => page,
            NextPage::Unread => self.api.page(&self.info, &self.options, PAGE_BYTES, false)?,
            NextPage::End => return Ok(None),
        };
        if let Some(token) = page.next_token() {
            self.options.continue_token = Some(token);
            self.next = NextPage::Unread;
        }
        Ok(Some(page.items))
    }
}

/// A list that is read while it is sent.
pub struct ListStream {
    pages: Box<PagedList>,
    /// The start of the list, until it was sent.
    head: Option<String>,
    is_first: bool,
    is_done: bool,
    accept: Accept,
}

impl std::fmt::Debug for ListStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ListStream({:?})", self.pages.revision())
    }
}

impl ListStream {
    /// Bytes in memory.
    pub(super) fn held(&self) -> usize {
        self.pages.held()
    }

    /// The next page; `None` at the end.
    pub(super) fn next_chunk(&mut self) -> Option<Result<Bytes, TruncatedBody>> {
        if self.is_done {
            return None;
        }
        let items = match self.pages.next() {
            Ok(items) => items,
            Err(error) => {
                self.is_done = true;
                return Some(Err(TruncatedBody(error.message)));
            }
        };
        let Some(items) = items else {
            self.is_done = true;
            return Some(Ok(Bytes::from_static(b"]}")));
        };
        let size: usize = items.iter().map(|item| item.len() + 1).sum();
        let head = self.head.take().unwrap_or_default();
        let mut chunk = BytesMut::with_capacity(head.len() + size);
        chunk.put_slice(head.as_bytes());
        for item in items.into_iter().map(|item| self.accept.shown(item)) {
            if !std::mem::take(&mut self.is_first) {
                chunk.put_u8(b',');
            }
            chunk.put_slice(&item);
        }
        Some(Ok(chunk.freeze()))
    }
}

/// Responds with a list that is read while it is sent.
pub(super) fn respond(request: &ResourceRequest, pages: PagedList) -> Response<ResponseBody> {
    let meta = serde_json::json!({"resourceVersion": pages.revision().to_string()});
    let head = Some(list_head(request.info.kind, &meta));
    let accept = request.accept.clone();
    body::pages(ListStream { pages: Box::new(pages), head, is_first: true, is_done: false, accept })
}
