//! The watches of a node proxy. With `--watch-own-zone` EndpointSlices take two: those of its zone, and those without one
//! (KEP-2030). They start when the zone of the Node is known, and follow it.
//!
//! ```text
//! Services, Node, ServiceCIDRs ----------------------------------------------\
//! slices without a zone --\                                                   +-> events, as of one watch per kind
//! slices of the own zone --+-> MergedSlices: a slice is gone when neither has it --/
//! ```
//!
//! A label that is set or dropped moves a slice from one watch to the other: deleted there, added here, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec, WatchedObject};
use kube::Client;
use model::random::Random;
use plan::subsetting::{MOVE_GRACE, SliceView};

/// Headless Services are not proxied (semantics D1).
const NOT_HEADLESS: &str = "!service.kubernetes.io/headless";

/// One of the two watches of slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceSource {
    /// Slices without a zone; of a node without a zone, all.
    Shared,
    /// Slices of the own zone.
    Own,
}

type Key = (String, String);

/// What is known of a slice.
#[derive(Debug, Default)]
struct KnownSlice {
    /// Of the last version that was passed on.
    version: u64,
    /// By source, whether the watch has it.
    held: [bool; 2],
}

/// The events of two watches of slices as those of one.
#[derive(Debug, Default)]
pub struct MergedSlices {
    slices: BTreeMap<Key, KnownSlice>,
    /// By source, the list in progress.
    listing: [Option<BTreeSet<Key>>; 2],
    listed: [bool; 2],
    has_started: bool,
    is_complete: bool,
    /// Slices that neither watch has, and when they count as gone.
    leaving: BTreeMap<Key, Instant>,
}

impl MergedSlices {
    /// The events to pass on for one of a watch.
    pub fn observe(&mut self, source: SliceSource, event: InformerEvent, now: Instant) -> Vec<InformerEvent> {
        let at = source as usize;
        match event {
            InformerEvent::ListStarted(kind) => {
                self.listing[at] = Some(BTreeSet::new());
                match std::mem::replace(&mut self.has_started, true) {
                    true => Vec::new(),
                    false => vec![InformerEvent::ListStarted(kind)],
                }
            }
            InformerEvent::Applied(kind, object) => {
                if self.apply(at, &object) {
                    vec![InformerEvent::Applied(kind, object)]
                } else {
                    Vec::new()
                }
            }
            InformerEvent::Deleted(_, object) => {
                self.release(at, key(&object), now);
                Vec::new()
            }
            InformerEvent::ListCompleted(kind) => {
                let seen = self.listing[at].take().unwrap_or_default();
                let held = self.slices.iter().filter(|(_, slice)| slice.held[at]);
                let gone = held.map(|(key, _)| key).filter(|key| !seen.contains(*key)).cloned();
                for key in gone.collect::<Vec<_>>() {
                    self.release(at, key, now);
                }
                self.listed[at] = true;
                let is_first = self.listed == [true, true] && !std::mem::replace(&mut self.is_complete, true);
                if is_first { vec![InformerEvent::ListCompleted(kind)] } else { Vec::new() }
            }
            failed @ InformerEvent::Failed(..) => vec![failed],
        }
    }

    /// Returns whether to pass it on: the other watch may have a newer version.
    fn apply(&mut self, at: usize, object: &WatchedObject) -> bool {
        let key = key(object);
        if let Some(listing) = &mut self.listing[at] {
            listing.insert(key.clone());
        }
        self.leaving.remove(&key);
        let version: u64 = object.resource_version().parse().unwrap_or(0);
        let slice = self.slices.entry(key).or_default();
        slice.held[at] = true;
        if slice.held[1 - at] && version < slice.version {
            return false;
        }
        slice.version = version;
        true
    }

    /// A watch does not have a slice any more.
    fn release(&mut self, at: usize, key: Key, now: Instant) {
        let Some(slice) = self.slices.get_mut(&key) else { return };
        slice.held[at] = false;
        if slice.held == [false, false] {
            self.leaving.insert(key, now + MOVE_GRACE);
        }
    }

    /// Slices that neither watch has had for a while. Before a list is complete, absence means nothing.
    pub fn gone(&mut self, now: Instant) -> Vec<InformerEvent> {
        if self.is_listing() {
            return Vec::new();
        }
        let due: Vec<Key> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in &due {
            self.leaving.remove(key);
            self.slices.remove(key);
        }
        let deleted =
            |key: &Key| InformerEvent::Deleted(ObjectKind::Slice, WatchedObject::named(&key.0, &key.1));
        due.iter().map(deleted).collect()
    }

    /// When [`MergedSlices::gone`] has something next.
    pub fn next_at(&self) -> Option<Instant> {
        self.leaving.values().min().copied().filter(|_| !self.is_listing())
    }

    fn is_listing(&self) -> bool {
        self.listing.iter().any(Option::is_some) || self.listed != [true, true]
    }

    /// A new watch lists: what it lacks is gone then.
    fn restart(&mut self, source: SliceSource) {
        self.listed[source as usize] = false;
        self.listing[source as usize] = None;
    }

    /// The own watch ended, because the node has no zone: the shared one lists everything.
    fn end_own(&mut self) {
        self.listing[SliceSource::Own as usize] = None;
        self.listed[SliceSource::Own as usize] = true;
        for slice in self.slices.values_mut().filter(|slice| slice.held[SliceSource::Own as usize]) {
            slice.held = [true, false];
        }
    }
}

fn key(object: &WatchedObject) -> Key {
    (object.namespace().to_owned(), object.name().to_owned())
}

/// All watches of a node proxy.
pub struct NodeWatches {
    client: Client,
    random: Random,
    protobuf: bool,
    /// All kinds; with `--watch-own-zone` all but slices.
    others: Informer,
    own_zone: Option<ZoneWatches>,
}

/// The watches of `--watch-own-zone`.
#[derive(Default)]
struct ZoneWatches {
    view: Option<SliceView>,
    shared: Option<Informer>,
    own: Option<Informer>,
    merged: MergedSlices,
}

/// An event, and the watch of slices by zone that it comes from.
pub type SourcedEvent = (Option<SliceSource>, InformerEvent);

impl NodeWatches {
    /// `protobuf`: whether objects may come in protobuf, which takes less time to parse. A node writes none of them.
    pub fn start(
        client: &Client,
        mut random: Random,
        node: &str,
        watches_own_zone: bool,
        protobuf: bool,
    ) -> Self {
        let specs = specs(node, watches_own_zone).into_iter().map(|spec| encoded(spec, protobuf));
        let others = Informer::start(client, random.split(), specs);
        let own_zone = watches_own_zone.then(ZoneWatches::default);
        Self { client: client.clone(), random, protobuf, others, own_zone }
    }

    /// The slices that are watched; `None` while that is not known.
    pub fn view(&self) -> Option<&SliceView> {
        match &self.own_zone {
            Some(zone) => zone.view.as_ref(),
            None => Some(&SliceView::All),
        }
    }

    /// Watches the slices of this view from now on.
    pub fn set_view(&mut self, view: SliceView) {
        let Some(zone) = &mut self.own_zone else { return };
        if zone.view.as_ref() == Some(&view) {
            return;
        }
        tracing::info!(?view, "watching EndpointSlices");
        let is_zone = matches!(view, SliceView::Zone(_));
        let mut watch =
            |spec| Informer::start(&self.client, self.random.split(), [encoded(spec, self.protobuf)]);
        let mut specs = slice_specs(&view).into_iter();
        let had_zone = matches!(zone.view, Some(SliceView::Zone(_)));
        if !(is_zone && had_zone) {
            zone.merged.restart(SliceSource::Shared);
            zone.shared = specs.next().map(&mut watch);
        } else {
            drop(specs.next());
        }
        zone.own = specs.next().map(&mut watch);
        if is_zone {
            zone.merged.restart(SliceSource::Own);
        } else {
            zone.merged.end_own();
        }
        zone.view = Some(view);
    }

    /// Waits for the next event. Safe to cancel.
    pub async fn next(&mut self) -> SourcedEvent {
        let (shared, own) = match &mut self.own_zone {
            Some(zone) => (&mut zone.shared, &mut zone.own),
            None => return (None, self.others.next().await),
        };
        tokio::select! {
            biased;
            event = self.others.next() => (None, event),
            event = next_of(shared) => (Some(SliceSource::Shared), event),
            event = next_of(own) => (Some(SliceSource::Own), event),
        }
    }

    /// The next event if one is queued.
    pub fn ready(&mut self) -> Option<SourcedEvent> {
        if let Some(event) = self.others.ready() {
            return Some((None, event));
        }
        let zone = self.own_zone.as_mut()?;
        let shared = zone.shared.as_mut().and_then(Informer::ready).map(|event| (SliceSource::Shared, event));
        let event = shared.or_else(|| zone.own.as_mut()?.ready().map(|event| (SliceSource::Own, event)));
        event.map(|(source, event)| (Some(source), event))
    }

    /// The events to apply for one that came.
    pub fn read(&mut self, (source, event): SourcedEvent, now: Instant) -> Vec<InformerEvent> {
        match (&mut self.own_zone, source) {
            (Some(zone), Some(source)) => zone.merged.observe(source, event, now),
            _ => vec![event],
        }
    }

    /// Slices that are in no watch any more.
    pub fn gone(&mut self, now: Instant) -> Vec<InformerEvent> {
        self.own_zone.as_mut().map(|zone| zone.merged.gone(now)).unwrap_or_default()
    }

    /// When [`NodeWatches::gone`] has something next.
    pub fn next_at(&self) -> Option<Instant> {
        self.own_zone.as_ref()?.merged.next_at()
    }
}

async fn next_of(informer: &mut Option<Informer>) -> InformerEvent {
    match informer {
        Some(informer) => informer.next().await,
        None => std::future::pending().await,
    }
}

fn encoded(spec: WatchSpec, protobuf: bool) -> WatchSpec {
    if protobuf { spec.protobuf() } else { spec }
}

/// Semantics D1: not what another proxy serves, not headless, and of Nodes our own.
fn specs(node: &str, watches_own_zone: bool) -> Vec<WatchSpec> {
    let mut specs = vec![
        WatchSpec::all(ObjectKind::Service).labels("!service.kubernetes.io/service-proxy-name"),
        WatchSpec::all(ObjectKind::Node).fields(&format!("metadata.name={node}")),
        WatchSpec::all(ObjectKind::ServiceCidr),
    ];
    if !watches_own_zone {
        specs.extend(slice_specs(&SliceView::All));
    }
    specs
}

/// The watches of slices, the shared one first.
fn slice_specs(view: &SliceView) -> Vec<WatchSpec> {
    slice_selectors(view).iter().map(|labels| WatchSpec::all(ObjectKind::Slice).labels(labels)).collect()
}

fn slice_selectors(view: &SliceView) -> Vec<String> {
    match view.selectors() {
        none if none.is_empty() => vec![NOT_HEADLESS.to_owned()],
        selectors => selectors.iter().map(|selector| format!("{NOT_HEADLESS},{selector}")).collect(),
    }
}

#[cfg(test)]
mod tests;
