//! Lists: all objects of a resource at one revision, page by page.
//! A page that continues another is answered at that one's revision, so that pages fit together whatever was
//! written in between.

use super::failure::{Failure, ReadError};
use super::key::{Key, ResourceId, Revision, Stored};
use super::tables::{Edge, Head, Meta, ReadTables, bounds, key_of};

/// What to list.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The kind of object.
    pub resource: ResourceId,
    /// Only this namespace.
    pub namespace: Option<&'a str>,
    /// Only keys after this one: [`Page::more`] of the page before.
    pub start_after: Option<&'a Key>,
    /// At most so many; 0 for all.
    pub limit: usize,
    /// The state at this revision; `None` for the newest.
    pub at: Option<Revision>,
    /// Whether to count what the limit left out; costs a walk over the keys.
    pub count_remaining: bool,
}

impl<'a> Query<'a> {
    /// Everything of a resource, now.
    pub fn all(resource: ResourceId) -> Query<'a> {
        Query { resource, namespace: None, start_after: None, limit: 0, at: None, count_remaining: false }
    }

    fn is_full(&self, items: &[Stored]) -> bool {
        self.limit > 0 && items.len() >= self.limit
    }
}

/// An answer to a [`Query`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects, in the order of their keys.
    pub items: Vec<Stored>,
    /// The revision that the list shows; the one to watch from.
    pub revision: Revision,
    /// Where the next page goes on, if there is more.
    pub more: Option<Key>,
    /// How many objects are behind this page; `None` if not counted, or none are left.
    pub remaining: Option<u64>,
}

/// Whatever can answer a [`Query`]: a store that runs, one at rest, or a backup.
pub type Lister<'a> = dyn Fn(&Query<'_>) -> Result<Page, ReadError> + 'a;

impl ReadTables {
    pub(super) fn list(&self, query: &Query<'_>) -> Result<Page, ReadError> {
        let meta = self.meta()?;
        let at = readable_at(&meta, query.at)?;
        let (mut start, end) = bounds(query.resource, query.namespace);
        if let Some(key) = query.start_after {
            start = start.max(Edge::behind(key));
        }
        let mut page = Page { revision: at, ..Page::default() };
        if start >= end {
            return Ok(page);
        }
        for entry in self.index.range(start.borrowed()..end.borrowed()).map_err(Failure::from)? {
            let (key, head) = entry.map_err(Failure::from)?;
            let (revision, alive) = head.value();
            // Most entries are older than the list; the dead ones among them need no look at their versions.
            if revision <= at.0 && !alive {
                continue;
            }
            if revision <= at.0 && query.is_full(&page.items) && page.more.is_some() {
                page.remaining = Some(page.remaining.unwrap_or(0) + 1);
                continue;
            }
            let key = key_of(key.value())?;
            let head = Head { revision, alive };
            let Some(found) = self.object_at(&key, head, at.0, meta.compacted)? else { continue };
            if !query.is_full(&page.items) {
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

/// The revision to answer at, if it is still, or already, known.
pub(super) fn readable_at(meta: &Meta, asked: Option<Revision>) -> Result<Revision, ReadError> {
    let (oldest, current) = (Revision(meta.compacted), Revision(meta.revision));
    match asked {
        None => Ok(current),
        Some(asked) if asked > current => Err(ReadError::Ahead { asked, current }),
        Some(asked) if asked < oldest => Err(ReadError::Gone { asked, oldest }),
        Some(asked) => Ok(asked),
    }
}
