//! Applies changes to the backend. If the kernel refuses one, bisects the Services to find those that it refuses, and
//! applies the others.

#[cfg(test)]
mod tests;

use dataplane::backend::{BackendError, FrontendChange, NodeBackend};
use model::ServiceKey;
use plan::forward::{Forwarder, ServiceDelta};

/// A Service that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedService {
    pub service: ServiceKey,
    pub reason: String,
}

/// Applies the deltas and returns the Services that the kernel refused; these keep their old frontends.
pub fn apply_deltas(
    backend: &mut dyn NodeBackend,
    forwarder: &mut Forwarder,
    deltas: &[&ServiceDelta],
) -> Result<Vec<RefusedService>, BackendError> {
    let changes: Vec<FrontendChange<'_>> = deltas.iter().map(|delta| (&*delta.old, &*delta.new)).collect();
    let error = match backend.change(forwarder.table(), &changes) {
        Ok(()) => return Ok(Vec::new()),
        Err(error) if error.is_refusal() && !deltas.is_empty() => error,
        Err(error) => return Err(error),
    };
    deltas.iter().for_each(|delta| forwarder.undo(delta));
    backend.reconcile(forwarder.table())?;
    if let [delta] = deltas {
        return Ok(vec![RefusedService { service: delta.service.clone(), reason: error.to_string() }]);
    }
    let mut refused = Vec::new();
    for half in deltas.chunks(deltas.len().div_ceil(2)) {
        half.iter().for_each(|delta| forwarder.redo(delta));
        refused.extend(apply_deltas(backend, forwarder, half)?);
    }
    Ok(refused)
}
