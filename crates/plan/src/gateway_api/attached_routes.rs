//! The number of routes of each listener, kept up to date route by route: one route among ten thousand costs one route.

use std::collections::{BTreeMap, BTreeSet};

use model::gateway_api::{ParentKind, Route, RouteKind};
use model::{ObjectKey, Snapshot};

use super::attachment::attached_listeners;
use super::listeners::EffectiveGateway;
use super::status::supported;

type OwnerKey = (ParentKind, ObjectKey);
type RouteKey = (RouteKind, ObjectKey);

/// The routes of every Gateway and ListenerSet that was counted. An owner that is not known is counted anew.
#[derive(Debug, Default)]
pub struct AttachedRoutes {
    owners: BTreeMap<OwnerKey, OwnerRoutes>,
}

#[derive(Debug, Default)]
struct OwnerRoutes {
    /// The listeners of each route, by their place in the owner.
    listeners: BTreeMap<RouteKey, BTreeSet<usize>>,
    /// By the listener's place in the owner.
    counts: BTreeMap<usize, usize>,
    /// Routes that changed since they were counted.
    stale: BTreeSet<RouteKey>,
}

impl AttachedRoutes {
    /// The listeners of an owner changed, or whom they allow.
    pub(crate) fn forget(&mut self, kind: ParentKind, key: &ObjectKey) {
        self.owners.remove(&(kind, key.clone()));
    }

    pub(crate) fn forget_all(&mut self) {
        self.owners.clear();
    }

    /// A route changed; `parents` has those before and after the change.
    pub(crate) fn route_changed(&mut self, route: &Route) {
        for parent in &route.parents {
            if let Some(owner) = self.owners.get_mut(&(parent.kind(), parent.object.key())) {
                owner.stale.insert((route.kind, route.identity.key.clone()));
            }
        }
    }

    /// The number of routes of each listener of a Gateway or of one of its ListenerSets, by its place in that object.
    pub(super) fn counts(
        &mut self,
        snapshot: &Snapshot,
        gateway: &EffectiveGateway<'_>,
        set: Option<&ObjectKey>,
    ) -> &BTreeMap<usize, usize> {
        let (kind, key) = match set {
            Some(set) => (ParentKind::ListenerSet, set),
            None => (ParentKind::Gateway, &gateway.gateway.identity.key),
        };
        let owner = self.owners.entry((kind, key.clone())).or_insert_with(|| OwnerRoutes {
            stale: snapshot.routes_of_parent(kind, key).map(|o| (o.kind, o.identity.key.clone())).collect(),
            ..OwnerRoutes::default()
        });
        let places: BTreeMap<usize, usize> =
            gateway.listeners_of(set).enumerate().map(|(place, (at, _))| (at, place)).collect();
        for id in std::mem::take(&mut owner.stale) {
            let route = snapshot.route(id.0, &id.1);
            let now = route.map(|route| attached(snapshot, gateway, (kind, key), route)).unwrap_or_default();
            let now: BTreeSet<usize> = now.iter().filter_map(|at| places.get(at).copied()).collect();
            owner.put(id, now);
        }
        &owner.counts
    }
}

impl OwnerRoutes {
    fn put(&mut self, id: RouteKey, now: BTreeSet<usize>) {
        for place in self.listeners.remove(&id).unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&place) {
                *count = count.saturating_sub(1);
            }
        }
        for place in &now {
            *self.counts.entry(*place).or_default() += 1;
        }
        if !now.is_empty() {
            self.listeners.insert(id, now);
        }
    }
}

/// The listeners that a route is attached to, as indexes.
fn attached(
    snapshot: &Snapshot,
    gateway: &EffectiveGateway<'_>,
    (kind, key): (ParentKind, &ObjectKey),
    route: &Route,
) -> BTreeSet<usize> {
    if supported(route).is_err() {
        return BTreeSet::new();
    }
    let set = (kind == ParentKind::ListenerSet).then_some(key);
    let own = route.parents.iter().filter(|parent| parent.kind() == kind && parent.object.key() == *key);
    own.filter_map(|parent| attached_listeners(snapshot, gateway, set, route, parent).ok())
        .flatten()
        .collect()
}
