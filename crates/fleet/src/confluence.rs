//! Invariant 21: what a run with faults ends in is what an undisturbed run of the same final objects ends in.
//!
//! The objects of users (Services with their cluster IPs, Pods, Nodes, EndpointSlices of other managers) are created anew, in
//! an empty store and without faults; then slices and kernels are compared.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::PoisonError;

use model::{Service, Slice};
use serde_json::{Value, json};
use store::engine::{Engine, ListQuery, ResourceId};
use store::kinds;

use crate::convergence::{has_memory, is_ours, snapshot, sorted};
use crate::kernels::{Reached, connect, reached};
use crate::parties::Machine;
use crate::violation::BrokenInvariant;

/// Collections in the order in which their objects are created.
const KINDS: [(&str, &str); 4] = [
    ("Node", "/api/v1/nodes"),
    ("Service", "/api/v1/namespaces/default/services"),
    ("EndpointSlice", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"),
    ("Pod", "/api/v1/namespaces/default/pods"),
];

/// An object of a user: the collection that it is created in, its body, and its status.
#[derive(Clone, Debug)]
pub(crate) struct UserObject {
    pub collection: &'static str,
    pub body: Value,
    pub status: Option<Value>,
}

/// The objects of users in a store; none if it has a ZoneDrain, whose effect depends on the time of its creation.
pub(crate) fn user_objects(engine: &Engine) -> Result<Vec<UserObject>, BrokenInvariant> {
    let mut objects = Vec::new();
    let drains = kinds::named("ZoneDrain").map(|kind| engine.list(&ListQuery::all(ResourceId(kind.id))));
    if drains.is_some_and(|page| page.is_ok_and(|page| !page.items.is_empty())) {
        return Ok(objects);
    }
    for (word, collection) in KINDS {
        let Some(kind) = kinds::named(word) else { continue };
        let page = engine.list(&ListQuery::all(ResourceId(kind.id)));
        let page = page.map_err(|error| BrokenInvariant::new(21, format!("{word}: {error}")))?;
        for stored in page.items {
            let object: Value = serde_json::from_slice(&stored.json).unwrap_or_default();
            if is_of_user(&object) {
                objects.push(user_object(word, collection, &object));
            }
        }
    }
    Ok(objects)
}

/// The Service of the API and the slices of controllers are made by the new run itself.
fn is_of_user(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let is_owned = metadata["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
    metadata["name"] != "kubernetes" && !is_owned
}

fn user_object(word: &str, collection: &'static str, object: &Value) -> UserObject {
    let mut body = object.clone();
    let metadata = &object["metadata"];
    body["metadata"] = json!({"name": metadata["name"], "labels": metadata["labels"],
        "annotations": metadata["annotations"]});
    let status = body.as_object_mut().and_then(|body| body.remove("status"));
    let status = status.filter(|_| matches!(word, "Node" | "Pod")).map(|status| json!({ "status": status }));
    UserObject { collection, body, status }
}

/// Endpoints of each Service's slices, and where each node sends each of its addresses. Mechanisms with hysteresis are left
/// out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunOutcome {
    slices: BTreeMap<String, Vec<String>>,
    connections: BTreeMap<(String, SocketAddr), Reached>,
}

impl RunOutcome {
    pub(crate) fn of(engine: &Engine, machines: &[Machine]) -> Result<Self, BrokenInvariant> {
        let (snapshot, _) = snapshot(engine)?;
        let (mut slices, mut connections) = (BTreeMap::new(), BTreeMap::new());
        let is_compared = |service: &Service| *service.key.name != *"kubernetes" && !has_memory(service);
        for (service, stored) in snapshot.services().filter(|(service, _)| is_compared(service)) {
            let ours = stored.iter().filter(|slice: &&Slice| is_ours(slice)).map(|slice| &slice.content);
            slices.insert(service.key.to_string(), sorted(ours, true));
            let ips = service.cluster_ips.addresses().iter();
            for to in ips.flat_map(|ip| service.ports.iter().map(|port| SocketAddr::new(*ip, port.port))) {
                for machine in machines {
                    let faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
                    let found = connect(&faulty.kernel, machine, to).map(|found| reached(&found));
                    connections.insert((machine.name.clone(), to), found.unwrap_or_default());
                }
            }
        }
        Ok(Self { slices, connections })
    }

    /// The first difference to an undisturbed run.
    pub(crate) fn compare(&self, undisturbed: &Self) -> Result<(), BrokenInvariant> {
        for (service, found) in &self.slices {
            let wanted = undisturbed.slices.get(service);
            if wanted != Some(found) {
                let text = format!("Service {service} has {found:?}, without faults {wanted:?}");
                return Err(BrokenInvariant::new(21, text));
            }
        }
        for (key, found) in &self.connections {
            let wanted = undisturbed.connections.get(key);
            if wanted != Some(found) {
                let text = format!("{} sends {} to {found:?}, without faults {wanted:?}", key.0, key.1);
                return Err(BrokenInvariant::new(21, text));
            }
        }
        Ok(())
    }
}
