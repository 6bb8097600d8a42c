//! What the collector does: each act is one small transaction that looks again before it changes anything.

use serde_json::Value;

use super::index::{Index, Place, owner_kind, owners, text};
use crate::api::{Api, DeleteOptions, FOREGROUND, ORPHAN, Propagation, delete_in, is_free_to_go, remove};
use crate::kinds;
use crate::meta;
use crate::objects::Objects;
use crate::status::Failure;

const USER: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// How many objects of a namespace go in one transaction.
const AT_ONCE: usize = 100;

/// Does what is due. What fails stays due and is tried again with the next tick.
pub(super) async fn work(api: &Api, index: &mut Index) {
    index.begin();
    for place in std::mem::take(&mut index.doubtful) {
        let doubted = place.clone();
        if api.commit(false, move |objects| judge(objects, &doubted)).await.is_err() {
            index.doubtful.insert(place);
        }
    }
    let waiting: Vec<(Place, String)> =
        index.waiting.iter().map(|(place, uid)| (place.clone(), uid.clone())).collect();
    for (place, uid) in waiting {
        let dependents = index.dependents(&uid);
        let owner = place.clone();
        if let Ok(true) = api.commit(false, move |objects| attend(objects, &owner, &uid, &dependents)).await {
            index.waiting.remove(&place);
        }
    }
    for namespace in index.ending.clone() {
        while let Ok(true) = api
            .commit(false, {
                let name = namespace.clone();
                move |objects| empty(objects, &name)
            })
            .await
        {}
    }
    for place in index.leaving.clone() {
        let pod = place.clone();
        if let Ok(true) = api.commit(false, move |objects| let_go(objects, &pod)).await {
            index.leaving.remove(&place);
        }
    }
}

fn find(objects: &Objects<'_, '_>, place: &Place) -> Result<Option<Value>, Failure> {
    objects.find(place.kind(), &place.namespace, &place.name)
}

/// Whether the owner that a reference names exists. One of a kind that is not served here counts as existing.
fn exists(objects: &Objects<'_, '_>, dependent: &Value, owner: &Value) -> Result<bool, Failure> {
    let Some(kind) = owner_kind(owner) else { return Ok(true) };
    let namespace = if kind.namespaced { meta::text(dependent, "namespace") } else { "" };
    let found = objects.find(kind, namespace, &text(owner, "name"))?;
    Ok(found.is_some_and(|found| meta::text(&found, "uid") == text(owner, "uid")))
}

/// Deletes a dependent of which no owner is left; of one that has others, only the references go.
fn judge(objects: &mut Objects<'_, '_>, place: &Place) -> Result<(), Failure> {
    let Some(mut object) = find(objects, place)? else { return Ok(()) };
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
        return delete(objects, place, Propagation::Background);
    }
    meta::set(&mut object, "ownerReferences", left);
    objects.put(place.kind(), &mut object)
}

fn delete(objects: &mut Objects<'_, '_>, place: &Place, propagation: Propagation) -> Result<(), Failure> {
    let options = DeleteOptions { propagation_policy: Some(propagation), ..DeleteOptions::default() };
    match delete_in(objects, place.kind(), &place.namespace, &place.name, &options, USER) {
        Err(failure) if failure.code != 404 => Err(failure),
        _ => Ok(()),
    }
}

/// Orphans or deletes the dependents of an owner that waits for that, and lets it go when none is left.
fn attend(
    objects: &mut Objects<'_, '_>,
    owner: &Place,
    uid: &str,
    dependents: &[Place],
) -> Result<bool, Failure> {
    let Some(mut object) = find(objects, owner)? else { return Ok(true) };
    let orphans = meta::finalizers(&object).contains(&ORPHAN);
    let mut blocked = false;
    for place in dependents {
        let Some(mut dependent) = find(objects, place)? else { continue };
        let others: Vec<Value> =
            owners(&dependent).filter(|other| text(other, "uid") != uid).cloned().collect();
        if others.len() == owners(&dependent).count() {
            continue;
        }
        if orphans {
            meta::set(&mut dependent, "ownerReferences", others);
            meta::tidy(&mut dependent);
            objects.put(place.kind(), &mut dependent)?;
            continue;
        }
        let blocks =
            owners(&dependent).any(|other| text(other, "uid") == uid && other["blockOwnerDeletion"] == true);
        if !meta::is_deleting(&dependent) {
            delete(objects, place, Propagation::Background)?;
        }
        blocked |= blocks && find(objects, place)?.is_some();
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
    meta::tidy(&mut object);
    store_or_remove(objects, owner, object)?;
    Ok(true)
}

fn store_or_remove(objects: &mut Objects<'_, '_>, place: &Place, mut object: Value) -> Result<(), Failure> {
    if is_free_to_go(place.kind(), &object) {
        remove(objects, place.kind(), &mut object)
    } else {
        objects.put(place.kind(), &mut object)
    }
}

/// Deletes some of what is in a namespace, and in the end the namespace; true if there may be more to do.
fn empty(objects: &mut Objects<'_, '_>, name: &str) -> Result<bool, Failure> {
    let mut found = 0;
    let mut remain = false;
    for kind in kinds::stored().filter(|kind| kind.namespaced) {
        for object in objects.list(kind, Some(name))? {
            remain = true;
            if meta::is_deleting(&object) && meta::at(&object, "metadata.deletionGracePeriodSeconds") == 0 {
                continue;
            }
            if found == AT_ONCE {
                return Ok(true);
            }
            found += 1;
            let place = Place {
                kind: kind.id,
                namespace: name.to_owned(),
                name: meta::text(&object, "name").to_owned(),
            };
            delete_now(objects, &place)?;
        }
    }
    if remain {
        return Ok(found > 0);
    }
    let namespaces = kinds::named("Namespace").expect("the table has Namespaces");
    if let Some(mut object) = objects.find(namespaces, "", name)?.filter(meta::is_deleting) {
        meta::set_in(&mut object, "spec", "finalizers", Vec::<Value>::new());
        let place = Place { kind: namespaces.id, namespace: String::new(), name: name.to_owned() };
        store_or_remove(objects, &place, object)?;
    }
    Ok(false)
}

/// With its namespace an object gets no time of its own.
fn delete_now(objects: &mut Objects<'_, '_>, place: &Place) -> Result<(), Failure> {
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    match delete_in(objects, place.kind(), &place.namespace, &place.name, &options, USER) {
        Err(failure) if failure.code != 404 => Err(failure),
        _ => Ok(()),
    }
}

/// Removes a Pod whose grace period is over. Where a kubelet runs it does that itself, and earlier.
fn let_go(objects: &mut Objects<'_, '_>, place: &Place) -> Result<bool, Failure> {
    let Some(pod) = find(objects, place)?.filter(meta::is_deleting) else { return Ok(true) };
    let until = model::Timestamp::parse(meta::text(&pod, "deletionTimestamp"));
    let now = model::Timestamp::from_seconds(objects.now.as_second());
    if until.is_some_and(|until| now < until) {
        return Ok(false);
    }
    delete_now(objects, place)?;
    Ok(true)
}
