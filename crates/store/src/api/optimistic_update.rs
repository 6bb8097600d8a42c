//! Optimistic updates: admission runs before the transaction, on the caller's thread, against the version that is stored
//! at that time. If it is still the newest inside the transaction, only the bytes are stored; otherwise the update starts
//! again inside the transaction.
//!
//! Transactions run one after the other, so the work inside them limits the write rate.

use super::strategy::{WriteContext, WriteOutcome, check_uid, is_changed, prepare_for_update};
use super::write::UpdateRequest;
use super::{Api, read_error};
use crate::admission::{self, policy};
use crate::encoded_object::EncodedObject;
use crate::engine::StoredObject;
use crate::kinds::ResourceKind;
use crate::meta;
use crate::object_txn::{self, ObjectTxn, key};
use crate::partial_decode;
use crate::status::StatusError;
use serde_json::Value;

/// Bytes that a new version may grow without a reallocation.
const ROOM: usize = 64;

impl Api {
    /// The version that an update replaces, if its admission needs no other object, and of the stored one only the
    /// partially decoded members. Services need addresses and ports; roles and bindings the rights of the writer; slices
    /// whose hints may be dropped need the stored hints.
    pub(super) fn cached_version(
        &self,
        context: &WriteContext,
        namespace: &str,
        name: &str,
    ) -> Result<Option<StoredObject>, StatusError> {
        if context.kind.group == plan::rbac::GROUP {
            return Ok(None);
        }
        let gated =
            context.kind.kind == "EndpointSlice" && !context.ranges.gates.prefer_same_traffic_distribution;
        if context.kind.kind == "Service" || gated || context.options.dry_run {
            return Ok(None);
        }
        self.engine.get_cached(&key(context.kind, namespace, name)).map_err(read_error)
    }

    /// Updates a version; `None` if that has to happen inside the transaction. A refusal has to as well: the cached
    /// version may be stale.
    pub(super) async fn update_optimistically(
        &self,
        stored: StoredObject,
        update: UpdateRequest,
    ) -> Result<Option<WriteOutcome>, StatusError> {
        let UpdateRequest { context, object, warnings } = update;
        let kind = context.kind;
        let Ok(Some(mut new)) = admitted(&context, &stored, object) else { return Ok(None) };
        let mut all_warnings = admission::warnings(kind, &new);
        all_warnings.extend(warnings);
        meta::set_field_manager(kind, &mut new, &context.field_manager, self.clock().timestamp());
        let Some(encoded) = EncodedObject::of(&new, stored.json.len() + ROOM) else { return Ok(None) };
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            if policy::exist(objects, kind)? { Ok(None) } else { objects.replace(kind, &stored, encoded) }
        };
        let Some((json, revision)) = self.commit(false, work).await? else { return Ok(None) };
        meta::set_resource_version(&mut new, revision.0);
        Ok(Some(WriteOutcome { object: new, json: Some(json), warnings: all_warnings }))
    }
}

/// The new version after admission, if it only has to be stored.
fn admitted(
    context: &WriteContext,
    stored: &StoredObject,
    object: Value,
) -> Result<Option<Value>, StatusError> {
    let (kind, name) = (context.kind, &*stored.key.name);
    let mut old = match kind.partial_decode {
        Some(names) => partial_decode::members(&stored.json, names).map_err(StatusError::internal)?,
        None => object_txn::parse(stored)?,
    };
    if kind.kind == "EndpointSlice" {
        // The field manager is set again, so nothing is kept.
        meta::remove(&mut old, "managedFields");
    }
    check_uid(kind, name, &old, &object)?;
    let mut new = prepare_for_update(context, name, &old, object)?;
    let changed = differs(kind, stored, &old, &mut new);
    // Steps of a deletion are accepted on a full disk.
    Ok((changed && !meta::is_deleting(&new)).then_some(new))
}

/// As [`is_changed`], for a stored object that may be partially decoded; then only the content is compared.
fn differs(kind: &ResourceKind, stored: &StoredObject, old: &Value, new: &mut Value) -> bool {
    if kind.partial_decode.is_none() {
        return is_changed(old, new);
    }
    meta::increment_generation(old, new);
    meta::set(new, "resourceVersion", old["metadata"]["resourceVersion"].clone());
    !partial_decode::has_content(&stored.json, new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kinds;
    use crate::query::WriteOptions;
    use serde_json::json;

    fn check(kind: &'static ResourceKind, stored: &Value, changes: &[(&str, Value)]) {
        let names = kind.partial_decode.unwrap();
        let json = stored.to_string();
        let decoded = partial_decode::members(json.as_bytes(), names).unwrap();
        let (options, ranges) = (WriteOptions::default(), Arc::default());
        let (user, field_manager) = (Arc::default(), String::new());
        let (status, seed, policies, named, authorizer) = (false, 0, true, true, None);
        let context = WriteContext {
            kind,
            requested: kind,
            status,
            options,
            user,
            authorizer,
            named,
            field_manager,
            ranges,
            seed,
            policies,
        };
        for (path, value) in changes {
            let mut new = stored.clone();
            *new.pointer_mut(path).unwrap() = value.clone();
            let admitted = |old: &Value| prepare_for_update(&context, "a", old, new.clone());
            assert_eq!(admitted(&decoded), admitted(stored), "{path} {value}");
        }
    }

    /// Members that admission reads must be in the kind's row.
    #[test]
    fn admission_of_a_partially_decoded_object_is_that_of_the_whole() {
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
            kinds::stored().filter(|kind| kind.partial_decode.is_some()).count(),
            2,
            "a kind without a case here"
        );
    }
}
