//! The owner graph: owners, dependents, and the objects that need an action. Pure: events in, object ids out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::{FOREGROUND, ORPHAN};
use crate::kinds::{self, ResourceKind};
use crate::meta;

/// The identity of an object in the graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectId {
    pub(super) kind: u16,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ObjectId {
    pub(super) fn kind(&self) -> &'static ResourceKind {
        kinds::stored().find(|kind| kind.id == self.kind).expect("ids are made from kinds of the table")
    }
}

#[derive(Default)]
pub(super) struct OwnerGraph {
    dependents_by_owner: BTreeMap<String, BTreeSet<ObjectId>>,
    owners_by_dependent: BTreeMap<ObjectId, Vec<String>>,
    /// Dependents with a deleted owner, or one that may not exist.
    pub(super) attempt_to_delete: BTreeSet<ObjectId>,
    /// Owners that are being deleted and have a finalizer for their dependents, with their uids.
    pub(super) waiting_owners: BTreeMap<ObjectId, String>,
    pub(super) terminating_namespaces: BTreeSet<String>,
    pub(super) terminating_pods: BTreeSet<ObjectId>,
    due: bool,
}

impl OwnerGraph {
    /// Adds or updates an object.
    pub(super) fn observe(&mut self, id: &ObjectId, object: &Value) {
        let owners: Vec<String> = owners(object).map(|owner| text(owner, "uid")).collect();
        let is_new = !owners.is_empty() && !self.owners_by_dependent.contains_key(id);
        self.set_owners(id, owners);
        if is_new {
            // Its owner may not exist.
            self.check(id.clone());
        }
        if !meta::is_deleting(object) {
            return;
        }
        let kind = id.kind();
        let finalizers = meta::finalizers(object);
        if finalizers.contains(&FOREGROUND) || finalizers.contains(&ORPHAN) {
            self.waiting_owners.insert(id.clone(), meta::text(object, "uid").to_owned());
            self.due = true;
        }
        if kind.kind == "Namespace" {
            self.terminating_namespaces.insert(id.name.clone());
            self.due = true;
        }
        if kind.kind == "Pod" {
            self.terminating_pods.insert(id.clone());
        }
    }

    /// Removes a deleted object.
    pub(super) fn forget(&mut self, id: &ObjectId, uid: &str) {
        self.set_owners(id, Vec::new());
        self.waiting_owners.remove(id);
        self.terminating_pods.remove(id);
        for dependent in self.dependents(uid) {
            self.check(dependent);
        }
        let namespace = id.namespace.as_str();
        if self.terminating_namespaces.contains(namespace) || !self.waiting_owners.is_empty() {
            self.due = true;
        }
        if id.kind().kind == "Namespace" {
            self.terminating_namespaces.remove(&id.name);
        }
    }

    /// After a restart, deletions may have been missed.
    pub(super) fn check_all(&mut self) {
        let all: Vec<ObjectId> = self.owners_by_dependent.keys().cloned().collect();
        all.into_iter().for_each(|id| self.check(id));
    }

    fn check(&mut self, id: ObjectId) {
        self.attempt_to_delete.insert(id);
        self.due = true;
    }

    /// The dependents of an owner.
    pub(super) fn dependents(&self, uid: &str) -> Vec<ObjectId> {
        self.dependents_by_owner.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Whether an action is due at once.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    pub(super) fn clear_due(&mut self) {
        self.due = false;
    }

    fn set_owners(&mut self, id: &ObjectId, owners: Vec<String>) {
        for uid in self.owners_by_dependent.remove(id).unwrap_or_default() {
            if let Some(dependents) = self.dependents_by_owner.get_mut(&uid) {
                dependents.remove(id);
                if dependents.is_empty() {
                    self.dependents_by_owner.remove(&uid);
                }
            }
        }
        for uid in &owners {
            self.dependents_by_owner.entry(uid.clone()).or_default().insert(id.clone());
        }
        if !owners.is_empty() {
            self.owners_by_dependent.insert(id.clone(), owners);
        }
    }
}

/// The owner references of an object.
pub(super) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// The kind of an owner, if it is served.
pub(super) fn owner_kind(owner: &Value) -> Option<&'static ResourceKind> {
    kinds::of(&text(owner, "apiVersion"), &text(owner, "kind"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn id(name: &str) -> ObjectId {
        ObjectId {
            kind: kinds::named("ConfigMap").unwrap().id,
            namespace: "default".into(),
            name: name.into(),
        }
    }

    #[test]
    fn the_dependents_of_a_deleted_owner_are_checked() {
        let mut graph = OwnerGraph::default();
        let child = json!({"metadata": {"ownerReferences": [{"uid": "u1"}]}});
        graph.observe(&id("child"), &child);
        graph.attempt_to_delete.clear();
        graph.clear_due();
        graph.forget(&id("owner"), "u1");
        assert_eq!(graph.attempt_to_delete, [id("child")].into());
        assert!(graph.is_due());
        graph.forget(&id("child"), "u2");
        assert!(graph.dependents("u1").is_empty());
    }

    #[test]
    fn an_owner_with_a_finalizer_stays_until_it_is_removed() {
        let mut graph = OwnerGraph::default();
        let owner = json!({"metadata": {"uid": "u1", "deletionTimestamp": "x", "finalizers": [FOREGROUND]}});
        graph.observe(&id("owner"), &owner);
        assert_eq!(graph.waiting_owners.get(&id("owner")).map(String::as_str), Some("u1"));
        graph.forget(&id("owner"), "u1");
        assert!(graph.waiting_owners.is_empty());
    }
}
