//! The garbage collector: objects whose owners are gone, namespaces that are to end, Pods whose time is up,
//! events that are old.
//!
//! ```text
//! every kind's watch --> index of owners --> due: owners gone, owners that wait, namespaces that end
//!                                        --> one small transaction each, looking again before it acts
//! ```
//!
//! The index only says where to look. Each act reads the objects anew in its transaction, so an index that is a
//! moment behind can do no harm.

mod act;
mod index;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::api::Api;
use crate::engine::{Change, ChangeKind, Query, ReadError, ResourceId, Revision, Stored};
use crate::kinds::{self, Kind};
use crate::meta;

use index::{Index, Place};

const TICK: Duration = Duration::from_millis(500);
/// How long changes of a kind gather before the next look: with a thousand writes per second, a look at each would cost
/// more than what is seen.
const GATHER: Duration = Duration::from_millis(10);
/// How many changes may wait for the collector.
const QUEUE: usize = 1_024;
/// How many objects are read at once.
const PAGE: usize = 500;
/// How many events end in one step.
const EXPIRE_AT_ONCE: usize = 500;

/// Collects until `stop` turns true.
pub async fn run(api: Api, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            // It comes back only when a watch fell too far behind: then everything is read anew.
            () = collect(&api) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        tokio::time::sleep(TICK).await;
    }
}

enum News {
    Changed(&'static Kind, Arc<Change>),
    Lost,
}

async fn collect(api: &Api) {
    let mut index = Index::default();
    let Ok(revision) = read_all(api, &mut index) else { return };
    let (sender, mut news) = mpsc::channel(QUEUE);
    let mut watches = tokio::task::JoinSet::new();
    for kind in kinds::stored() {
        let Ok(watcher) = api.engine().watch(ResourceId(kind.id), None, revision) else { return };
        watches.spawn(forward(kind, watcher, sender.clone()));
    }
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            item = news.recv() => match item {
                Some(News::Changed(kind, change)) => notice(&mut index, kind, &change),
                Some(News::Lost) | None => return,
            },
            _ = tick.tick() => {
                act::work(api, &mut index).await;
                expire(api).await;
            }
        }
        // A delete that others wait for should not wait for the tick.
        if news.is_empty() && index.is_due() {
            act::work(api, &mut index).await;
        }
    }
}

fn read_all(api: &Api, index: &mut Index) -> Result<Revision, ReadError> {
    let revision = api.engine().revision();
    for kind in kinds::stored() {
        let mut after = None;
        loop {
            let all = Query::all(ResourceId(kind.id));
            let query = Query { at: Some(revision), limit: PAGE, start_after: after.as_ref(), ..all };
            let page = api.engine().list(&query)?;
            for stored in page.items.iter().filter(|stored| !is_plain(&stored.json)) {
                if let Ok(object) = serde_json::from_slice(&stored.json) {
                    index.seen(&place(kind, stored), &object);
                }
            }
            after = page.more;
            if after.is_none() {
                break;
            }
        }
    }
    index.doubt_all();
    Ok(revision)
}

fn place(kind: &'static Kind, stored: &Stored) -> Place {
    Place { kind: kind.id, namespace: stored.key.namespace.to_string(), name: stored.key.name.to_string() }
}

async fn forward(kind: &'static Kind, mut watcher: crate::engine::Watcher, sender: mpsc::Sender<News>) {
    loop {
        let changes = watcher.changes().await;
        let Ok(changes) = changes else {
            let _ = sender.send(News::Lost).await;
            return;
        };
        for change in changes.into_iter().filter(|change| is_noteworthy(change)) {
            if sender.send(News::Changed(kind, change)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(GATHER).await;
    }
}

/// Whether the index has something to learn from a change.
fn is_noteworthy(change: &Change) -> bool {
    change.kind == ChangeKind::Deleted
        || !is_plain(&change.json)
        || !change.before.as_deref().is_none_or(is_plain)
}

fn notice(index: &mut Index, kind: &'static Kind, change: &Change) {
    let Ok(object) = serde_json::from_slice::<Value>(&change.json) else { return };
    let place = Place {
        kind: kind.id,
        namespace: change.key.namespace.to_string(),
        name: change.key.name.to_string(),
    };
    if change.kind == ChangeKind::Deleted {
        index.gone(&place, meta::text(&object, "uid"));
    } else {
        index.seen(&place, &object);
    }
}

/// Whether an object, by a look at its text, has no owner and is not being deleted. Such are most of all changes, and
/// the index has nothing to learn from them: reading each as JSON would cost more than all else here.
fn is_plain(json: &[u8]) -> bool {
    let names = ["\"ownerReferences\"", "\"deletionTimestamp\""];
    std::str::from_utf8(json).is_ok_and(|text| names.iter().all(|name| !text.contains(name)))
}

/// Ends objects whose time is up. What fails is tried again with the next tick.
async fn expire(api: &Api) {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let engine = api.engine().clone();
    let last = |stored: &Stored, revision: Revision| {
        let mut object: Value = serde_json::from_slice(&stored.json).unwrap_or_default();
        meta::set_resource_version(&mut object, revision.0);
        bytes::Bytes::from(object.to_string())
    };
    let _ = tokio::task::spawn_blocking(move || engine.expire(now, EXPIRE_AT_ONCE, last)).await;
}
