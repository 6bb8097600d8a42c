//! What outlives tables: backends, endpoints with their connections and health, and counters.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use model::backend::{Backend, BackendEndpoint, BackendTable};
use model::route::{BackendId, HttpRule};

use crate::counts::RouteCounts;
use crate::peer::{Moment, Peer, Wire};
use crate::rules::Rule;
use crate::settings::{Readable, Settings};
use crate::slot::Slot;

/// What outlives tables. Locked when tables come and when metrics are read, never for a request.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: BTreeMap<BackendId, Arc<Slot>>,
    peers: BTreeMap<(SocketAddr, Wire), Weak<Peer>>,
    routes: BTreeMap<Arc<str>, Arc<Account>>,
    /// Rules made ready, each with what it was made of: tables that differ in one rule share the others.
    rules: ByAddress<(Arc<HttpRule>, Arc<Rule>)>,
}

/// What belongs to a value of a table, by the address of that value. Whoever has such a map holds the values, so
/// addresses are not used twice.
pub(crate) type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_usize(&mut self, address: usize) {
        self.0 = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of) as usize
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

    /// A rule made ready: the same as before, if it is the same.
    pub(crate) fn rule(&mut self, source: &Arc<HttpRule>, readable: &Readable) -> Arc<Rule> {
        if let Some((_, known)) = self.rules.get(&address(source)) {
            return known.clone();
        }
        let rule = Arc::new(Rule::new(source, self, readable));
        self.rules.insert(address(source), (source.clone(), rule.clone()));
        rule
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
        // Before what rules hold.
        self.rules.retain(|_, (_, rule)| Arc::strong_count(rule) > 1);
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
