//! Two controllers at once, killed at random, over an API that fails one time in ten: at rest the slices equal the plan,
//! none lost and none double. Worse than a failed hand-over: here both write all the time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame};
use kube::Client;
use model::{Interner, Snapshot, parse};
use plan::hints::Memory;
use plan::slices::TriggerTimes;
use serde_json::{Value, json};
use store::api::Caller;
use store::server::Local;
use zoneward::planner::Planner;

use crate::world::{
    self, Running, World, config, eventually, items, node, pod, pod_status, service, slices_path,
};

/// Splitmix64: short, and one printed seed replays it.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }
}

type AnyBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The API, failing one request in ten while it is on.
#[derive(Clone)]
struct Faulty {
    inner: Local,
    dice: Arc<Mutex<Dice>>,
    on: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Refused with this code; nothing happened.
    Refused(u16),
    /// It happened, but the answer was lost.
    AnswerLost,
    /// A watch that ends after so many pieces, or is told to list again.
    CutAfter(u64),
}

impl Faulty {
    fn fault(&self, request: &Request<kube::client::Body>) -> Option<Fault> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let mut dice = self.dice.lock().unwrap();
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if watch {
            // Every watch ends early; one in ten is told that its version is too old.
            return Some(match dice.below(10) {
                0 => Fault::Refused(410),
                _ => Fault::CutAfter(dice.below(40)),
            });
        }
        let reads = request.method() == Method::GET;
        match dice.below(50) {
            0 => Some(Fault::Refused(429)),
            1 => Some(Fault::Refused(500)),
            2 => Some(Fault::Refused(503)),
            3 if !reads => Some(Fault::Refused(409)),
            4 if !reads => Some(Fault::AnswerLost),
            _ => None,
        }
    }
}

fn refusal(code: u16) -> Response<AnyBody> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": "a fault was injected", "metadata": {}});
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never: Infallible| match never {});
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(AnyBody::new(body)).unwrap()
}

/// A body that ends early.
struct Cut<B> {
    inner: B,
    left: u64,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Cut<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Pin::new(&mut self.inner).poll_frame(context)
    }
}

impl tower::Service<Request<kube::client::Body>> for Faulty {
    type Response = Response<AnyBody>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let fault = self.fault(&request);
        if let Some(Fault::Refused(code)) = fault {
            return Box::pin(async move { Ok(refusal(code)) });
        }
        let answer = tower::Service::call(&mut self.inner, request);
        Box::pin(async move {
            let response = answer.await?;
            match fault {
                Some(Fault::AnswerLost) => Err("the answer was lost".into()),
                Some(Fault::CutAfter(left)) => {
                    Ok(response.map(|body| AnyBody::new(Cut { inner: body, left }.map_err(Into::into))))
                }
                _ => Ok(response.map(|body| AnyBody::new(body.map_err(Into::into)))),
            }
        })
    }
}

const SERVICES: u64 = 8;

/// What the world should hold, by the changes that were made to it.
struct Model {
    /// Pod name -> (Service number, address, ready).
    pods: BTreeMap<String, (u64, String, bool)>,
    made: u64,
}

impl Model {
    async fn change(&mut self, world: &World, dice: &mut Dice) {
        let pods = "/api/v1/namespaces/default/pods";
        let chosen = self.pods.keys().nth(dice.below(self.pods.len() as u64) as usize).cloned();
        match (dice.below(10), chosen) {
            (0..4, Some(name)) => {
                let (_, address, ready) = self.pods.get_mut(&name).unwrap();
                *ready = !*ready;
                let status = json!({"status": pod_status(address, *ready)});
                world.merge(&format!("{pods}/{name}/status"), &status).await;
            }
            (4..6, Some(name)) => {
                world.send("DELETE", &format!("{pods}/{name}?gracePeriodSeconds=0"), &Value::Null).await;
                self.pods.remove(&name);
            }
            (6..9, _) | (_, None) => {
                self.made += 1;
                let (of, name) = (dice.below(SERVICES), format!("pod-{}", self.made));
                let address = format!("10.2.{}.{}", self.made / 250, self.made % 250 + 1);
                let at = format!("n{}", dice.below(4));
                world.put(&pod("default", &name, &format!("s{of}"), &at, &address)).await;
                self.pods.insert(name, (of, address, true));
            }
            // Somebody meddles with the slices.
            _ => {
                let slices = world.slices("default").await;
                let Some(slice) = slices.get(dice.below(slices.len() as u64) as usize) else { return };
                let path =
                    format!("{}/{}", slices_path("default"), slice["metadata"]["name"].as_str().unwrap());
                let kind = "application/merge-patch+json";
                let _ = match dice.below(2) {
                    0 => world.try_send("DELETE", &path, "application/json", &Value::Null).await,
                    _ => world.try_send("PATCH", &path, kind, &json!({"endpoints": []})).await,
                };
            }
        }
    }

    /// Each pod's endpoint stands in the slices of its Service once, and nothing else does.
    async fn check(&self, world: &World) -> Result<(), String> {
        for number in 0..SERVICES {
            let name = format!("s{number}");
            let slices = world.slices_of("default", &name).await;
            let endpoints = slices.iter().flat_map(|s| items(&s["endpoints"]));
            let mut have: Vec<(String, bool)> = endpoints
                .map(|e| (e["addresses"][0].as_str().unwrap().to_owned(), e["conditions"]["ready"] == true))
                .collect();
            let mut want: Vec<(String, bool)> =
                self.pods.values().filter(|p| p.0 == number).map(|p| (p.1.clone(), p.2)).collect();
            have.sort();
            want.sort();
            if have != want {
                return Err(format!("{name}: {have:?} instead of {want:?}"));
            }
        }
        Ok(())
    }
}

/// Nothing is left to do for a controller that starts anew and sees what is stored.
async fn check_plan(world: &World) -> Result<(), String> {
    let mut snapshot = Snapshot::default();
    let mut interner = Interner::default();
    for (path, api_version, kind) in [
        ("/api/v1/services", "v1", "Service"),
        ("/api/v1/pods", "v1", "Pod"),
        ("/api/v1/nodes", "v1", "Node"),
        ("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
    ] {
        for mut object in items(&world.get(path).await["items"]) {
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            snapshot.apply(parse::object(&object, &mut interner).0.expect("what is stored can be read"));
        }
    }
    let settings = limits().settings;
    let planner = Planner::new(&snapshot, settings.hints, settings.slices);
    for (service, slices) in snapshot.services() {
        let memory = |family| Memory::from_slices(family, slices);
        let (plan, _) = planner.plan(&snapshot, service, slices, &TriggerTimes::default(), memory);
        if !plan.is_noop() {
            return Err(format!("{}: {plan:?}", service.key));
        }
    }
    Ok(())
}

fn limits() -> zoneward::controller::Config {
    let mut config = config();
    config.settings.slices.max_endpoints = 4;
    config
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_at_rest_the_slices_equal_the_plan_whatever_failed() {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("ZONEWARD_SEED").unwrap_or(clock.as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs(number("ZONEWARD_SOAK_SECONDS").unwrap_or(10));
    let mut dice = Dice(seed);
    let world = World::new().await;
    for i in 0..4 {
        world.put(&node(&format!("n{i}"), &format!("z{}", i % 3))).await;
    }
    for number in 0..SERVICES {
        let mut object = service("default", &format!("s{number}"));
        if number % 2 == 1 {
            object["spec"]["trafficDistribution"] = "PreferSameZone".into();
        }
        world.put(&object).await;
    }
    let on = Arc::new(AtomicBool::new(true));
    let api = || Faulty {
        inner: Local::new(world.store.clone(), Caller::own()),
        dice: Arc::new(Mutex::new(Dice(seed ^ 0x5eed))),
        on: on.clone(),
    };
    let client = Client::new(api(), "default");
    let begin = || world::start(&client, limits(), &world.metrics);
    let mut controllers: Vec<Running> = vec![begin(), begin()];
    let mut model = Model { pods: BTreeMap::new(), made: 0 };
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        println!("round {rounds} ZONEWARD_SEED={seed}");
        for _ in 0..dice.below(60) {
            model.change(&world, &mut dice).await;
            if dice.below(12) == 0 {
                let killed = dice.below(2) as usize;
                controllers[killed].task.abort();
                controllers[killed] = begin();
            }
        }
        // At rest: one controller, and an API that answers.
        on.store(false, Ordering::Relaxed);
        controllers[1].task.abort();
        let (world, model) = (&world, &model);
        eventually(&format!("the slices equal the plan (round {rounds}, ZONEWARD_SEED={seed})"), || async {
            model.check(world).await?;
            check_plan(world).await
        })
        .await;
        on.store(true, Ordering::Relaxed);
        controllers[1] = begin();
        rounds += 1;
    }
    println!("{rounds} rounds, {} pods made", model.made);
}
