//! Invariant 8: fields and conditions of others survive our writes.
//!
//! Users never write our conditions, and the API does not take a status with other fields. So a change of our conditions is
//! a write of a controller, and nothing else may change with it. EndpointSlices of other managers are created by users and
//! never changed by them: any later change is ours.

use std::collections::BTreeMap;

use model::annotation::{CONDITION_PREFIX, CONTROLLER_NAME};
use serde_json::Value;

use crate::violation::BrokenInvariant;

type Checked = Result<(), BrokenInvariant>;

/// The last version of each Service, and the slices of other managers.
#[derive(Default)]
pub(crate) struct ForeignFields {
    services: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
    /// Writes of our conditions that were compared.
    pub compared: u64,
}

impl ForeignFields {
    pub(crate) fn service(&mut self, name: &str, service: &Value, is_deletion: bool) -> Checked {
        if is_deletion {
            self.services.remove(name);
            return Ok(());
        }
        let Some(before) = self.services.insert(name.to_owned(), service.clone()) else { return Ok(()) };
        if ours(&before) == ours(service) {
            return Ok(());
        }
        self.compared += 1;
        let (before, after) = (others(before), others(service.clone()));
        match before == after {
            true => Ok(()),
            false => Err(BrokenInvariant::new(
                8,
                format!("a write of our conditions changed Service {name} from {before} to {after}"),
            )),
        }
    }

    pub(crate) fn slice(&mut self, name: &str, slice: &Value, is_deletion: bool) -> Checked {
        let manager = slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"].as_str();
        if manager.is_none_or(|manager| manager == CONTROLLER_NAME) {
            return Ok(());
        }
        match self.slices.insert(name.to_owned(), slice.clone()) {
            Some(before) if is_deletion || before != *slice => {
                let verb = if is_deletion { "deleted" } else { "changed" };
                let text = format!("EndpointSlice {name} of another manager was {verb}: {slice}");
                Err(BrokenInvariant::new(8, text))
            }
            _ => Ok(()),
        }
    }
}

fn is_ours(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|kind| kind.starts_with(CONDITION_PREFIX))
}

fn ours(service: &Value) -> Vec<&Value> {
    let conditions = service["status"]["conditions"].as_array();
    conditions.into_iter().flatten().filter(|condition| is_ours(condition)).collect()
}

/// Everything that is not ours and that a write of the status does not change by itself.
fn others(mut service: Value) -> Value {
    if let Some(metadata) = service["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    let Some(status) = service["status"].as_object_mut() else { return service };
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| !is_ours(condition));
        if conditions.is_empty() {
            status.remove("conditions");
        }
    }
    service
}
