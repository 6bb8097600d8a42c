//! The history check over the real API: `zoneward up` with many writers and watchers on it by TLS is killed at random
//! moments and started again. Nothing acknowledged is lost, versions only rise, each watcher sees every change once
//! and in order.
//!
//! ```text
//!  start -> writers and watchers (kube) -> kill -9 -> start again, each watcher goes on where it was -> ... -> compare
//! ```

#[path = "../../store/tests/dice.rs"]
mod dice;

use crate::started;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dice::{Dice, seed};
use fixtures::eventually_async;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use started::{Up, folder};

const WRITERS: u64 = 8;
const WATCHERS: usize = 5;
/// Keys of each writer, and keys that all of them write.
const OWN: u64 = 4;
const SHARED: u64 = 4;
/// The last write of all.
const END: &str = "end";

/// One change as a watcher saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    version: u64,
    deleted: bool,
    name: String,
    content: String,
}

/// What the server promised, and what watchers saw.
#[derive(Default)]
struct History {
    /// Acknowledged puts by their version.
    puts: BTreeMap<u64, (String, String)>,
    /// Acknowledged deletes: name and content of what went.
    deletes: Vec<(String, String)>,
    watchers: [Vec<Seen>; WATCHERS],
    /// Where each watcher goes on.
    versions: [u64; WATCHERS],
}

type Shared = Arc<Mutex<History>>;

#[test]
fn soak_history_over_the_api_survives_kill_9() {
    let (seed, seconds) = (seed(), std::env::var("ZONEWARD_SOAK_SECONDS").ok());
    let soak = Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(10));
    let data = folder("history");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(live_and_die(seed, soak, &data));
    std::fs::remove_dir_all(&data).unwrap();
}

async fn live_and_die(seed: u64, soak: Duration, data: &Path) {
    let (mut dice, end) = (Dice::new(seed), Instant::now() + soak);
    let history = Shared::default();
    let mut round = 0;
    // A slow machine has few lives, and those that are compared have to be lived.
    while Instant::now() < end || !has_history(&history) {
        round += 1;
        if dice.once_in(5) {
            // Killed while it starts.
            let up = Up::spawn(data, ALONE);
            tokio::time::sleep(Duration::from_millis(dice.below(120))).await;
            drop(up);
            continue;
        }
        one_life(&history, data, round, &mut dice).await;
    }
    let (up, client) = start(data).await;
    finish(&history, &client).await;
    drop(up);
    let history = history.lock().unwrap();
    println!(
        "{round} kills, {} puts and {} deletes acknowledged, {} changes seen by each of {WATCHERS} watchers",
        history.puts.len(),
        history.deletes.len(),
        history.watchers[0].len()
    );
    assert!(history.puts.len() > 1 && !history.deletes.is_empty());
}

/// Only the API.
const ALONE: &[&str] = &["--no-controllers"];

async fn start(data: &Path) -> (Up, Client) {
    let up = Up::start(data, ALONE);
    let kubeconfig = Kubeconfig::read_from(&up.kubeconfig).expect("it starts after every kill");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    (up, Client::try_from(config).unwrap())
}

async fn one_life(history: &Shared, data: &Path, round: u64, dice: &mut Dice) {
    let (up, client) = start(data).await;
    let before = history.lock().unwrap().puts.len();
    let mut tasks = tokio::task::JoinSet::new();
    for watcher in 0..WATCHERS {
        tasks.spawn(watch(Api::default_namespaced(client.clone()), history.clone(), watcher));
    }
    for writer in 0..WRITERS {
        let api = Api::default_namespaced(client.clone());
        tasks.spawn(write(api, history.clone(), round, writer, Dice::new(dice.roll())));
    }
    // Some die before anything was acknowledged.
    if !dice.once_in(4) {
        until_acknowledged(history, before).await;
    }
    tokio::time::sleep(Duration::from_millis(dice.below(900))).await;
    drop(up);
    // Connections break at once; a request that waits for an answer which never comes would be a bug of its own.
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(task) = tasks.join_next().await {
            task.expect("no watcher and no writer saw what must not be");
        }
    });
    ended.await.expect("clients notice that the server is gone");
}

/// Waits for a write of this life.
async fn until_acknowledged(history: &Shared, before: usize) {
    eventually_async("an acknowledged write", async || history.lock().unwrap().puts.len() != before).await;
}

/// Whether there is something to compare.
fn has_history(history: &Shared) -> bool {
    let history = history.lock().unwrap();
    history.puts.len() > 1 && !history.deletes.is_empty()
}

/// Writes until the server is gone: puts of own and shared keys, and deletes of own keys right after a put, so
/// that it is known what went.
async fn write(api: Api<ConfigMap>, history: Shared, round: u64, writer: u64, mut dice: Dice) {
    for number in 0.. {
        let shared = dice.once_in(3);
        let name = match shared {
            true => format!("shared-{}", dice.below(SHARED)),
            false => format!("own-{writer}-{}", dice.below(OWN)),
        };
        let content = format!("{round}/{writer}/{number}");
        match put(&api, &name, &content).await {
            Ok(Some(version)) => {
                let before = history.lock().unwrap().puts.insert(version, (name.clone(), content.clone()));
                assert_eq!(before, None, "version {version} was given twice");
            }
            // Somebody else was quicker, or the server is gone.
            Ok(None) => continue,
            Err(_) => return,
        }
        if !shared && dice.once_in(4) {
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => history.lock().unwrap().deletes.push((name, content)),
                Err(_) => return,
            }
        }
    }
}

/// The version of a put; `None` if it lost a race.
async fn put(api: &Api<ConfigMap>, name: &str, content: &str) -> Result<Option<u64>, kube::Error> {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.data = Some([("content".to_owned(), content.to_owned())].into());
    let replaced = match api.replace(name, &PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            api.create(&PostParams::default(), &object).await
        }
        other => other,
    };
    match replaced {
        Ok(object) => Ok(Some(version(&object))),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

fn version(object: &ConfigMap) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

fn content(object: &ConfigMap) -> String {
    object.data.as_ref().and_then(|data| data.get("content")).cloned().unwrap_or_default()
}

/// Watches from where this watcher was until the server is gone, or until the last write of all.
async fn watch(api: Api<ConfigMap>, history: Shared, watcher: usize) {
    let from = history.lock().unwrap().versions[watcher];
    let Ok(stream) = api.watch(&WatchParams::default(), &from.max(1).to_string()).await else { return };
    let mut stream = stream.boxed();
    while let Some(Ok(event)) = stream.next().await {
        let (object, deleted) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                let version = bookmark.metadata.resource_version.parse().unwrap();
                let last = &mut history.lock().unwrap().versions[watcher];
                assert!(version >= *last, "watcher {watcher}: a bookmark goes back");
                *last = version;
                continue;
            }
            WatchEvent::Error(status) => panic!("watcher {watcher} was sent away: {status:?}"),
        };
        let seen =
            Seen { version: version(&object), deleted, name: object.name_any(), content: content(&object) };
        let mut history = history.lock().unwrap();
        assert!(seen.version > history.versions[watcher], "watcher {watcher} went back to {seen:?}");
        history.versions[watcher] = seen.version;
        let last = seen.name == END;
        history.watchers[watcher].push(seen);
        if last {
            return;
        }
    }
}

/// Lets all watchers catch up, and compares what they saw with what was promised and with what is there.
async fn finish(history: &Shared, client: &Client) {
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    put(&api, END, END).await.unwrap().unwrap();
    for watcher in 0..WATCHERS {
        let watch = watch(api.clone(), history.clone(), watcher);
        tokio::time::timeout(Duration::from_secs(60), watch).await.expect("a watcher catches up");
    }
    let there = api.list(&ListParams::default()).await.unwrap();
    let there: BTreeMap<String, (u64, String)> =
        there.items.iter().map(|object| (object.name_any(), (version(object), content(object)))).collect();
    let history = history.lock().unwrap();
    let story = &history.watchers[0];
    assert_eq!(story.last().map(|seen| seen.name.as_str()), Some(END), "the watch ended too early");
    for (number, other) in history.watchers.iter().enumerate() {
        assert!(other == story, "watcher {number} saw another history than watcher 0");
    }
    let by_version: BTreeMap<u64, &Seen> = story.iter().map(|seen| (seen.version, seen)).collect();
    for (version, (name, content)) in &history.puts {
        let seen = by_version.get(version).unwrap_or_else(|| panic!("{name} at {version} is lost"));
        assert_eq!((&seen.name, &seen.content, seen.deleted), (name, content, false));
    }
    let went = story.iter().filter(|seen| seen.deleted).map(|seen| (&seen.name, &seen.content));
    let went: BTreeSet<_> = went.collect();
    for (name, content) in &history.deletes {
        assert!(went.contains(&(name, content)), "the delete of {name} ({content}) is lost");
    }
    let mut replayed = BTreeMap::new();
    for seen in story {
        if seen.deleted {
            replayed.remove(&seen.name);
        } else {
            replayed.insert(seen.name.clone(), (seen.version, seen.content.clone()));
        }
    }
    assert_eq!(replayed, there, "what watchers saw does not lead to what is there");
}
