//! The world as proxies need it: watched objects in, the tables of each consumer out, only what changed made anew.
//!
//! ```text
//! let mut state = State::new(gates);
//! state.follow(consumer);
//! loop { state.take(event); ...; for update in state.refresh() { state.tables(&update.consumer) } }
//! ```
//!
//! Before everything has been listed once, absence says nothing, and [`State::refresh`] gives nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{BackendTable, Notice, Object, ObjectKey, RouteTable, Snapshot};
use plan::FeatureGates;
use plan::routes::unused_targets;

use super::consumer::Consumer;
use super::secret::Pair;
use super::touch::Touched;
pub use super::view::Turned;
use super::view::{Round, View};
use cluster::{ObjectChange, ResourceKind, WatchCache, WatchEvent, WatchSpec};

/// What is watched.
pub const KINDS: [ResourceKind; 8] = [
    ResourceKind::Service,
    ResourceKind::Slice,
    ResourceKind::Pod,
    ResourceKind::Node,
    ResourceKind::HttpRoute,
    ResourceKind::GatewayHttpRoute,
    ResourceKind::TcpRoute,
    ResourceKind::Gateway,
];

/// The watches: everything of the kinds that decide, of Pods the metadata alone. Secrets are watched one by one, see
/// [`State::secrets`].
pub fn wanted() -> Vec<WatchSpec> {
    let wanted = |kind| match kind {
        ResourceKind::Pod => WatchSpec::all(kind).metadata_only(),
        _ => WatchSpec::all(kind),
    };
    KINDS.into_iter().map(wanted).collect()
}

/// A consumer whose tables are others than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Whose.
    pub consumer: Consumer,
    /// Which.
    pub turned: Turned,
}

/// The tables of a consumer.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Where requests go.
    pub routes: Arc<RouteTable>,
    /// The endpoints of every backend that some route leads to.
    pub backends: Arc<BackendTable>,
    /// What would be chosen without those, then without those, too; empty unless the state keeps it.
    pub fallbacks: Vec<Arc<BackendTable>>,
    /// Certificates and keys, by Secret. One that is named and not here is missing or cannot be used.
    pub certificates: BTreeMap<ObjectKey, Arc<Pair>>,
}

/// The world and the tables.
#[derive(Debug)]
pub struct State {
    mirror: WatchCache,
    gates: FeatureGates,
    with_fallbacks: bool,
    views: BTreeMap<Consumer, View>,
    touched: Touched,
    pairs: BTreeMap<ObjectKey, Arc<Pair>>,
    /// What there is to say about objects, as long as they are so.
    remarks: BTreeMap<(ResourceKind, ObjectKey), Vec<Notice>>,
    /// Kinds that cannot be had for now, and why.
    troubles: BTreeMap<ResourceKind, String>,
}

impl State {
    /// A world of which nothing is known yet.
    pub fn new(gates: FeatureGates) -> Self {
        Self {
            mirror: WatchCache::default(),
            gates,
            with_fallbacks: false,
            views: BTreeMap::new(),
            touched: Touched::default(),
            pairs: BTreeMap::new(),
            remarks: BTreeMap::new(),
            troubles: BTreeMap::new(),
        }
    }

    /// Keeps lower choices of endpoints as well, for who turns to them by itself.
    #[must_use]
    pub fn with_fallbacks(self) -> Self {
        Self { with_fallbacks: true, ..self }
    }

    /// The world.
    pub fn snapshot(&self) -> &Snapshot {
        self.mirror.snapshot()
    }

    /// Whether everything has come once.
    pub fn is_listed(&self) -> bool {
        self.mirror.has_listed(&KINDS)
    }

    /// The kinds that cannot be had for now, and why.
    pub fn troubles(&self) -> &BTreeMap<ResourceKind, String> {
        &self.troubles
    }

    /// Keeps the tables of a consumer from now on; the next [`State::refresh`] makes them.
    pub fn follow(&mut self, consumer: Consumer) {
        self.views.entry(consumer.clone()).or_insert_with(|| View::new(consumer));
    }

    /// Keeps them no longer.
    pub fn forget(&mut self, consumer: &Consumer) {
        self.views.remove(consumer);
    }

    /// Takes an event of a watch in.
    pub fn take(&mut self, event: WatchEvent) {
        for change in self.mirror.read(event) {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: ObjectChange) {
        // What comes before the lists are whole is looked at once, when they are.
        let listed = self.is_listed();
        if listed {
            self.touched.note(&change, self.mirror.snapshot());
        }
        self.remark(&change);
        self.mirror.apply(change);
        self.touched.everything |= self.is_listed() && !listed;
    }

    fn remark(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Applied(object, notices) => {
                if let Some((kind, key)) = kind_and_key(object) {
                    self.set_remarks(kind, key, notices);
                }
            }
            ObjectChange::Unreadable(kind, key, notices) => self.set_remarks(*kind, key.clone(), notices),
            ObjectChange::Deleted(kind, key) => self.set_remarks(*kind, key.clone(), &[]),
            ObjectChange::Failed(kind, why) => drop(self.troubles.insert(*kind, why.clone())),
            ObjectChange::Listed(kind, seen) => {
                self.troubles.remove(kind);
                // Objects that could not be used are not in the snapshot, so nobody else notices that they went.
                self.remarks.retain(|(of, key), _| of != kind || seen.contains(key));
            }
            ObjectChange::Other(..) => {}
        }
    }

    fn set_remarks(&mut self, kind: ResourceKind, key: ObjectKey, notices: &[Notice]) {
        if notices.is_empty() {
            self.remarks.remove(&(kind, key));
        } else {
            self.remarks.insert((kind, key), notices.to_vec());
        }
    }

    /// The Secrets that listeners of the gateways name. Nobody needs others, so nobody watches them.
    pub fn secrets(&self) -> BTreeSet<ObjectKey> {
        self.views.values().flat_map(|view| view.secrets.iter().cloned()).collect()
    }

    /// Takes a Secret in, or says that there is none, or none that can be used.
    pub fn put_secret(&mut self, key: &ObjectKey, pair: Result<Pair, Notice>) {
        let before = self.pairs.remove(key);
        self.set_remarks(ResourceKind::Secret, key.clone(), &[]);
        match pair {
            Ok(pair) if before.as_deref() == Some(&pair) => {
                self.pairs.extend(before.map(|before| (key.clone(), before)));
            }
            Ok(pair) => {
                self.pairs.insert(key.clone(), Arc::new(pair));
                self.touched.secrets.insert(key.clone());
            }
            Err(notice) => {
                self.set_remarks(ResourceKind::Secret, key.clone(), &[notice]);
                if before.is_some() {
                    self.touched.secrets.insert(key.clone());
                }
            }
        }
    }

    /// Forgets Secrets that nobody names any more.
    pub fn forget_secret(&mut self, key: &ObjectKey) {
        self.pairs.remove(key);
        self.set_remarks(ResourceKind::Secret, key.clone(), &[]);
    }

    /// Makes anew what changes have touched since the last time, and says whose tables are others now.
    pub fn refresh(&mut self) -> Vec<Update> {
        if !self.is_listed() {
            return Vec::new();
        }
        let touched = std::mem::take(&mut self.touched);
        let mut round = Round {
            snapshot: self.mirror.snapshot(),
            touched: &touched,
            gates: self.gates,
            with_fallbacks: self.with_fallbacks,
            made: BTreeMap::new(),
        };
        let mut updates = Vec::new();
        for (consumer, view) in &mut self.views {
            if touched.is_empty() && !view.is_new() {
                continue;
            }
            let turned = view.refresh(&mut round);
            if turned.any() {
                updates.push(Update { consumer: consumer.clone(), turned });
            }
        }
        updates
    }

    /// The tables of a consumer, as of the last [`State::refresh`].
    pub fn tables(&self, consumer: &Consumer) -> Option<Tables> {
        let view = self.views.get(consumer)?;
        let pair = |key: &ObjectKey| Some((key.clone(), self.pairs.get(key)?.clone()));
        let certificates = view.secrets.iter().filter_map(pair).collect();
        Some(Tables {
            routes: view.routes.clone(),
            backends: view.backends.clone(),
            fallbacks: view.fallbacks.clone(),
            certificates,
        })
    }

    /// Everything that there is to say: about objects, about the consumers' routes, about policies that do nothing.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = self.remarks.values().flatten().cloned().collect();
        notices.extend(self.views.values().flat_map(View::notices));
        let namespaces: BTreeSet<_> =
            self.views.keys().map(|consumer| consumer.namespace().clone()).collect();
        for namespace in &namespaces {
            notices.extend(unused_targets(self.snapshot(), namespace));
        }
        notices.sort();
        notices.dedup();
        notices
    }
}

fn kind_and_key(object: &Object) -> Option<(ResourceKind, ObjectKey)> {
    Some(match object {
        Object::Service(o) => (ResourceKind::Service, ObjectKey::new(&o.key.namespace, &o.key.name)),
        Object::Slice(o) => (ResourceKind::Slice, o.key.clone()),
        Object::Pod(o) => (ResourceKind::Pod, o.key.clone()),
        Object::HttpRoute(o) => (ResourceKind::HttpRoute, o.key.clone()),
        Object::GatewayHttpRoute(o) => (ResourceKind::GatewayHttpRoute, o.key.clone()),
        Object::TcpRoute(o) => (ResourceKind::TcpRoute, o.key.clone()),
        Object::Gateway(o) => (ResourceKind::Gateway, o.key.clone()),
        Object::Node(_) | Object::Namespace(_) | Object::ServiceCidr(_) | Object::IpAddress(_) => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests;
