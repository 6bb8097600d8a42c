//! Updates that are admitted before their turn: against the version that is stored now, on the caller's own thread.
//! When the turn comes and that version still is the newest, nothing is left to do but to store the bytes; if somebody
//! was faster, the update begins again inside its transaction.
//!
//! All writes have their turn one after the other, so what is done there decides how many there can be.

use super::write::{Change, Terms, Wanted, check_uid, is_changed, revised};
use super::{Api, is_free_to_go, read_failure};
use crate::admission::{self, policy};
use crate::draft::Draft;
use crate::engine::Stored;
use crate::glance;
use crate::kinds::Kind;
use crate::meta;
use crate::objects::{self, Objects, key};
use crate::status::Failure;
use serde_json::Value;

/// How much longer a new version is without being written anew while it grows.
const ROOM: usize = 64;

impl Api {
    /// The version that an update would replace, if the update can be admitted before its turn: where it needs no
    /// other object, and no more of the stored one than a glance shows. Services need addresses and ports; slices whose
    /// hints may have to be dropped need the stored hints.
    pub(super) fn replaceable(
        &self,
        terms: &Terms,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Stored>, Failure> {
        let gated =
            terms.kind.kind == "EndpointSlice" && !terms.ranges.gates.prefer_same_traffic_distribution;
        if terms.kind.kind == "Service" || gated || terms.options.dry_run {
            return Ok(None);
        }
        self.engine.glimpse(&key(terms.kind, namespace, name)).map_err(read_failure)
    }

    /// Replaces a version; nothing if it has to be done inside the transaction. That is so also when there is something
    /// to refuse: what was seen may be a moment old, and a refusal has to be right.
    pub(super) async fn replace_ahead(
        &self,
        stored: Stored,
        wanted: Wanted,
    ) -> Result<Option<Change>, Failure> {
        let Wanted { terms, object, warnings } = wanted;
        let kind = terms.kind;
        let Ok(Some(mut new)) = admitted(&terms, &stored, object) else { return Ok(None) };
        let mut said = admission::warnings(kind, &new);
        said.extend(warnings);
        meta::note_writer(kind, &mut new, &terms.manager, jiff::Timestamp::now());
        let Some(draft) = Draft::of(&new, stored.json.len() + ROOM) else { return Ok(None) };
        let work = move |objects: &mut Objects<'_, '_>| {
            if policy::are_there(objects, kind)? { Ok(None) } else { objects.replace(kind, &stored, draft) }
        };
        let Some((json, revision)) = self.commit(false, work).await? else { return Ok(None) };
        meta::set_resource_version(&mut new, revision.0);
        Ok(Some(Change { object: new, json: Some(json), warnings: said }))
    }
}

/// The new version as admission leaves it, if it is one that only has to be stored.
fn admitted(terms: &Terms, stored: &Stored, object: Value) -> Result<Option<Value>, Failure> {
    let (kind, name) = (terms.kind, &*stored.key.name);
    let mut old = match kind.glance {
        Some(names) => glance::members(&stored.json, names).map_err(Failure::internal)?,
        None => objects::parse(stored)?,
    };
    if kind.kind == "EndpointSlice" {
        // Its last writer is noted anew, so nothing has to be carried over.
        meta::remove(&mut old, "managedFields");
    }
    check_uid(kind, name, &old, &object)?;
    let mut new = revised(terms, name, &old, object)?;
    let changed = differs(kind, stored, &old, &mut new);
    Ok((changed && !is_free_to_go(kind, &new)).then_some(new))
}

/// As [`is_changed`], of a stored object of which some members may not have been read: whether it surely has another
/// content, or is known in full and differs.
fn differs(kind: &Kind, stored: &Stored, old: &Value, new: &mut Value) -> bool {
    if kind.glance.is_none() {
        return is_changed(old, new);
    }
    meta::raise_generation(old, new);
    meta::set(new, "resourceVersion", old["metadata"]["resourceVersion"].clone());
    !glance::has_content(&stored.json, new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kinds;
    use crate::query::WriteOptions;
    use serde_json::json;

    fn check(kind: &'static Kind, stored: &Value, changes: &[(&str, Value)]) {
        let names = kind.glance.unwrap();
        let json = stored.to_string();
        let glanced = glance::members(json.as_bytes(), names).unwrap();
        let (options, ranges) = (WriteOptions::default(), Arc::default());
        let (user, manager) = (String::new(), String::new());
        let terms = Terms { kind, status: false, options, user, manager, ranges, seed: 0, policies: true };
        for (path, value) in changes {
            let mut new = stored.clone();
            *new.pointer_mut(path).unwrap() = value.clone();
            let told = |old: &Value| revised(&terms, "a", old, new.clone());
            assert_eq!(told(&glanced), told(stored), "{path} {value}");
        }
    }

    /// Whoever makes admission look at more of a stored object has to say so in the kind's row.
    #[test]
    fn a_glance_at_the_stored_object_is_as_good_as_all_of_it() {
        let metadata = json!({"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "5", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"c": "d"}, "finalizers": ["x.y/z"]});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
        let changes = [
            ("/addressType", json!("IPv6")),
            ("/endpoints/0/addresses", json!(["10.0.0.2"])),
            ("/endpoints", json!([])),
            ("/ports/0/port", json!(-1)),
            ("/metadata/uid", json!("other")),
            ("/metadata/resourceVersion", json!("4")),
            ("/metadata/labels", json!({"c": "no good value"})),
            ("/metadata/creationTimestamp", json!("2027-01-01T00:00:00Z")),
        ];
        check(kinds::named("EndpointSlice").unwrap(), &slice, &changes);
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "leaseTransitions": 3}});
        let changes = [
            ("/spec/holderIdentity", json!("other")),
            ("/spec/leaseDurationSeconds", json!(0)),
            ("/spec/leaseTransitions", json!(1)),
            ("/metadata/uid", json!("other")),
        ];
        check(kinds::named("Lease").unwrap(), &lease, &changes);
        assert_eq!(
            kinds::stored().filter(|kind| kind.glance.is_some()).count(),
            2,
            "a kind without a case here"
        );
    }
}
