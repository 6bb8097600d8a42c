//! Who leads writes; who stands by has everything in memory and writes nothing. A write that a deposed leader had
//! already sent comes late: the new leader puts it right by one write of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use controller::ControllerMetrics;
use fixtures::{eventually_async, node};
use http::{Method, Request};
use kube::Client;
use store::api::Caller;
use store::server::LocalApi;
use tokio::sync::watch;

use crate::controller::world::{World, config, pod, ready, service, start_standby};

/// The API behind a gate that holds slice writes back while it is shut. What was sent is carried out when it opens,
/// whether or not the sender still waits: so it is with a network.
#[derive(Clone)]
struct Gate {
    inner: LocalApi,
    open: watch::Receiver<bool>,
    /// Slice writes that came to the gate.
    writes: Arc<AtomicUsize>,
}

impl Gate {
    fn new(world: &World, open: watch::Receiver<bool>) -> Self {
        Self { inner: LocalApi::new(world.store.clone(), Caller::own()), open, writes: Arc::default() }
    }
}

type Answer = <LocalApi as tower::Service<Request<kube::client::Body>>>::Response;
type Refused = Box<dyn std::error::Error + Send + Sync>;

impl tower::Service<Request<kube::client::Body>> for Gate {
    type Response = Answer;
    type Error = Refused;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Refused>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let mut inner = self.inner.clone();
        if *request.method() == Method::GET || !request.uri().path().contains("endpointslices") {
            return Box::pin(
                async move { tower::Service::call(&mut inner, request).await.map_err(Into::into) },
            );
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.clone();
        let sent = tokio::spawn(async move {
            open.wait_for(|open| *open).await.unwrap();
            tower::Service::call(&mut inner, request).await
        });
        Box::pin(async move { sent.await.unwrap().map_err(Into::into) })
    }
}

/// Two zones, and a Service with pods that nobody has looked at yet.
async fn unwritten(pods: u8) -> World {
    let world = World::new().await;
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        world.put(&node(name, zone)).await;
    }
    world.put(&service("default", "web")).await;
    for i in 1..=pods {
        world.put(&pod("default", &format!("web-{i}"), "web", "n1", &format!("10.1.0.{i}"))).await;
    }
    world
}

/// One slice that lists just these pods.
async fn listed(world: &World, pods: u8) {
    let wanted: Vec<String> = (1..=pods).map(|i| format!("10.1.0.{i}")).collect();
    eventually_async("one slice lists the pods", || async {
        let slices = world.slices_of("default", "web").await;
        let right = slices.len() == 1 && ready(&slices) == wanted;
        if right { Ok(()) } else { Err(format!("{} slices, {:?}", slices.len(), ready(&slices))) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stands_by_writes_nothing_and_has_all_in_memory_when_it_leads() {
    let world = unwritten(3).await;
    let second = start_standby(&world.client, config(), &world.metrics);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.slices("default").await.iter().all(|s| s["metadata"]["name"] == "kubernetes"));
    let start = Instant::now();
    second.leading.send_replace(true);
    listed(&world, 3).await;
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    // And back: from here on changes are somebody else's.
    second.leading.send_replace(false);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.put(&pod("default", "web-4", "web", "n2", "10.1.0.4")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    listed(&world, 3).await;
    second.leading.send_replace(true);
    listed(&world, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_create_of_a_deposed_leader_is_repaired_by_one_write() {
    let world = unwritten(3).await;
    let (gate, shut) = watch::channel(false);
    let (_open, opened) = watch::channel(true);
    let late = Gate::new(&world, shut);
    let prompt = Gate::new(&world, opened);
    let first = start_standby(&Client::new(late.clone(), "default"), config(), &ControllerMetrics::default());
    first.leading.send_replace(true);
    eventually_async("the first has sent its slice", || async {
        if late.writes.load(Ordering::Relaxed) == 1 { Ok(()) } else { Err(String::new()) }
    })
    .await;
    let second = start_standby(&Client::new(prompt.clone(), "default"), config(), &world.metrics);
    first.leading.send_replace(false);
    second.leading.send_replace(true);
    listed(&world, 3).await;
    let before = prompt.writes.load(Ordering::Relaxed);
    gate.send_replace(true);
    let twice = async || world.slices_of("default", "web").await.len() == 2;
    let start = Instant::now();
    // The second slice may be gone before we look.
    while !twice().await && start.elapsed() < Duration::from_millis(200) {}
    listed(&world, 3).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    listed(&world, 3).await;
    assert_eq!(prompt.writes.load(Ordering::Relaxed) - before, 1, "one write repairs it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_change_of_a_deposed_leader_fails_by_its_version() {
    let world = unwritten(1).await;
    let (gate, shut) = watch::channel(true);
    let late = Gate::new(&world, shut);
    let first = start_standby(&Client::new(late.clone(), "default"), config(), &ControllerMetrics::default());
    first.leading.send_replace(true);
    listed(&world, 1).await;
    gate.send_replace(false);
    world.put(&pod("default", "web-2", "web", "n2", "10.1.0.2")).await;
    eventually_async("the first has sent its change", || async {
        if late.writes.load(Ordering::Relaxed) == 2 { Ok(()) } else { Err(String::new()) }
    })
    .await;
    first.leading.send_replace(false);
    let second = start_standby(&world.client, config(), &world.metrics);
    second.leading.send_replace(true);
    world.put(&pod("default", "web-3", "web", "n2", "10.1.0.3")).await;
    listed(&world, 3).await;
    gate.send_replace(true);
    tokio::time::sleep(Duration::from_millis(300)).await;
    listed(&world, 3).await;
    // The first leads again, from a memory that it kept up to date meanwhile.
    second.leading.send_replace(false);
    first.leading.send_replace(true);
    world.put(&pod("default", "web-4", "web", "n1", "10.1.0.4")).await;
    listed(&world, 4).await;
}
