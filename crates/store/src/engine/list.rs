//! Lists: the objects of a resource at one revision, in pages. A continued list stays at the revision of its first page.

use super::error::{StorageError, StoreReadError};
use super::key::{ResourceId, Revision, StoreKey, StoredObject};
use super::tables::{KeyBound, KeyHead, Meta, ReadTables, bounds, key_of};

/// What to list.
#[derive(Clone, Debug)]
pub struct ListQuery<'a> {
    pub resource: ResourceId,
    /// `None` for all namespaces.
    pub namespace: Option<&'a str>,
    /// Only keys after this one: [`ListPage::more`] of the page before.
    pub start_after: Option<&'a StoreKey>,
    /// Page size; 0 for all.
    pub limit: usize,
    /// Bytes of a page, not counting its last object; 0 for all.
    pub max_bytes: usize,
    /// The revision of the state; `None` for the newest.
    pub at: Option<Revision>,
    /// Whether to count the objects after the page, which costs a walk over their keys.
    pub count_remaining: bool,
}

impl<'a> ListQuery<'a> {
    /// All objects of a resource at the newest revision.
    pub fn all(resource: ResourceId) -> ListQuery<'a> {
        ListQuery {
            resource,
            namespace: None,
            start_after: None,
            limit: 0,
            max_bytes: 0,
            at: None,
            count_remaining: false,
        }
    }

    fn is_full(&self, items: &[StoredObject], bytes: usize) -> bool {
        self.limit > 0 && items.len() >= self.limit || self.max_bytes > 0 && bytes >= self.max_bytes
    }
}

/// The result of a [`ListQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// In the order of their keys.
    pub items: Vec<StoredObject>,
    /// The revision of the list, to watch from.
    pub revision: Revision,
    /// The last key of the page, if more follow.
    pub more: Option<StoreKey>,
    /// Number of objects after this page; `None` if not counted, or none are left.
    pub remaining: Option<u64>,
}

/// Answers a [`ListQuery`]: an open store, a closed one, or a backup.
pub type Lister<'a> = dyn Fn(&ListQuery<'_>) -> Result<ListPage, StoreReadError> + 'a;

impl ReadTables {
    pub(super) fn list(&self, query: &ListQuery<'_>) -> Result<ListPage, StoreReadError> {
        let meta = self.meta()?;
        let at = readable_at(&meta, query.at)?;
        let (mut start, end) = bounds(query.resource, query.namespace);
        if let Some(key) = query.start_after {
            start = start.max(KeyBound::behind(key));
        }
        let (mut page, mut bytes) = (ListPage { revision: at, ..ListPage::default() }, 0);
        if start >= end {
            return Ok(page);
        }
        for entry in self.index.range(start.borrowed()..end.borrowed()).map_err(StorageError::from)? {
            let (key, head) = entry.map_err(StorageError::from)?;
            let (revision, alive) = head.value();
            // Most entries are older than the list; deleted ones among them need no look at their versions.
            if revision <= at.0 && !alive {
                continue;
            }
            if revision <= at.0 && query.is_full(&page.items, bytes) && page.more.is_some() {
                page.remaining = Some(page.remaining.unwrap_or(0) + 1);
                continue;
            }
            let key = key_of(key.value())?;
            let head = KeyHead { revision, alive };
            let Some(found) = self.object_at(&key, head, at.0, meta.compacted)? else { continue };
            if !query.is_full(&page.items, bytes) {
                bytes += found.json.len();
                page.items.push(found);
                continue;
            }
            page.more = page.items.last().map(|last| last.key.clone());
            if !query.count_remaining {
                break;
            }
            page.remaining = Some(page.remaining.unwrap_or(0) + 1);
        }
        Ok(page)
    }
}

/// The revision to read at, unless it is compacted or in the future.
pub(super) fn readable_at(meta: &Meta, asked: Option<Revision>) -> Result<Revision, StoreReadError> {
    let (oldest, current) = (Revision(meta.compacted), Revision(meta.revision));
    match asked {
        None => Ok(current),
        Some(asked) if asked > current => Err(StoreReadError::Ahead { asked, current }),
        Some(asked) if asked < oldest => Err(StoreReadError::Gone { asked, oldest }),
        Some(asked) => Ok(asked),
    }
}
