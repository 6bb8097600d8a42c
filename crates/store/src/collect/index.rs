//! Who owns whom, and what is due. Pure: changes in, places to look at out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::{FOREGROUND, ORPHAN};
use crate::kinds::{self, Kind};
use crate::meta;

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) kind: u16,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Place {
    pub(super) fn kind(&self) -> &'static Kind {
        kinds::stored().find(|kind| kind.id == self.kind).expect("places are made from kinds of the table")
    }
}

#[derive(Default)]
pub(super) struct Index {
    dependents_by_owner: BTreeMap<String, BTreeSet<Place>>,
    owners_by_dependent: BTreeMap<Place, Vec<String>>,
    /// Dependents of which an owner went, or may never have been.
    pub(super) doubtful: BTreeSet<Place>,
    /// Owners that are being deleted and wait for their dependents, with their uids.
    pub(super) waiting: BTreeMap<Place, String>,
    /// Namespaces that are being deleted.
    pub(super) ending: BTreeSet<String>,
    /// Pods that are being deleted.
    pub(super) leaving: BTreeSet<Place>,
    due: bool,
}

impl Index {
    /// An object as it is now.
    pub(super) fn seen(&mut self, place: &Place, object: &Value) {
        let owners: Vec<String> = owners(object).map(|owner| text(owner, "uid")).collect();
        let is_new = !owners.is_empty() && !self.owners_by_dependent.contains_key(place);
        self.set_owners(place, owners);
        if is_new {
            // Its owner may be gone already; one look tells.
            self.doubt(place.clone());
        }
        if !meta::is_deleting(object) {
            return;
        }
        let kind = place.kind();
        let finalizers = meta::finalizers(object);
        if finalizers.contains(&FOREGROUND) || finalizers.contains(&ORPHAN) {
            self.waiting.insert(place.clone(), meta::text(object, "uid").to_owned());
            self.due = true;
        }
        if kind.kind == "Namespace" {
            self.ending.insert(place.name.clone());
            self.due = true;
        }
        if kind.kind == "Pod" {
            self.leaving.insert(place.clone());
        }
    }

    /// An object that is no more.
    pub(super) fn gone(&mut self, place: &Place, uid: &str) {
        self.set_owners(place, Vec::new());
        self.waiting.remove(place);
        self.leaving.remove(place);
        for dependent in self.dependents(uid) {
            self.doubt(dependent);
        }
        let namespace = place.namespace.as_str();
        if self.ending.contains(namespace) || !self.waiting.is_empty() {
            self.due = true;
        }
        if place.kind().kind == "Namespace" {
            self.ending.remove(&place.name);
        }
    }

    /// After a restart nobody knows which deletions were missed.
    pub(super) fn doubt_all(&mut self) {
        let all: Vec<Place> = self.owners_by_dependent.keys().cloned().collect();
        all.into_iter().for_each(|place| self.doubt(place));
    }

    fn doubt(&mut self, place: Place) {
        self.doubtful.insert(place);
        self.due = true;
    }

    /// The objects that name an owner.
    pub(super) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents_by_owner.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Whether there is something to do at once.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// What is due is about to be done.
    pub(super) fn begin(&mut self) {
        self.due = false;
    }

    fn set_owners(&mut self, place: &Place, owners: Vec<String>) {
        for uid in self.owners_by_dependent.remove(place).unwrap_or_default() {
            if let Some(dependents) = self.dependents_by_owner.get_mut(&uid) {
                dependents.remove(place);
                if dependents.is_empty() {
                    self.dependents_by_owner.remove(&uid);
                }
            }
        }
        for uid in &owners {
            self.dependents_by_owner.entry(uid.clone()).or_default().insert(place.clone());
        }
        if !owners.is_empty() {
            self.owners_by_dependent.insert(place.clone(), owners);
        }
    }
}

/// The owners that an object names.
pub(super) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// The kind of an owner, if it is one that we serve.
pub(super) fn owner_kind(owner: &Value) -> Option<&'static Kind> {
    kinds::of(&text(owner, "apiVersion"), &text(owner, "kind"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn place(name: &str) -> Place {
        Place { kind: kinds::named("ConfigMap").unwrap().id, namespace: "default".into(), name: name.into() }
    }

    #[test]
    fn the_dependents_of_a_deleted_owner_are_looked_at() {
        let mut index = Index::default();
        let child = json!({"metadata": {"ownerReferences": [{"uid": "u1"}]}});
        index.seen(&place("child"), &child);
        index.doubtful.clear();
        index.begin();
        index.gone(&place("owner"), "u1");
        assert_eq!(index.doubtful, [place("child")].into());
        assert!(index.is_due());
        index.gone(&place("child"), "u2");
        assert!(index.dependents("u1").is_empty());
    }

    #[test]
    fn an_owner_that_waits_is_remembered_until_it_goes() {
        let mut index = Index::default();
        let owner = json!({"metadata": {"uid": "u1", "deletionTimestamp": "x", "finalizers": [FOREGROUND]}});
        index.seen(&place("owner"), &owner);
        assert_eq!(index.waiting.get(&place("owner")).map(String::as_str), Some("u1"));
        index.gone(&place("owner"), "u1");
        assert!(index.waiting.is_empty());
    }
}
