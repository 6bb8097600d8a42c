//! The controllers of RBAC: the rules of aggregated ClusterRoles, and the ServiceAccount `default` of each namespace.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::rbac::aggregated_rules;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::{Api, Caller, WriteContext, create_in};
use crate::engine::{ListQuery, ResourceId, Revision, StoreReadError, WatchEvent, WatchEventType};
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::{ObjectTxn, key};
use crate::query::WriteOptions;
use crate::status::StatusError;

/// Pause after each batch of events, so that many changes cost one pass.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Passes over all roles: the longest chain of roles that aggregate each other.
const MAX_PASSES: usize = 16;
/// The ServiceAccount of Pods that name none.
const DEFAULT: &str = "default";

fn kind(word: &str) -> &'static ResourceKind {
    kinds::named(word).expect("the table has the kinds of RBAC")
}

/// Runs until `stop` turns true.
pub async fn run(api: Api, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            // Returns only when a watch fell too far behind, or a write failed.
            _ = keep(&api) => {}
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn keep(api: &Api) -> Result<(), StatusError> {
    let revision = api.engine().revision();
    let open = |word: &str, from: Revision| api.engine().watch(ResourceId(kind(word).id), None, from);
    let mut roles = open("ClusterRole", revision).map_err(StatusError::internal)?;
    let mut namespaces = open("Namespace", revision).map_err(StatusError::internal)?;
    let mut accounts = open("ServiceAccount", revision).map_err(StatusError::internal)?;
    let (mut aggregates, mut adds) = (true, true);
    loop {
        if std::mem::take(&mut aggregates) {
            aggregate(api).await?;
        }
        if std::mem::take(&mut adds) {
            add_default_accounts(api).await?;
        }
        tokio::select! {
            biased;
            events = roles.events() => aggregates = events.map(|_| true).map_err(StatusError::internal)?,
            events = namespaces.events() => {
                let is_new = |event: &Arc<WatchEvent>| event.kind == WatchEventType::Added;
                adds = events.map_err(StatusError::internal)?.iter().any(is_new);
            }
            events = accounts.events() => {
                let is_gone = |event: &Arc<WatchEvent>| {
                    event.kind == WatchEventType::Deleted && &*event.key.name == DEFAULT
                };
                adds = events.map_err(StatusError::internal)?.iter().any(is_gone);
            }
        }
        tokio::time::sleep(BATCH_DELAY).await;
    }
}

/// Brings the rules of aggregated ClusterRoles up to date.
pub(crate) async fn aggregate(api: &Api) -> Result<(), StatusError> {
    // Most changes concern no aggregated role: look before a transaction.
    let stored = all(api, kind("ClusterRole")).map_err(StatusError::internal)?;
    if stored.iter().any(|role| aggregated_rules(role, &stored).is_some()) {
        api.commit(false, aggregate_in).await?;
    }
    Ok(())
}

fn aggregate_in(objects: &mut ObjectTxn<'_, '_>) -> Result<(), StatusError> {
    // The rights of a role that was deleted on a full disk end there, too.
    objects.allow_on_full_disk();
    let kind = kind("ClusterRole");
    let mut roles = objects.list(kind, None)?;
    roles.sort_by(|a, b| meta::text(a, "name").cmp(meta::text(b, "name")));
    for _ in 0..MAX_PASSES {
        let mut changed = false;
        for at in 0..roles.len() {
            if let Some(rules) = aggregated_rules(&roles[at], &roles) {
                roles[at]["rules"] = rules.into();
                objects.put(kind, &mut roles[at])?;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

/// All objects of a kind, sorted by name.
fn all(api: &Api, kind: &ResourceKind) -> Result<Vec<Value>, StoreReadError> {
    let page = api.engine().list(&ListQuery::all(ResourceId(kind.id)))?;
    let mut objects: Vec<Value> =
        page.items.iter().filter_map(|stored| serde_json::from_slice(&stored.json).ok()).collect();
    objects.sort_by(|a, b| meta::text(a, "name").cmp(meta::text(b, "name")));
    Ok(objects)
}

/// Creates the missing ServiceAccounts `default`.
async fn add_default_accounts(api: &Api) -> Result<(), StatusError> {
    let accounts = kind("ServiceAccount");
    for namespace in all(api, kind("Namespace")).map_err(StatusError::internal)? {
        let name = meta::text(&namespace, "name").to_owned();
        let found = api.engine().get(&key(accounts, &name, DEFAULT)).map_err(StatusError::internal)?;
        if found.is_some() || meta::is_deleting(&namespace) {
            continue;
        }
        let context = WriteContext {
            policies: false,
            ..api.write_context(accounts, &Caller::own(), WriteOptions::default())
        };
        let object = json!({"metadata": {"name": DEFAULT, "namespace": name}});
        let created = api.commit(false, move |objects| create_in(objects, &context, object).map(drop)).await;
        match created {
            // Created concurrently, or the namespace is being deleted.
            Err(error) if !matches!(error.code, 403 | 404 | 409) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
