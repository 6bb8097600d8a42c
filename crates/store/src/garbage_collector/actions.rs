//! The actions of the garbage collector: each is one small transaction that reads the objects again.

use serde_json::Value;

use super::owner_graph::{ObjectId, OwnerGraph, owner_kind, owners, text};
use crate::api::{
    Api, DeleteOptions, FOREGROUND, ORPHAN, Propagation, delete_in, is_ready_to_remove, remove,
};
use crate::kinds;
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::StatusError;
use apimachinery::rbac::UserInfo;

/// The user of deletions, for policies.
fn user() -> UserInfo {
    UserInfo::service_account("kube-system", "generic-garbage-collector", "")
}

/// Objects of a namespace that one transaction deletes.
const DELETE_LIMIT: usize = 100;

/// Runs the actions that are due. Failed ones are retried with the next tick.
pub(super) async fn run(api: &Api, graph: &mut OwnerGraph) {
    graph.clear_due();
    for id in std::mem::take(&mut graph.attempt_to_delete) {
        let dependent = id.clone();
        if api.commit(false, move |objects| delete_if_ownerless(objects, &dependent)).await.is_err() {
            graph.attempt_to_delete.insert(id);
        }
    }
    let waiting: Vec<(ObjectId, String)> =
        graph.waiting_owners.iter().map(|(id, uid)| (id.clone(), uid.clone())).collect();
    for (id, uid) in waiting {
        let dependents = graph.dependents(&uid);
        let owner = id.clone();
        if let Ok(true) =
            api.commit(false, move |objects| finalize_owner(objects, &owner, &uid, &dependents)).await
        {
            graph.waiting_owners.remove(&id);
        }
    }
    for namespace in graph.terminating_namespaces.clone() {
        let delete = move |objects: &mut ObjectTxn<'_, '_>, limit| {
            delete_namespace_content(objects, &namespace, limit)
        };
        commit_in_steps(api, DELETE_LIMIT, delete).await;
    }
    for id in graph.terminating_pods.clone() {
        let pod = id.clone();
        if let Ok(true) = api.commit(false, move |objects| delete_terminated_pod(objects, &pod)).await {
            graph.terminating_pods.remove(&id);
        }
    }
}

/// Runs transactions of at most `limit` objects until one returns false. After a failure smaller ones follow: on a full
/// disk there may not be space for a large one. What fails all the same is retried with the next tick.
pub(super) async fn commit_in_steps<W>(api: &Api, mut limit: usize, work: W)
where
    W: Fn(&mut ObjectTxn<'_, '_>, usize) -> Result<bool, StatusError> + Clone + Send + 'static,
{
    while limit > 0 {
        let work = work.clone();
        match api.commit(false, move |objects| work(objects, limit)).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => limit /= 2,
        }
    }
}

fn find(objects: &ObjectTxn<'_, '_>, id: &ObjectId) -> Result<Option<Value>, StatusError> {
    objects.find(id.kind(), &id.namespace, &id.name)
}

/// Whether the owner of a reference exists. Owners of kinds that are not served count as existing.
fn exists(objects: &ObjectTxn<'_, '_>, dependent: &Value, owner: &Value) -> Result<bool, StatusError> {
    let Some(kind) = owner_kind(owner) else { return Ok(true) };
    let namespace = if kind.namespaced { meta::text(dependent, "namespace") } else { "" };
    let found = objects.find(kind, namespace, &text(owner, "name"))?;
    Ok(found.is_some_and(|found| meta::text(&found, "uid") == text(owner, "uid")))
}

/// Deletes a dependent without existing owners; otherwise removes references to missing ones.
fn delete_if_ownerless(objects: &mut ObjectTxn<'_, '_>, id: &ObjectId) -> Result<(), StatusError> {
    let Some(mut object) = find(objects, id)? else { return Ok(()) };
    let mut left = Vec::new();
    let mut lost = false;
    for owner in owners(&object) {
        if exists(objects, &object, owner)? {
            left.push(owner.clone());
        } else {
            lost = true;
        }
    }
    if !lost || meta::is_deleting(&object) {
        return Ok(());
    }
    if left.is_empty() {
        return delete(objects, id, Propagation::Background);
    }
    meta::set(&mut object, "ownerReferences", left);
    objects.allow_on_full_disk();
    objects.put(id.kind(), &mut object)
}

fn delete(
    objects: &mut ObjectTxn<'_, '_>,
    id: &ObjectId,
    propagation: Propagation,
) -> Result<(), StatusError> {
    let options = DeleteOptions { propagation_policy: Some(propagation), ..DeleteOptions::default() };
    match delete_in(objects, id.kind(), &id.namespace, &id.name, &options, &user()) {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

/// Orphans or deletes the dependents of an owner that is being deleted; removes its finalizers when none is left.
fn finalize_owner(
    objects: &mut ObjectTxn<'_, '_>,
    owner: &ObjectId,
    uid: &str,
    dependents: &[ObjectId],
) -> Result<bool, StatusError> {
    let Some(mut object) = find(objects, owner)? else { return Ok(true) };
    objects.allow_on_full_disk();
    let orphans = meta::finalizers(&object).contains(&ORPHAN);
    let mut blocked = false;
    for id in dependents {
        let Some(mut dependent) = find(objects, id)? else { continue };
        let others: Vec<Value> =
            owners(&dependent).filter(|other| text(other, "uid") != uid).cloned().collect();
        if others.len() == owners(&dependent).count() {
            continue;
        }
        if orphans {
            meta::set(&mut dependent, "ownerReferences", others);
            meta::remove_empty(&mut dependent);
            objects.put(id.kind(), &mut dependent)?;
            continue;
        }
        let blocks =
            owners(&dependent).any(|other| text(other, "uid") == uid && other["blockOwnerDeletion"] == true);
        if !meta::is_deleting(&dependent) {
            delete(objects, id, Propagation::Background)?;
        }
        blocked |= blocks && find(objects, id)?.is_some();
    }
    if blocked {
        return Ok(false);
    }
    let left: Vec<String> = meta::finalizers(&object)
        .into_iter()
        .filter(|finalizer| *finalizer != ORPHAN && *finalizer != FOREGROUND)
        .map(str::to_owned)
        .collect();
    meta::set(&mut object, "finalizers", left);
    meta::remove_empty(&mut object);
    store_or_remove(objects, owner, object)?;
    Ok(true)
}

fn store_or_remove(
    objects: &mut ObjectTxn<'_, '_>,
    id: &ObjectId,
    mut object: Value,
) -> Result<(), StatusError> {
    objects.allow_on_full_disk();
    if is_ready_to_remove(id.kind(), &object) {
        remove(objects, id.kind(), &mut object)
    } else {
        objects.put(id.kind(), &mut object)
    }
}

/// Deletes at most `limit` objects of a namespace, and finally the namespace; true if there may be more to do.
fn delete_namespace_content(
    objects: &mut ObjectTxn<'_, '_>,
    name: &str,
    limit: usize,
) -> Result<bool, StatusError> {
    let mut deleted = 0;
    let mut remain = false;
    for kind in kinds::stored().filter(|kind| kind.namespaced) {
        for object in objects.list(kind, Some(name))? {
            remain = true;
            if meta::is_deleting(&object) && meta::at(&object, "metadata.deletionGracePeriodSeconds") == 0 {
                continue;
            }
            if deleted == limit {
                return Ok(true);
            }
            let id = ObjectId {
                kind: kind.id,
                namespace: name.to_owned(),
                name: meta::text(&object, "name").to_owned(),
            };
            deleted += usize::from(delete_now(objects, &id)?);
        }
    }
    if remain {
        return Ok(deleted > 0);
    }
    let namespaces = kinds::named("Namespace").expect("the table has Namespaces");
    if let Some(mut object) = objects.find(namespaces, "", name)?.filter(meta::is_deleting) {
        meta::set_in(&mut object, "spec", "finalizers", Vec::<Value>::new());
        let id = ObjectId { kind: namespaces.id, namespace: String::new(), name: name.to_owned() };
        store_or_remove(objects, &id, object)?;
    }
    Ok(false)
}

/// Deletes without a grace period; false if a policy refuses that, which must not keep other objects.
fn delete_now(objects: &mut ObjectTxn<'_, '_>, id: &ObjectId) -> Result<bool, StatusError> {
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    match delete_in(objects, id.kind(), &id.namespace, &id.name, &options, &user()) {
        Err(error) if error.code >= 500 => Err(error),
        Err(error) => Ok(error.code == 404),
        Ok(_) => Ok(true),
    }
}

/// Removes a Pod after its grace period; a kubelet does that earlier.
fn delete_terminated_pod(objects: &mut ObjectTxn<'_, '_>, id: &ObjectId) -> Result<bool, StatusError> {
    let Some(pod) = find(objects, id)?.filter(meta::is_deleting) else { return Ok(true) };
    let until = model::Timestamp::parse(meta::text(&pod, "deletionTimestamp"));
    let now = model::Timestamp::from_seconds(objects.now.as_second());
    if until.is_some_and(|until| now < until) {
        return Ok(false);
    }
    delete_now(objects, id)
}
