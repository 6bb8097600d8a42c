//! What outlives tables: backends, endpoints with their connections and health, and counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use model::backend::{Backend, BackendEndpoint, BackendTable};
use model::route::BackendId;

use crate::counts::RouteCounts;
use crate::peer::{Moment, Peer, Wire};
use crate::settings::Settings;
use crate::slot::Slot;

/// What outlives tables. Locked when tables come and when metrics are read, never for a request.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: BTreeMap<BackendId, Arc<Slot>>,
    peers: BTreeMap<(SocketAddr, Wire), Weak<Peer>>,
    routes: BTreeMap<Arc<str>, Arc<Account>>,
}

/// A rule's name and counters.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) label: Arc<str>,
    pub(crate) counts: RouteCounts,
}

impl Registry {
    /// The backend of this identity, with or without endpoints.
    pub(crate) fn slot(&mut self, id: &BackendId) -> Arc<Slot> {
        if let Some(slot) = self.slots.get(id) {
            return slot.clone();
        }
        let slot = Arc::new(Slot::new(id));
        self.slots.insert(id.clone(), slot.clone());
        slot
    }

    /// The counters of the rule with this name.
    pub(crate) fn account(&mut self, label: &str) -> Arc<Account> {
        if let Some(account) = self.routes.get(label) {
            return account.clone();
        }
        let label: Arc<str> = label.into();
        let account = Arc::new(Account { label: label.clone(), counts: RouteCounts::default() });
        self.routes.insert(label, account.clone());
        account
    }

    /// Gives every backend the endpoints that it has now.
    pub(crate) fn update(&mut self, backends: &BackendTable, now: Moment, settings: &Settings) {
        let peers = &mut self.peers;
        let mut give = |slot: &Slot, backend: &Arc<Backend>| {
            slot.update(backend, now, &settings.health, |endpoint, wire, born| {
                peer(peers, endpoint, wire, born)
            });
        };
        // Both are in the order of identities: one walk, since nearly all are as they were.
        let mut known = self.slots.iter().peekable();
        let mut fresh = Vec::new();
        for backend in backends.backends() {
            while known.next_if(|(id, _)| **id < backend.id).is_some() {}
            match known.next_if(|(id, _)| **id == backend.id) {
                Some((_, slot)) => give(slot, backend),
                None => fresh.push(backend),
            }
        }
        for backend in fresh {
            let slot = Arc::new(Slot::new(&backend.id));
            give(&slot, backend);
            self.slots.insert(backend.id.clone(), slot);
        }
    }

    /// Forgets what is in no table and held by nobody.
    pub(crate) fn prune(&mut self, backends: &BackendTable) {
        let mut there = backends.backends().peekable();
        self.slots.retain(|id, slot| {
            while there.next_if(|backend| backend.id < *id).is_some() {}
            let is_there = there.next_if(|backend| backend.id == *id).is_some();
            if !is_there {
                slot.clear();
            }
            is_there || Arc::strong_count(slot) > 1
        });
        self.routes.retain(|_, account| Arc::strong_count(account) > 1);
        self.peers.retain(|_, peer| peer.strong_count() > 0);
    }

    /// Closes connections that nobody has used for a while.
    pub(crate) fn sweep(&self, now: Instant, settings: &Settings) {
        for peer in self.peers.values().filter_map(Weak::upgrade) {
            peer.pool.sweep(now, settings.timeouts.keep);
        }
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.slots.values()
    }

    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.routes.values()
    }
}

fn peer(
    peers: &mut BTreeMap<(SocketAddr, Wire), Weak<Peer>>,
    endpoint: &BackendEndpoint,
    wire: Wire,
    born: Option<Moment>,
) -> Arc<Peer> {
    let key = (endpoint.address, wire);
    if let Some(known) = peers.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    let made = Arc::new(Peer::new(endpoint.address, wire, born));
    peers.insert(key, Arc::downgrade(&made));
    made
}
