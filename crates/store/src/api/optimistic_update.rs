//! Optimistic updates: admission runs before the transaction, on the caller's thread, against the version that is stored
//! at that time. If it is still the newest inside the transaction, only the bytes are stored; otherwise the update starts
//! again inside the transaction.
//!
//! Transactions run one after the other, so the work inside them limits the write rate.

use super::strategy::{WriteContext, WriteOutcome, check_uid, is_changed, prepare_for_update};
use super::write::UpdateRequest;
use super::{Api, Subresource, read_error};
use crate::admission::{self, policy};
use crate::encoded_object::EncodedObject;
use crate::engine::StoredObject;
use crate::meta;
use crate::object_txn::{self, ObjectTxn, key};
use crate::partial_decode;
use crate::status::StatusError;
use serde_json::{Value, json};

/// Bytes that a new version may grow without a reallocation.
const ROOM: usize = 64;

impl Api {
    /// The version that an update replaces, if its admission needs no other object. Services need addresses and ports; roles and bindings the rights of the writer, nodes their own rules; slices
    /// whose hints may be dropped need the stored hints.
    pub(super) fn cached_version(
        &self,
        context: &WriteContext,
        namespace: &str,
        name: &str,
    ) -> Result<Option<StoredObject>, StatusError> {
        if context.kind.group == apimachinery::rbac::GROUP
            || admission::node_restriction::applies(&context.user)
        {
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
        let now = self.clock().timestamp();
        let Ok(Some(mut new)) = admitted(&context, &stored, object, now) else { return Ok(None) };
        let mut all_warnings = admission::warnings(kind, &new);
        all_warnings.extend(warnings);
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
    now: jiff::Timestamp,
) -> Result<Option<Value>, StatusError> {
    let (kind, name) = (context.kind, &*stored.key.name);
    let old = decoded(context, stored, &object)?;
    check_uid(kind, name, &old, &object)?;
    let mut new = prepare_for_update(context, name, &old, object, now)?;
    let changed = is_changed(&old, &mut new);
    // Steps of a deletion are accepted on a full disk.
    Ok((changed && !meta::is_deleting(&new)).then_some(new))
}

/// The version that an update replaces. If the member that is only compared changes, anything but its new value stands for it.
fn decoded(context: &WriteContext, stored: &StoredObject, new: &Value) -> Result<Value, StatusError> {
    let Some(name) = context.kind.compared.filter(|_| context.subresource == Subresource::None) else {
        return object_txn::parse(stored);
    };
    let (mut old, member) = partial_decode::all_but(&stored.json, name).map_err(StatusError::internal)?;
    match member {
        Some(member) if member.get().len() > EMPTY && !partial_decode::is_same(member, &new[name]) => {
            old[name] = json!(["changed"]);
            Ok(old)
        }
        _ => object_txn::parse(stored),
    }
}

/// Bytes of `[]` and `null`: which of them, or none, matters to ownership.
const EMPTY: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{Bytes, Revision};
    use crate::kinds::{self, ResourceKind};
    use crate::query::WriteOptions;

    fn check(kind: &'static ResourceKind, stored: &Value, changes: &[(&str, Value)]) {
        let (options, ranges) =
            (WriteOptions::default(), Arc::new(crate::admission::service::ServiceRanges::without_flags()));
        let (user, field_manager) = (Arc::default(), "second".to_owned());
        let (seed, policies, named, applied, authorizer) = (0, true, true, false, None);
        let context = WriteContext {
            kind,
            requested: kind,
            subresource: Subresource::None,
            options,
            user,
            authorizer,
            named,
            field_manager,
            applied,
            ranges,
            seed,
            policies,
        };
        let now = jiff::Timestamp::UNIX_EPOCH;
        let version = StoredObject {
            key: key(kind, "b", "a"),
            revision: Revision(5),
            expires: None,
            json: Bytes::from(stored.to_string()),
        };
        for (path, value) in changes {
            let mut new = stored.clone();
            *new.pointer_mut(path).unwrap() = value.clone();
            let old = decoded(&context, &version, &new).unwrap();
            let admitted = |old: &Value| {
                prepare_for_update(&context, "a", old, new.clone(), now)
                    .map(|mut new| (is_changed(old, &mut new), new))
            };
            assert_eq!(admitted(&old), admitted(stored), "{path} {value}");
        }
    }

    /// Admission must not read the member that the kind's row names.
    #[test]
    fn admission_of_a_partially_decoded_object_is_that_of_the_whole() {
        let fields = json!({"f:addressType": {}, "f:endpoints": {}, "f:ports": {}});
        let metadata = json!({"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "5", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"c": "d"}, "finalizers": ["x.y/z"],
            "managedFields": [{"manager": "first", "operation": "Update", "apiVersion": "discovery.k8s.io/v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields, "time": "2026-01-01T00:00:00Z"}]});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
        let changes = [
            ("/addressType", json!("IPv6")),
            ("/endpoints/0/addresses", json!(["10.0.0.2"])),
            ("/endpoints", json!([])),
            ("/endpoints", json!(null)),
            ("/ports/0/port", json!(-1)),
            ("/ports/0/port", json!(81)),
            ("/metadata/uid", json!("other")),
            ("/metadata/resourceVersion", json!("4")),
            ("/metadata/labels", json!({"c": "e"})),
            ("/metadata/labels", json!({"c": "no good value"})),
            ("/metadata/creationTimestamp", json!("2027-01-01T00:00:00Z")),
        ];
        let kind = kinds::named("EndpointSlice").unwrap();
        check(kind, &slice, &changes);
        for endpoints in [json!([]), Value::Null] {
            let mut empty = slice.clone();
            empty["endpoints"] = endpoints;
            check(kind, &empty, &[("/endpoints", slice["endpoints"].clone()), ("/endpoints", json!([]))]);
        }
        let others = kinds::stored().filter(|kind| kind.compared.is_some()).count() - 1;
        assert_eq!(others, 0, "a kind without a case here");
    }
}
