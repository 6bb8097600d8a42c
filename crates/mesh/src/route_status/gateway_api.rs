//! The statuses of the Gateway API: what is written, beside what other controllers wrote.
//!
//! ```text
//! change -> plan::dependents -> queue -> StatusPlanner -> merged with the stored status -> a write
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use model::gateway_api::{CONTROLLER, GatewayApiKind};
use model::{Name, ObjectKey, Snapshot};
use plan::dependents::{AffectedStatuses, ChangedObject, StatusKey, dependent_statuses};
use plan::gateway_api::{AssignedAddresses, AttachedRoutes, StatusPlanner, UnboundPorts};
use serde_json::{Map, Value, json};

use cluster::ObjectKind;

use super::conditions::StatusWrite;
use crate::certificate_watches::CertificateKey;

/// The most ancestors in the status of a policy, and the most parents in that of a route.
const MAX_ANCESTORS: usize = 16;
const MAX_PARENTS: usize = 32;
/// The types of conditions that we write on whole objects. Those of other writers stay.
const OWN_CONDITIONS: [&str; 5] =
    ["Accepted", "Programmed", "ResolvedRefs", "SupportedVersion", "InsecureFrontendValidationMode"];
/// The definition whose annotation has the version of the Gateway API.
pub(super) const VERSIONED_DEFINITION: &str = "gatewayclasses.gateway.networking.k8s.io";
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// An object as it is stored.
#[derive(Debug)]
struct StoredStatus {
    resource_version: Value,
    generation: Value,
    status: Value,
}

pub(super) struct GatewayApiStatuses {
    addresses: AssignedAddresses,
    attached: AttachedRoutes,
    stored: BTreeMap<StatusKey, StoredStatus>,
    /// The version of the definitions in the cluster; `None`: the API has the kinds built in.
    bundle_version: Option<String>,
    /// Which Secrets and ConfigMaps are needed may have changed.
    wants_other_certificates: bool,
}

impl GatewayApiStatuses {
    pub(super) fn new(addresses: AssignedAddresses) -> Self {
        Self {
            addresses,
            attached: AttachedRoutes::default(),
            stored: BTreeMap::new(),
            bundle_version: None,
            wants_other_certificates: true,
        }
    }

    /// Remembers an object as it is stored, from a watch or from the answer to a write.
    pub(super) fn store(&mut self, kind: GatewayApiKind, object: &Value) {
        let metadata = &object["metadata"];
        let part = |name: &str| Name::new(metadata[name].as_str().unwrap_or_default());
        let key = ObjectKey { namespace: part("namespace"), name: part("name") };
        let stored = StoredStatus {
            resource_version: metadata["resourceVersion"].clone(),
            generation: metadata["generation"].clone(),
            status: object["status"].clone(),
        };
        self.stored.insert((kind, key), stored);
    }

    /// Whether an object has the specification that is known.
    pub(super) fn has_generation(&self, (kind, key): (GatewayApiKind, &ObjectKey), object: &Value) -> bool {
        let known = self.stored.get(&(kind, key.clone()));
        known.is_some_and(|known| known.generation == object["metadata"]["generation"])
    }

    /// Whether an object is not older than the known one. An answer may arrive after a later change by the watch.
    pub(super) fn is_current(&self, (kind, key): (GatewayApiKind, &ObjectKey), object: &Value) -> bool {
        let version = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
        let known = self.stored.get(&(kind, key.clone())).and_then(|known| version(&known.resource_version));
        let new = version(&object["metadata"]["resourceVersion"]);
        // Versions that are not numbers cannot be compared.
        known.zip(new).is_none_or(|(known, new)| new >= known)
    }

    /// An object was deleted.
    pub(super) fn forget(&mut self, kind: GatewayApiKind, key: &ObjectKey) {
        self.stored.remove(&(kind, key.clone()));
    }

    /// Forgets objects that a list does not have.
    pub(super) fn retain(&mut self, kind: GatewayApiKind, seen: &BTreeSet<ObjectKey>) {
        self.stored.retain(|(of, key), _| *of != kind || seen.contains(key));
    }

    /// Takes the version of the definitions; returns the statuses that it affects.
    pub(super) fn set_definition(&mut self, text: Option<&str>) -> Vec<StatusKey> {
        let object: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let version = object["metadata"]["annotations"][BUNDLE_VERSION].as_str().map(str::to_owned);
        let version = version.or_else(|| text.map(|_| "unknown".to_owned()));
        if version == self.bundle_version {
            return Vec::new();
        }
        self.bundle_version = version;
        self.stored.keys().filter(|(kind, _)| *kind == GatewayApiKind::Class).cloned().collect()
    }

    /// The statuses that a change may affect; it is asked before the change and after it.
    pub(super) fn affected(&mut self, changed: &ChangedObject, snapshot: &Snapshot) -> AffectedStatuses {
        let found = dependent_statuses(snapshot, changed, &mut self.attached);
        self.wants_other_certificates |= match changed {
            ChangedObject::Certificate => false,
            // A route needs certificates only by the policies of its backends.
            ChangedObject::GatewayApi(kind, _) if !matches!(kind, GatewayApiKind::Route(_)) => true,
            _ => found.gateway_api.iter().any(|(kind, _)| *kind == GatewayApiKind::TlsPolicy),
        };
        found
    }

    /// The Secrets and ConfigMaps that Gateways need, if they may have changed.
    pub(super) fn take_wanted_certificates(
        &mut self,
        snapshot: &Snapshot,
    ) -> Option<BTreeSet<CertificateKey>> {
        if !std::mem::take(&mut self.wants_other_certificates) {
            return None;
        }
        Some(StatusPlanner::new(snapshot, CONTROLLER, &self.addresses, &mut self.attached).certificates(None))
    }

    /// The writes that these objects need.
    pub(super) fn writes(
        &mut self,
        snapshot: &Snapshot,
        unbound: &UnboundPorts,
        keys: &[StatusKey],
        time: Timestamp,
    ) -> Vec<(StatusKey, StatusWrite)> {
        let planner = StatusPlanner::new(snapshot, CONTROLLER, &self.addresses, &mut self.attached)
            .with_bundle_version(self.bundle_version.as_deref())
            .with_unbound_ports(unbound);
        let write = |key: &StatusKey| {
            let stored = self.stored.get(key)?;
            let patch = stored.merged(key.0, planner.status(key.0, &key.1), time)?;
            Some((key.clone(), stored.write(key, patch)))
        };
        keys.iter().filter_map(write).collect()
    }
}

impl StoredStatus {
    fn write(&self, (kind, key): &StatusKey, status: Value) -> StatusWrite {
        let resource = ObjectKind::GatewayApi(*kind).resource();
        let namespace = match key.namespace.is_empty() {
            true => String::new(),
            false => format!("/namespaces/{}", key.namespace),
        };
        let path = format!(
            "/apis/{}{namespace}/{}/{}/status?fieldManager=zoneward-controller",
            resource.api_version, resource.plural, key.name
        );
        let patch = json!({"metadata": {"resourceVersion": self.resource_version}, "status": status});
        StatusWrite { path, patch, events: Vec::new() }
    }

    /// The fields of the status to write; `None` if they are stored like this. `wanted` is `None` for an object that we
    /// have nothing to say about.
    fn merged(&self, kind: GatewayApiKind, wanted: Option<Value>, time: Timestamp) -> Option<Value> {
        let list = match kind {
            GatewayApiKind::Route(_) => Some(("parents", "parentRef", MAX_PARENTS)),
            GatewayApiKind::TlsPolicy => Some(("ancestors", "ancestorRef", MAX_ANCESTORS)),
            _ => None,
        };
        let merged = match (list, wanted) {
            (Some((list, reference, most)), wanted) => {
                let wanted = wanted.unwrap_or_else(|| json!({list: []}));
                let stored = items(&self.status[list]);
                let is_ours = |entry: &Value| entry["controllerName"] == CONTROLLER;
                let mut all: Vec<Value> = stored.iter().filter(|entry| !is_ours(entry)).cloned().collect();
                let room = most.saturating_sub(all.len());
                for mut entry in items(&wanted[list]).into_iter().take(room) {
                    let before = stored.iter().find(|o| is_ours(o) && o[reference] == entry[reference]);
                    let before = before.map(|before| &before["conditions"]);
                    entry["conditions"] = conditions(&entry["conditions"], before, time).into();
                    all.push(entry);
                }
                let is_unset = self.status[list].is_null() && all.is_empty();
                if is_unset {
                    return None;
                }
                json!({list: all})
            }
            (None, wanted) => {
                let Value::Object(mut wanted) = wanted? else { return None };
                if let Some(listeners) = wanted.get_mut("listeners") {
                    *listeners = self.listeners(listeners, time);
                }
                let own = conditions(&wanted["conditions"], Some(&self.status["conditions"]), time);
                let others = items(&self.status["conditions"]).into_iter();
                let is_other =
                    |condition: &Value| !OWN_CONDITIONS.iter().any(|own| condition["type"] == *own);
                let all: Vec<Value> = own.into_iter().chain(others.filter(is_other)).collect();
                wanted.insert("conditions".to_owned(), all.into());
                Value::Object(wanted)
            }
        };
        let fields: &Map<String, Value> = merged.as_object()?;
        let is_stored = fields.iter().all(|(name, value)| {
            // A list that is empty may be left out.
            let stored = &self.status[name.as_str()];
            stored == value || (stored.is_null() && value.as_array().is_some_and(Vec::is_empty))
        });
        (!is_stored).then_some(merged)
    }

    fn listeners(&self, wanted: &Value, time: Timestamp) -> Value {
        let stored = items(&self.status["listeners"]);
        let mut listeners = items(wanted);
        for listener in &mut listeners {
            let before = stored.iter().find(|before| before["name"] == listener["name"]);
            let before = before.map(|before| &before["conditions"]);
            listener["conditions"] = conditions(&listener["conditions"], before, time).into();
        }
        listeners.into()
    }
}

/// Conditions with the time of their last transition.
fn conditions(wanted: &Value, stored: Option<&Value>, time: Timestamp) -> Vec<Value> {
    let stored = stored.map(items).unwrap_or_default();
    let mut all = items(wanted);
    for condition in &mut all {
        let before = stored.iter().find(|before| before["type"] == condition["type"]);
        let since = before.filter(|before| before["status"] == condition["status"]);
        let since = since.map(|before| before["lastTransitionTime"].clone()).filter(Value::is_string);
        condition["lastTransitionTime"] =
            since.unwrap_or_else(|| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
    }
    all
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}
