//! Slices that move between two watches in every order, and the selectors of the watches.

use std::time::Duration;

use SliceSource::{Own, Shared};
use model::{AddressType, Family, Labels, SliceContent};

use super::*;

/// A node that saw the lists of both watches.
struct Node {
    merged: MergedSlices,
    now: Instant,
    /// By name, the version that the node has.
    slices: BTreeMap<String, String>,
    deletions: usize,
}

fn slice(name: &str, version: u64) -> WatchedObject {
    let text = format!(r#"{{"metadata":{{"namespace":"d","name":"{name}","resourceVersion":"{version}"}}}}"#);
    serde_json::from_str(&text).unwrap()
}

impl Node {
    fn new(shared: &[&str], own: &[&str]) -> Self {
        let now = Instant::now();
        let mut node = Self { merged: MergedSlices::default(), now, slices: BTreeMap::new(), deletions: 0 };
        for (source, names) in [(Shared, shared), (Own, own)] {
            node.list(source, names);
        }
        node
    }

    fn list(&mut self, source: SliceSource, names: &[&str]) {
        self.see(source, InformerEvent::ListStarted(ObjectKind::Slice));
        names.iter().for_each(|name| self.add(source, name, 1));
        self.see(source, InformerEvent::ListCompleted(ObjectKind::Slice));
    }

    fn see(&mut self, source: SliceSource, event: InformerEvent) {
        let events = self.merged.observe(source, event, self.now);
        self.apply(events);
    }

    fn apply(&mut self, events: Vec<InformerEvent>) {
        for event in events {
            match event {
                InformerEvent::Applied(_, object) => {
                    self.slices.insert(object.name().to_owned(), object.resource_version().to_owned());
                }
                InformerEvent::Deleted(_, object) => {
                    self.deletions += 1;
                    self.slices.remove(object.name());
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, source: SliceSource, name: &str, version: u64) {
        self.see(source, InformerEvent::Applied(ObjectKind::Slice, slice(name, version)));
    }

    fn delete(&mut self, source: SliceSource, name: &str, version: u64) {
        self.see(source, InformerEvent::Deleted(ObjectKind::Slice, slice(name, version)));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let events = self.merged.gone(self.now);
        self.apply(events);
    }

    fn has(&self) -> Vec<String> {
        self.slices.iter().map(|(name, version)| format!("{name}@{version}")).collect()
    }
}

#[test]
fn the_list_is_complete_when_both_watches_have_listed() {
    let mut merged = MergedSlices::default();
    let now = Instant::now();
    let mut see = |source, event: InformerEvent| merged.observe(source, event, now).len();
    assert_eq!(see(Shared, InformerEvent::ListStarted(ObjectKind::Slice)), 1);
    assert_eq!(see(Own, InformerEvent::ListStarted(ObjectKind::Slice)), 0);
    assert_eq!(see(Own, InformerEvent::Applied(ObjectKind::Slice, slice("a", 1))), 1);
    assert_eq!(see(Own, InformerEvent::ListCompleted(ObjectKind::Slice)), 0);
    assert_eq!(see(Shared, InformerEvent::ListCompleted(ObjectKind::Slice)), 1);
}

/// Conflict 2: a changed label deletes the slice in one watch.
#[test]
fn a_slice_whose_label_changes_to_the_own_zone_is_never_gone() {
    let mut added_first = Node::new(&["s", "reserve"], &[]);
    added_first.add(Own, "s", 2);
    added_first.delete(Shared, "s", 2);
    let mut deleted_first = Node::new(&["s", "reserve"], &[]);
    deleted_first.delete(Shared, "s", 2);
    assert_eq!(deleted_first.has(), ["reserve@1", "s@1"]);
    deleted_first.pass(MOVE_GRACE / 2);
    deleted_first.add(Own, "s", 2);
    for mut node in [added_first, deleted_first] {
        node.pass(MOVE_GRACE * 2);
        assert_eq!((node.has(), node.deletions), (vec!["reserve@1".to_owned(), "s@2".to_owned()], 0));
    }
}

#[test]
fn a_slice_that_neither_watch_has_is_gone_after_a_moment() {
    let mut node = Node::new(&["s"], &["o"]);
    node.delete(Shared, "s", 2);
    node.delete(Own, "o", 3);
    assert_eq!(node.merged.next_at(), Some(node.now + MOVE_GRACE));
    node.pass(MOVE_GRACE);
    assert_eq!((node.has(), node.deletions), (Vec::new(), 2));
    assert_eq!(node.merged.next_at(), None);
}

#[test]
fn an_older_version_of_a_slow_watch_does_not_replace_a_newer_one() {
    let mut node = Node::new(&["s"], &[]);
    // For the own zone at 2, without a zone again at 3; the own watch lags.
    node.delete(Shared, "s", 2);
    node.add(Shared, "s", 3);
    node.add(Own, "s", 2);
    assert_eq!(node.has(), ["s@3"]);
    node.delete(Own, "s", 3);
    node.pass(MOVE_GRACE);
    assert_eq!((node.has(), node.deletions), (vec!["s@3".to_owned()], 0));
}

#[test]
fn a_list_after_a_gap_deletes_only_what_its_watch_had() {
    let mut node = Node::new(&["s", "t"], &["o"]);
    node.list(Shared, &["t"]);
    node.pass(MOVE_GRACE);
    assert_eq!(node.has(), ["o@1", "t@1"]);
    // While a list is in progress, nothing is gone.
    node.see(Own, InformerEvent::ListStarted(ObjectKind::Slice));
    node.delete(Shared, "t", 4);
    node.pass(MOVE_GRACE);
    assert_eq!(node.has(), ["o@1", "t@1"]);
    node.see(Own, InformerEvent::ListCompleted(ObjectKind::Slice));
    node.pass(MOVE_GRACE);
    assert!(node.has().is_empty());
}

#[test]
fn the_slices_of_the_old_zone_stay_until_those_of_the_new_one_are_listed() {
    let mut node = Node::new(&["reserve"], &["a1", "a2"]);
    node.merged.restart(Own);
    node.pass(MOVE_GRACE);
    assert_eq!(node.has(), ["a1@1", "a2@1", "reserve@1"]);
    node.list(Own, &["b1"]);
    node.pass(MOVE_GRACE);
    assert_eq!(node.has(), ["b1@1", "reserve@1"]);
    // Without a zone, the shared watch lists all.
    node.merged.restart(Shared);
    node.merged.end_own();
    node.list(Shared, &["reserve", "a1", "b1"]);
    node.pass(MOVE_GRACE);
    assert_eq!(node.has(), ["a1@1", "b1@1", "reserve@1"]);
}

/// The API server's selectors and `SliceView::sees` agree, and no slice is in both watches.
#[test]
fn the_selectors_of_the_watches_match_the_view() {
    let labels = |pairs: &[(&'static str, &'static str)]| pairs.iter().copied().collect::<Labels>();
    let zone = model::annotation::FOR_ZONE;
    for (view, wanted) in [(SliceView::All, [1, 1, 1]), (SliceView::Zone("a".into()), [1, 1, 0])] {
        for (pairs, wanted) in [&[][..], &[(zone, "a")], &[(zone, "b")]].into_iter().zip(wanted) {
            let labels = labels(pairs);
            let holds = |requirement: &str| match requirement.split_once('=') {
                Some((key, value)) => labels.value(key).is_some_and(|found| *found == *value),
                None => !labels.has(requirement.trim_start_matches('!')),
            };
            let matches = |selector: &String| selector.split(',').all(holds);
            let matching = slice_selectors(&view).iter().filter(|s| matches(s)).count();
            let content = SliceContent {
                address_type: AddressType::Ip(Family::V4),
                labels: labels.clone(),
                annotations: Labels::EMPTY,
                ports: [].into(),
                endpoints: Vec::new(),
            };
            assert_eq!(matching, wanted, "{view:?} {pairs:?}");
            assert_eq!(view.sees(&content), wanted == 1);
        }
    }
}
