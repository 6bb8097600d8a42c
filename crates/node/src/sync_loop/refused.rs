//! Services that the kernel refused: kept out of the other Services' syncs, and retried alone with backoff.
//!
//! ```text
//! partial sync: refused -> bisected (`kernel`) -> the Service keeps its old rules
//! full sync:    refused Services keep their old rules -> load -> refused: the Services that the backend names are
//!               left out -> load again -> each of them alone
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dataplane::backend::{BackendError, NodeBackend, Reconciled};
use model::{Frontend, ServiceKey};
use plan::forward::{Forwarder, ServiceDelta};

use crate::sync_schedule::backoff;

/// Most Services that one full sync leaves out after the kernel refused the table. Each costs a read of the tables.
const MAX_LEFT_OUT: usize = 256;

/// The refused Services, and when each is retried.
pub(super) struct RefusedServices {
    by_key: BTreeMap<ServiceKey, Retry>,
    max_backoff: Duration,
}

struct Retry {
    failures: u32,
    at: Instant,
}

impl RefusedServices {
    pub(super) fn new(max_backoff: Duration) -> Self {
        Self { by_key: BTreeMap::new(), max_backoff }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_key.keys()
    }

    pub(super) fn contains(&self, key: &ServiceKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Adds a Service, or puts off its next retry.
    pub(super) fn insert(&mut self, key: ServiceKey, now: Instant) {
        let retry = self.by_key.entry(key).or_insert(Retry { failures: 0, at: now });
        retry.failures = retry.failures.saturating_add(1);
        retry.at = now + backoff(retry.failures, self.max_backoff);
    }

    pub(super) fn remove(&mut self, key: &ServiceKey) {
        self.by_key.remove(key);
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&ServiceKey) -> bool) {
        self.by_key.retain(|key, _| keep(key));
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.by_key.values().map(|retry| retry.at).min()
    }

    /// The Service whose retry is due longest.
    pub(super) fn due(&self, now: Instant) -> Option<ServiceKey> {
        let (key, retry) = self.by_key.iter().min_by_key(|(_, retry)| retry.at)?;
        (retry.at <= now).then(|| key.clone())
    }

    pub(super) fn is_due(&self, key: &ServiceKey, now: Instant) -> bool {
        self.by_key.get(key).is_none_or(|retry| retry.at <= now)
    }
}

/// Changes that a full sync leaves out of the table, so that the kernel accepts the rest.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Frontends before this sync, of Services that changed.
    previous: BTreeMap<ServiceKey, Vec<Frontend>>,
    pub(super) deltas: Vec<ServiceDelta>,
}

impl LeftOut {
    /// Leaves the refused Services as they were before the changes `previous`.
    pub(super) fn new(
        forwarder: &mut Forwarder,
        previous: BTreeMap<ServiceKey, Vec<Frontend>>,
        refused: &RefusedServices,
    ) -> Self {
        let keys: Vec<ServiceKey> = previous.keys().filter(|key| refused.contains(key)).cloned().collect();
        let mut left_out = Self { previous, deltas: Vec::new() };
        for key in &keys {
            left_out.revert(forwarder, key);
        }
        left_out
    }

    /// Reverts a Service to its frontends before this sync, and removes it if it has been reverted already. Returns
    /// whether that changed the table.
    fn revert(&mut self, forwarder: &mut Forwarder, key: &ServiceKey) -> bool {
        let table = forwarder.table();
        let new = table.frontends(key).to_vec();
        if new.is_empty() {
            return false;
        }
        // An address that another Service owns by now stays with that Service.
        let is_free = |frontend: &Frontend| {
            table.frontend(&frontend.address).is_none_or(|holder| holder.port.service == *key)
        };
        let previous = self.previous.get(key).into_iter().flatten();
        let old = previous.filter(|frontend| is_free(frontend)).cloned().collect();
        match self.deltas.iter_mut().find(|delta| delta.service == *key) {
            Some(delta) => delta.old = Vec::new(),
            None => self.deltas.push(ServiceDelta { service: key.clone(), old, new }),
        }
        let delta = self.deltas.iter().find(|delta| delta.service == *key);
        delta.into_iter().for_each(|delta| forwarder.undo(delta));
        true
    }

    /// After a failed sync: all Services as before it, so that the next sync plans the same changes again. Returns them.
    pub(super) fn undo_all(self, forwarder: &mut Forwarder) -> impl Iterator<Item = ServiceKey> {
        for (service, old) in &self.previous {
            forwarder.undo(&ServiceDelta { service: service.clone(), old: old.clone(), new: Vec::new() });
        }
        self.previous.into_keys()
    }

    /// Loads the table. While the kernel refuses it, leaves out the Services that the backend names; if that does not
    /// help, the table is as before.
    pub(super) fn load(
        &mut self,
        backend: &mut dyn NodeBackend,
        forwarder: &mut Forwarder,
    ) -> Result<Reconciled, BackendError> {
        let known = self.deltas.len();
        loop {
            let error = match backend.load(forwarder.table()) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let services: BTreeSet<ServiceKey> = error.services().clone();
            tracing::warn!(%error, services = services.len(), "kernel refused the rules of Services; leaving them out");
            // Every one is left out, not only the first.
            let left_out = services.iter().filter(|key| self.revert(forwarder, key)).count();
            if left_out == 0 || self.deltas.len() > known + MAX_LEFT_OUT {
                self.deltas.drain(known..).for_each(|delta| forwarder.redo(&delta));
                return Err(error);
            }
        }
    }
}
