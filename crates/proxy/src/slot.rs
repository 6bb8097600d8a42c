//! A backend as rules hold it: its endpoints may change, the rules that lead to it need not know.

use std::sync::{Arc, PoisonError, RwLock};

use model::backend::{Backend, BackendEndpoint};
use model::route::{AppProtocol, BackendId};

use crate::balance::{Choice, Cluster};
use crate::counts::BackendCounts;
use crate::peer::{Moment, Peer, Wire};
use crate::settings::Health;

/// A backend, whatever its endpoints are just now.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its name in logs and metrics.
    pub(crate) label: Arc<str>,
    pub(crate) counts: BackendCounts,
    now: RwLock<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// What it was made of, to see whether that changed.
    source: Option<Arc<Backend>>,
    cluster: Arc<Cluster>,
}

impl Slot {
    pub(crate) fn new(id: &BackendId) -> Self {
        Self { label: id.to_string().into(), counts: BackendCounts::default(), now: RwLock::default() }
    }

    pub(crate) fn cluster(&self) -> Arc<Cluster> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).cluster.clone()
    }

    /// Takes other endpoints, if they are others. `peer` knows those that are there already.
    pub(crate) fn update(
        &self,
        backend: &Arc<Backend>,
        now: Moment,
        health: &Health,
        mut peer: impl FnMut(&BackendEndpoint, Wire, Option<Moment>) -> Arc<Peer>,
    ) {
        let mut held = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if held.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, backend)) {
            return;
        }
        // The first endpoints have nobody to take their share in the meantime.
        let born = (!held.cluster.choices().is_empty()).then_some(now);
        let wire = wire(backend.protocol);
        let choice = |endpoint: &BackendEndpoint| Choice {
            peer: peer(endpoint, wire, born),
            weight: endpoint.weight,
            locality: endpoint.locality,
        };
        let cluster = Cluster::new(backend.endpoints.iter().map(choice).collect(), health);
        *held = Now { source: Some(backend.clone()), cluster: Arc::new(cluster) };
    }

    /// There is no such backend any more.
    pub(crate) fn clear(&self) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Now::default();
    }
}

fn wire(protocol: AppProtocol) -> Wire {
    match protocol {
        AppProtocol::Http => Wire::Http1,
        AppProtocol::Http2 | AppProtocol::Grpc => Wire::Http2,
        AppProtocol::Tcp => Wire::Bytes,
    }
}
