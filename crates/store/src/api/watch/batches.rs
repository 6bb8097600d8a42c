//! Pieces that many watches send alike. Watches of one kind, namespace, selectors and form see the same lines: the first
//! that comes to a batch of changes writes it, and the others of the same wave send the very same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::super::Call;
use super::super::accept::Form;
use crate::engine::Revision;

/// How many batches are kept: watches that keep up need the newest few of their view.
const MOST: usize = 256;
/// How many bytes these may have together.
const MOST_BYTES: usize = 4 << 20;

/// What two watches must have in common to see the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sight {
    group: &'static str,
    plural: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    labels: String,
    fields: String,
    metadata_alone: bool,
}

/// The batches of all watches.
#[derive(Clone, Default)]
pub(in super::super) struct Batches(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The number of each view that somebody has.
    views: BTreeMap<Sight, Weak<u64>>,
    next_view: u64,
    /// How many views may be known before those that nobody has any more are forgotten.
    tidy_at: usize,
    batches: BTreeMap<Place, (Revision, Bytes)>,
    order: VecDeque<Place>,
    bytes: usize,
}

/// Which batch: of which view, behind which revision, and up to where there were changes when it was made. It may end
/// earlier, if there was too much for one piece; so what it holds says where it ends.
type Place = (u64, Revision, Revision);

/// One watch's part in the batches of its view.
pub(super) struct Share {
    batches: Batches,
    view: Arc<u64>,
}

impl Batches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part for a watch. Tables are made for each watch alone: their first line is another than the rest, and
    /// their ages are of the moment.
    pub(super) fn share(&self, call: &Call) -> Option<Share> {
        if call.accept.form == Form::Table {
            return None;
        }
        let text = |name: &str| call.query.value(name).map(str::to_owned).unwrap_or_default();
        let sight = Sight {
            group: call.target.kind.group,
            plural: call.target.kind.plural,
            namespace: call.target.namespace.clone(),
            name: call.target.name.clone(),
            labels: text("labelSelector"),
            fields: text("fieldSelector"),
            metadata_alone: call.accept.form == Form::Metadata,
        };
        Some(Share { batches: self.clone(), view: self.lock().view(sight) })
    }
}

impl State {
    fn view(&mut self, sight: Sight) -> Arc<u64> {
        if let Some(known) = self.views.get(&sight).and_then(Weak::upgrade) {
            return known;
        }
        if self.views.len() >= self.tidy_at {
            self.views.retain(|_, view| view.strong_count() > 0);
            self.tidy_at = self.views.len() * 2 + 16;
        }
        let view = Arc::new(self.next_view);
        self.next_view += 1;
        self.views.insert(sight, Arc::downgrade(&view));
        view
    }

    fn keep(&mut self, at: Place, batch: (Revision, Bytes)) {
        if self.batches.contains_key(&at) {
            return;
        }
        self.bytes += batch.1.len();
        self.batches.insert(at, batch);
        self.order.push_back(at);
        while self.order.len() > MOST || self.bytes > MOST_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some((_, bytes)) = self.batches.remove(&oldest) {
                self.bytes -= bytes.len();
            }
        }
    }
}

impl Share {
    /// The batch of the changes between two revisions, if another watch has written it: where it ends, and its lines.
    pub(super) fn between(&self, from: Revision, to: Revision) -> Option<(Revision, Bytes)> {
        self.batches.lock().batches.get(&(*self.view, from, to)).cloned()
    }

    /// Keeps a batch for the others, if there are any.
    pub(super) fn keep(&self, from: Revision, to: Revision, end: Revision, lines: &Bytes) {
        if Arc::strong_count(&self.view) > 1 && end > from {
            self.batches.lock().keep((*self.view, from, to), (end, lines.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(name: &str) -> Sight {
        let namespace = Some("default".to_owned());
        let (labels, fields) = (String::new(), String::new());
        let name = Some(name.to_owned());
        Sight { group: "", plural: "pods", namespace, name, labels, fields, metadata_alone: false }
    }

    fn share(batches: &Batches, name: &str) -> Share {
        Share { batches: batches.clone(), view: batches.lock().view(sight(name)) }
    }

    #[test]
    fn watches_of_one_view_share_and_others_do_not() {
        let batches = Batches::default();
        let [first, second, other] = ["a", "a", "b"].map(|name| share(&batches, name));
        let (one, three, nine) = (Revision(1), Revision(3), Revision(9));
        first.keep(one, nine, three, &Bytes::from_static(b"two"));
        assert_eq!(second.between(one, nine), Some((three, Bytes::from_static(b"two"))));
        assert_eq!(second.between(one, three), None, "there were more when it was made");
        assert_eq!(second.between(three, nine), None);
        assert_eq!(other.between(one, nine), None);
        other.keep(one, nine, three, &Bytes::from_static(b"two"));
        assert_eq!(other.between(one, nine), None, "nobody else could want it");
    }

    #[test]
    fn batches_and_views_are_bounded() {
        let batches = Batches::default();
        let [first, second] = ["a", "a"].map(|name| share(&batches, name));
        let large = Bytes::from(vec![0; 1 << 20]);
        for revision in 0..20 {
            first.keep(Revision(revision), Revision(20), Revision(revision + 1), &large);
        }
        assert!(batches.lock().bytes <= MOST_BYTES);
        let has = |from| second.between(Revision(from), Revision(20)).is_some();
        assert!(!has(0) && has(19));
        for revision in 100..1_000 {
            let to = Revision(revision + 1);
            first.keep(Revision(revision), to, to, &Bytes::from_static(b"x"));
        }
        assert_eq!(batches.lock().order.len(), MOST);
        for name in 0..1_000 {
            share(&batches, &format!("gone-{name}"));
        }
        assert!(batches.lock().views.len() < 64);
    }
}
