//! kube's reflector, watcher, Controller and Recorder, and Leases, on the embedded API by each way to it.

mod clients;

use crate::served;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fixtures::eventually_async;
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Service};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use served::Served;
use store::engine::EngineOptions;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

/// What a watcher went through.
#[derive(Default)]
struct Counts {
    lists: AtomicU64,
    errors: AtomicU64,
    changes: AtomicU64,
}

impl Counts {
    fn note(&self, event: &Result<watcher::Event<ConfigMap>, watcher::Error>) {
        let counter = match event {
            Ok(watcher::Event::Init) => &self.lists,
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => &self.changes,
            Ok(watcher::Event::InitApply(_) | watcher::Event::InitDone) => return,
            Err(_) => &self.errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.lists), of(&self.errors), of(&self.changes))
    }
}

/// A reflector that runs by itself.
struct Follower {
    way: &'static str,
    store: Store<ConfigMap>,
    counts: Arc<Counts>,
}

fn follow(way: &'static str, client: Client, config: watcher::Config) -> Follower {
    let counts = Arc::new(Counts::default());
    let (store, writer) = reflector::store();
    let seen = counts.clone();
    let events = watcher::watcher(Api::<ConfigMap>::all(client), config);
    let stream = reflector::reflector(writer, events.inspect(move |event| seen.note(event)));
    tokio::spawn(stream.for_each(|_| async {}));
    Follower { way, store, counts }
}

async fn followers(served: &Served) -> Vec<Follower> {
    let (plain, streaming) = (watcher::Config::default, || watcher::Config::default().streaming_lists());
    let mut all = Vec::new();
    for (listing, config) in [("list and watch", plain()), ("streaming list", streaming())] {
        let named = |way: &str| -> &'static str { format!("{way}, {listing}").leak() };
        all.push(follow(named("TLS"), clients::by_tls(served).await, config.clone()));
        all.push(follow(named("unix socket"), clients::by_socket(served), config.clone()));
        all.push(follow(named("in process"), clients::in_process(served), config));
    }
    for follower in &all {
        tokio::time::timeout(Duration::from_secs(60), follower.store.wait_until_ready())
            .await
            .unwrap_or_else(|_| panic!("{} is ready within a minute", follower.way))
            .unwrap();
    }
    all
}

/// Every object with its version.
fn versions<'a>(objects: impl Iterator<Item = &'a ConfigMap>) -> BTreeMap<String, String> {
    let entry = |object: &ConfigMap| {
        let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
        (name, object.resource_version().unwrap_or_default())
    };
    objects.map(entry).collect()
}

/// Waits until a reflector shows what the API lists.
async fn agree(follower: &Follower, client: &Client) {
    let listed = Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let wanted = versions(listed.items.iter());
    eventually_async(follower.way, async || {
        let state = follower.store.state();
        let shown = versions(state.iter().map(Arc::as_ref));
        let counts = || format!("{} shown, {} listed", shown.len(), wanted.len());
        (shown == wanted).then_some(()).ok_or_else(counts)
    })
    .await;
}

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        ..Default::default()
    }
}

#[test]
fn reflectors_follow_by_every_way_and_list_once() {
    let served = Served::new("kube", EngineOptions::default());
    Runtime::new().unwrap().block_on(async {
        let client = clients::by_tls(&served).await;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        maps.create(&PostParams::default(), &config_map("before")).await.unwrap();
        let followers = followers(&served).await;
        for i in 0..20 {
            maps.create(&PostParams::default(), &config_map(&format!("c{i}"))).await.unwrap();
        }
        for i in 0..20 {
            let patch = Patch::Merge(json!({"data": {"n": i.to_string()}}));
            maps.patch(&format!("c{i}"), &PatchParams::default(), &patch).await.unwrap();
        }
        maps.delete("c3", &DeleteParams::default()).await.unwrap();
        for follower in &followers {
            agree(follower, &client).await;
            assert_eq!(follower.counts.read(), (1, 0, 41), "{}: lists, errors, changes", follower.way);
        }
    });
}

struct Shared {
    client: Client,
    recorder: Recorder,
}

/// Gives every Service a ConfigMap that it owns, and says so.
async fn reconcile(service: Arc<Service>, shared: Arc<Shared>) -> Result<Action, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(shared.client.clone(), "default");
    let mut wanted = config_map(&service.name_any());
    wanted.metadata.owner_references = Some(service.controller_owner_ref(&()).into_iter().collect());
    match maps.create(&PostParams::default(), &wanted).await {
        Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Action::await_change()),
        made => made?,
    };
    let event = Event {
        type_: EventType::Normal,
        reason: "Made".to_owned(),
        note: Some("its ConfigMap is there".to_owned()),
        action: "Make".to_owned(),
        secondary: None,
    };
    // Twice, so that the recorder makes a series of it by a patch.
    for _ in 0..2 {
        shared.recorder.publish(&event, &service.object_ref(&())).await?;
    }
    Ok(Action::await_change())
}

#[test]
fn a_controller_reconciles_records_and_sees_what_it_owns() {
    let served = Served::new("kube", EngineOptions::default());
    Runtime::new().unwrap().block_on(async {
        for (way, client) in [
            ("tls", clients::by_tls(&served).await),
            ("socket", clients::by_socket(&served)),
            ("local", clients::in_process(&served)),
        ] {
            run_controller(way, client).await;
        }
    });
}

async fn run_controller(way: &str, client: Client) {
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let recorder = Recorder::new(client.clone(), way.to_owned().into());
    let shared = Arc::new(Shared { client: client.clone(), recorder });
    let controller = Controller::new(services.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(50)), shared);
    let running = tokio::spawn(controller.for_each(|_| async {}));
    let spec = json!({"metadata": {"name": way}, "spec": {"ports": [{"port": 80}]}});
    services.create(&PostParams::default(), &serde_json::from_value(spec).unwrap()).await.unwrap();
    eventually_async("it is so", || async { maps.get_opt(way).await.unwrap().is_some() }).await;
    // Its owner is told when it goes, and makes it again.
    let uid = maps.get(way).await.unwrap().uid();
    maps.delete(way, &DeleteParams::default()).await.unwrap();
    eventually_async("it is so", || async {
        maps.get_opt(way).await.unwrap().is_some_and(|map| map.uid() != uid)
    })
    .await;
    let events: Api<CoreEvent> = Api::namespaced(client, "default");
    let about = ListParams::default().fields(&format!("involvedObject.name={way},reason=Made"));
    eventually_async("it is so", || async {
        let told = events.list(&about).await.unwrap().items;
        told.iter().any(|event| event.series.as_ref().is_some_and(|series| series.count >= Some(2)))
    })
    .await;
    let told = events.list(&about).await.unwrap().items.remove(0);
    assert_eq!(told.message.as_deref(), Some("its ConfigMap is there"), "{way}");
    assert_eq!(told.reporting_component.as_deref(), Some(way));
    running.abort();
    services.delete(way, &DeleteParams::default()).await.unwrap();
    // The garbage collector takes what it owned.
    eventually_async("it is so", || async { maps.get_opt(way).await.unwrap().is_none() }).await;
}

#[test]
fn of_two_who_take_a_lease_one_gets_it() {
    let served = Served::new("kube", EngineOptions::default());
    Runtime::new().unwrap().block_on(async {
        let leases: Api<Lease> = Api::namespaced(clients::by_tls(&served).await, "kube-system");
        let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.123456Z"}});
        let held =
            leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
        let take = |identity: &str| {
            let mut taken = held.clone();
            taken.spec.as_mut().unwrap().holder_identity = Some(identity.to_owned());
            taken
        };
        let others: Api<Lease> = Api::namespaced(clients::by_socket(&served), "kube-system");
        let (b, c) = (take("b"), take("c"));
        let params = PostParams::default();
        let (first, second) =
            tokio::join!(leases.replace("leader", &params, &b), others.replace("leader", &params, &c));
        let codes: Vec<u16> = [first, second]
            .into_iter()
            .map(|result| match result {
                Ok(_) => 200,
                Err(kube::Error::Api(status)) => status.code,
                Err(error) => panic!("{error}"),
            })
            .collect();
        assert!(codes.contains(&200) && codes.contains(&409), "{codes:?}");
    });
}

/// What a controller of ConfigMaps has reconciled: each object's version when it last did.
#[derive(Default)]
struct Reconciled {
    versions: Mutex<BTreeMap<String, String>>,
    count: AtomicU64,
    errors: AtomicU64,
    lists: Arc<AtomicU64>,
}

async fn note(map: Arc<ConfigMap>, reconciled: Arc<Reconciled>) -> Result<Action, kube::Error> {
    reconciled.count.fetch_add(1, Ordering::Relaxed);
    reconciled.versions.lock().unwrap().extend(versions(std::iter::once(map.as_ref())));
    Ok(Action::await_change())
}

/// A controller that runs by itself and looks at every ConfigMap whenever it changes.
fn control(served: &Served) -> Arc<Reconciled> {
    let reconciled = Arc::new(Reconciled::default());
    let client = clients::counting(served, reconciled.lists.clone());
    let controller = Controller::new(Api::<ConfigMap>::all(client), watcher::Config::default());
    let done = reconciled.clone();
    let running = controller.run(note, |_, _, _| Action::await_change(), reconciled.clone());
    tokio::spawn(running.for_each(move |result| {
        // An object may be gone before its turn comes.
        let is_error = !matches!(result, Ok(_) | Err(kube::runtime::controller::Error::ObjectNotFound(_)));
        done.errors.fetch_add(u64::from(is_error), Ordering::Relaxed);
        std::future::ready(())
    }));
    reconciled
}

/// The controller comes to the last version of every object that is left, and has listed once.
async fn check_controller(reconciled: &Reconciled, client: &Client) {
    let listed = Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let wanted = versions(listed.items.iter());
    eventually_async("it is so", || async {
        let seen = reconciled.versions.lock().unwrap();
        wanted.iter().all(|(name, version)| seen.get(name) == Some(version))
    })
    .await;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (lists, errors) = (of(&reconciled.lists), of(&reconciled.errors));
    println!("controller: {lists} lists, {errors} errors, {} reconciliations", of(&reconciled.count));
    assert_eq!((lists, errors), (1, 0), "the controller's lists and errors");
}

const OBJECTS: u64 = 500;
const PER_SECOND: u64 = 1_000;

fn soak_seconds() -> u64 {
    std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(10)
}

/// One change: mostly of an object that stays, now and then one comes and goes. Whether it was made: the delete may
/// come before the create where both are under way.
async fn change(maps: Api<ConfigMap>, i: u64) -> bool {
    let done = match i % 100 {
        0 => maps.create(&PostParams::default(), &config_map(&format!("passing-{i}"))).await.map(drop),
        50 => maps.delete(&format!("passing-{}", i - 50), &DeleteParams::default()).await.map(drop),
        _ => {
            let patch = Patch::Merge(json!({"data": {"n": i.to_string()}}));
            maps.patch(&format!("c{}", i % OBJECTS), &PatchParams::default(), &patch).await.map(drop)
        }
    };
    if let Err(error) = &done {
        assert!(i % 100 == 50, "change {i}: {error}");
    }
    done.is_ok()
}

/// Changes things at an even pace; the result is how many changes there were.
async fn keep_changing(client: &Client, seconds: u64) -> u64 {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let room = Arc::new(Semaphore::new(256));
    let mut pace = tokio::time::interval(Duration::from_millis(1_000 / PER_SECOND));
    let mut tasks = tokio::task::JoinSet::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut i, mut made) = (1, 0);
    while Instant::now() < end {
        pace.tick().await;
        let (maps, permit) = (maps.clone(), room.clone().acquire_owned().await.unwrap());
        tasks.spawn(async move {
            let done = change(maps, i).await;
            drop(permit);
            done
        });
        while let Some(done) = tasks.try_join_next() {
            made += u64::from(done.unwrap());
        }
        i += 1;
    }
    made + tasks.join_all().await.into_iter().map(u64::from).sum::<u64>()
}

/// kube's reflectors and its Controller keep up with a thousand events per second, and never list again.
#[test]
fn soak_kube_reflector_at_1000_events_per_second() {
    let served = Served::new("kube", EngineOptions::default());
    Runtime::new().unwrap().block_on(async {
        let client = clients::in_process(&served);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        for i in 0..OBJECTS {
            maps.create(&PostParams::default(), &config_map(&format!("c{i}"))).await.unwrap();
        }
        let followers = followers(&served).await;
        let controller = control(&served);
        let (start, seconds) = (Instant::now(), soak_seconds());
        let made = keep_changing(&client, seconds).await;
        let rate = made as f64 / start.elapsed().as_secs_f64();
        println!("{made} changes in {seconds} s: {rate:.0} per second");
        for follower in &followers {
            agree(follower, &client).await;
            // Each change is seen once, and the last ones may still be on their way.
            eventually_async("it is so", || async { follower.counts.read().2 >= made }).await;
            let (lists, errors, changes) = follower.counts.read();
            println!("{}: {lists} lists, {errors} errors, {changes} events", follower.way);
            assert_eq!((lists, errors, changes), (1, 0, made), "{}: lists, errors, changes", follower.way);
        }
        check_controller(&controller, &client).await;
        // How quick it is depends on the machine and what else it does: only the soak, which is optimised and alone, says.
        if !cfg!(debug_assertions) {
            assert!(rate >= 0.9 * PER_SECOND as f64, "only {rate:.0} changes per second");
        }
    });
}
