//! The garbage collector: dependents of deleted owners, finalizers of owners, content of terminating namespaces, Pods
//! past their grace period, expired Events.
//!
//! ```text
//! watches of all kinds --> owner graph --> work: dependents without owner, owners with finalizers, namespaces
//!                                      --> one small transaction each, which reads the objects again
//! ```
//!
//! The owner graph is only a hint: each transaction reads the objects again, so a stale graph does no harm.

mod actions;
mod owner_graph;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::api::Api;
use crate::engine::{
    ListQuery, ResourceId, Revision, StoreReadError, StoredObject, WatchEvent, WatchEventType,
};
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::ObjectTxn;

use owner_graph::{ObjectId, OwnerGraph};

const TICK: Duration = Duration::from_millis(500);
/// Pause after each batch of events, so that a high write rate comes in few batches.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// Queued events.
const QUEUE: usize = 1_024;
/// Objects per read.
const PAGE: usize = 500;
/// Expired objects per transaction.
const EXPIRE_LIMIT: usize = 500;

/// Runs until `stop` turns true.
pub async fn run(api: Api, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            // Returns only when a watch fell too far behind; then the graph is built again.
            () = collect(&api) => {}
        }
        tokio::time::sleep(TICK).await;
    }
}

enum GraphEvent {
    Event(&'static ResourceKind, Arc<WatchEvent>),
    WatchLost,
}

async fn collect(api: &Api) {
    let mut graph = OwnerGraph::default();
    let Ok(revision) = read_all(api, &mut graph) else { return };
    let (sender, mut events) = mpsc::channel(QUEUE);
    let mut watches = tokio::task::JoinSet::new();
    for kind in kinds::stored() {
        let Ok(watcher) = api.engine().watch(ResourceId(kind.id), None, revision) else { return };
        watches.spawn(forward(kind, watcher, sender.clone()));
    }
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // The tick first: events never stop in a busy store.
            biased;
            _ = tick.tick() => {
                actions::run(api, &mut graph).await;
                let expire = |objects: &mut ObjectTxn<'_, '_>, limit| objects.expire(limit);
                actions::commit_in_steps(api, EXPIRE_LIMIT, expire).await;
                // A slow run must not take the time of the events.
                tick.reset();
            }
            item = events.recv() => match item {
                Some(GraphEvent::Event(kind, event)) => apply(&mut graph, kind, &event),
                Some(GraphEvent::WatchLost) | None => return,
            },
        }
        // Deletes need not wait for the tick.
        if events.is_empty() && graph.is_due() {
            actions::run(api, &mut graph).await;
        }
    }
}

fn read_all(api: &Api, graph: &mut OwnerGraph) -> Result<Revision, StoreReadError> {
    let revision = api.engine().revision();
    for kind in kinds::stored() {
        let mut after = None;
        loop {
            let all = ListQuery::all(ResourceId(kind.id));
            let query = ListQuery { at: Some(revision), limit: PAGE, start_after: after.as_ref(), ..all };
            let page = api.engine().list(&query)?;
            for stored in page.items.iter().filter(|stored| !is_plain(&stored.json)) {
                if let Ok(object) = serde_json::from_slice(&stored.json) {
                    graph.observe(&object_id(kind, stored), &object);
                }
            }
            after = page.more;
            if after.is_none() {
                break;
            }
        }
    }
    graph.check_all();
    Ok(revision)
}

fn object_id(kind: &'static ResourceKind, stored: &StoredObject) -> ObjectId {
    ObjectId { kind: kind.id, namespace: stored.key.namespace.to_string(), name: stored.key.name.to_string() }
}

async fn forward(
    kind: &'static ResourceKind,
    mut watcher: crate::engine::Watcher,
    sender: mpsc::Sender<GraphEvent>,
) {
    loop {
        let Ok(events) = watcher.events().await else {
            let _ = sender.send(GraphEvent::WatchLost).await;
            return;
        };
        for event in events.into_iter().filter(|event| concerns_graph(event)) {
            if sender.send(GraphEvent::Event(kind, event)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(BATCH_DELAY).await;
    }
}

fn concerns_graph(event: &WatchEvent) -> bool {
    event.kind == WatchEventType::Deleted
        || !is_plain(&event.json)
        || !event.before.as_deref().is_none_or(is_plain)
}

fn apply(graph: &mut OwnerGraph, kind: &'static ResourceKind, event: &WatchEvent) {
    let Ok(object) = serde_json::from_slice::<Value>(&event.json) else { return };
    let id = ObjectId {
        kind: kind.id,
        namespace: event.key.namespace.to_string(),
        name: event.key.name.to_string(),
    };
    if event.kind == WatchEventType::Deleted {
        graph.forget(&id, meta::text(&object, "uid"));
    } else {
        graph.observe(&id, &object);
    }
}

/// Whether the text of an object shows neither an owner nor a deletion. Most events are such, and parsing them would cost
/// more than all other work here.
fn is_plain(json: &[u8]) -> bool {
    let names = ["\"ownerReferences\"", "\"deletionTimestamp\""];
    std::str::from_utf8(json).is_ok_and(|text| names.iter().all(|name| !text.contains(name)))
}
