//! Where the requests of each backend go, seen from one zone and node: weighted endpoints.
//!
//! Hints, Require and Spill have been obeyed when endpoints stand here. Whoever carries requests may prefer the
//! less loaded among them and may leave out one that fails, and never takes another one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::locality::Locality;
use crate::name::Name;
use crate::route::{AppProtocol, BackendId};

/// The backends of one consumer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendTable {
    /// Where the consumer is.
    pub consumer: Place,
    backends: BTreeMap<BackendId, Arc<Backend>>,
}

/// Where a consumer runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its node.
    pub node: Name,
    /// Its zone.
    pub zone: Option<Name>,
}

/// One backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// Which.
    pub id: BackendId,
    /// What its endpoints speak.
    pub protocol: AppProtocol,
    /// In the order of their addresses, each once.
    pub endpoints: Box<[BackendEndpoint]>,
    /// How they were chosen, as `same-zone`; empty where there is none to choose from.
    pub mode: &'static str,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendEndpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share relative to the others, above zero.
    pub weight: f32,
    /// Its zone.
    pub zone: Option<Name>,
    /// How far it is from the consumer: for the counts of what stays and what leaves.
    pub locality: Locality,
}

impl BackendTable {
    /// A table without backends.
    pub fn new(consumer: Place) -> Self {
        Self { consumer, backends: BTreeMap::new() }
    }

    /// Puts a backend in, or in the place of the one with the same identity.
    pub fn put(&mut self, backend: Arc<Backend>) {
        self.backends.insert(backend.id.clone(), backend);
    }

    /// Takes a backend out.
    pub fn remove(&mut self, id: &BackendId) {
        self.backends.remove(id);
    }

    /// A backend.
    pub fn backend(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        self.backends.get(id)
    }

    /// Every backend, by identity.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends.values()
    }
}

impl Backend {
    /// Each endpoint with its share; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (&BackendEndpoint, f64)> {
        let total: f64 = self.endpoints.iter().map(|e| f64::from(e.weight)).sum();
        self.endpoints.iter().map(move |e| (e, f64::from(e.weight) / total))
    }
}
