//! Admission of writes by nodes: each writes its own objects alone. As NodeRestriction in Kubernetes.

use apimachinery::join::{NODES, NodeWrite, check_node_write};
use apimachinery::rbac::UserInfo;
use model::annotation;
use serde_json::Value;

use super::policy::AdmissionAttributes;
use crate::authorization::forbidden_object;
use crate::kinds;
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::StatusError;

/// Whether writes of a user are restricted.
pub(crate) fn applies(user: &UserInfo) -> bool {
    user.groups.iter().any(|group| group == NODES)
}

pub(super) fn check(
    objects: &ObjectTxn<'_, '_>,
    attempt: &AdmissionAttributes<'_>,
) -> Result<(), StatusError> {
    if !applies(attempt.user) {
        return Ok(());
    }
    let service = service_of(objects, attempt)?;
    let write = NodeWrite {
        kind: attempt.kind.kind,
        new: attempt.object,
        old: attempt.old,
        service: service.as_ref(),
    };
    let name = meta::text(attempt.any(), "name");
    check_node_write(attempt.user, &write)
        .map_err(|why| forbidden_object(attempt.kind.group, attempt.kind.plural, name, &why))
}

/// The Service of a slice that is written.
fn service_of(
    objects: &ObjectTxn<'_, '_>,
    attempt: &AdmissionAttributes<'_>,
) -> Result<Option<Value>, StatusError> {
    let slice = attempt.object;
    let name = slice["metadata"]["labels"][annotation::SERVICE_NAME].as_str();
    match (kinds::named("Service"), name) {
        (Some(services), Some(name)) if attempt.kind.kind == "EndpointSlice" => {
            objects.find(services, meta::text(slice, "namespace"), name)
        }
        _ => Ok(None),
    }
}
