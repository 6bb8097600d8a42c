//! Leader election on the embedded API: one of two leads, hands over at once when it stops, and is replaced when it dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clock::Clock;
use cluster::leader_election::election::ElectionTiming;
use cluster::leader_election::{LeaderElectionConfig, run};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, PostParams};
use model::random::Random;
use serde_json::json;
use store::admission::service::ServiceRanges;
use store::api::{Api as Store, ApiLimits};
use store::engine::{Engine, EngineOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

async fn client(name: &str) -> Client {
    let folder = std::env::temp_dir().join(format!("zoneward-leader-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let engine = Engine::open(&folder.join("store"), EngineOptions::default()).expect("a store");
    std::fs::remove_dir_all(&folder).expect("removing the folder");
    let client = cluster::in_process(
        Store::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default()).local(),
        &clock::Clock::system(),
    );
    let namespace =
        serde_json::from_value(json!({"metadata": {"name": "kube-system"}})).expect("a namespace");
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace");
    client
}

struct Candidate {
    leading: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Candidate {
    fn start(client: &Client, identity: &str, timing: ElectionTiming) -> Self {
        let settings = LeaderElectionConfig {
            namespace: "kube-system".to_owned(),
            name: "zoneward-controller".to_owned(),
            identity: identity.to_owned(),
            annotations: Default::default(),
            timing,
            clock: Clock::system(),
            random: Random::seeded(1),
            ledger_address: Default::default(),
        };
        let (sender, leading) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(run(client.clone(), settings, sender, stopped));
        Self { leading, stop, task }
    }

    async fn leads(&mut self) -> Duration {
        let since = Instant::now();
        let led = tokio::time::timeout(Duration::from_secs(60), self.leading.wait_for(|leading| *leading));
        led.await.expect("it leads in time").expect("it is alive");
        since.elapsed()
    }
}

async fn lease(client: &Client) -> Lease {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    leases.get("zoneward-controller").await.expect("the lease")
}

fn holder(lease: &Lease) -> Option<String> {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone())
}

#[tokio::test]
async fn whoever_stops_hands_over_at_once() {
    let client = client("handover").await;
    let mut first = Candidate::start(&client, "first", ElectionTiming::default());
    first.leads().await;
    let mut second = Candidate::start(&client, "second", ElectionTiming::default());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!*second.leading.borrow(), "one leads already");
    assert_eq!(holder(&lease(&client).await).as_deref(), Some("first"));
    first.stop.send_replace(true);
    first.task.await.expect("it ends");
    let took = second.leads().await;
    assert!(took < Duration::from_secs(12), "the watch wakes the second, not the lease's end: {took:?}");
    let lease = lease(&client).await;
    assert_eq!(holder(&lease).as_deref(), Some("second"));
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(1));
}

#[tokio::test]
async fn whoever_dies_is_replaced_when_its_lease_has_run_out() {
    let timing = ElectionTiming {
        lease_duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        retry_period: Duration::from_millis(200),
    };
    let client = client("death").await;
    let mut first = Candidate::start(&client, "first", timing);
    first.leads().await;
    let mut second = Candidate::start(&client, "second", timing);
    first.task.abort();
    let took = second.leads().await;
    assert!(took > Duration::from_millis(1_500), "not before the lease has run out: {took:?}");
}

#[tokio::test]
async fn a_lease_taken_by_force_deposes_the_leader_at_once() {
    let timing = ElectionTiming { retry_period: Duration::from_millis(100), ..ElectionTiming::default() };
    let client = client("force").await;
    let mut first = Candidate::start(&client, "first", timing);
    first.leads().await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    loop {
        let mut taken = lease(&client).await;
        if let Some(spec) = &mut taken.spec {
            spec.holder_identity = Some("thief".to_owned());
            spec.lease_duration_seconds = Some(1);
        }
        if leases.replace("zoneward-controller", &PostParams::default(), &taken).await.is_ok() {
            break;
        }
    }
    let lost = first.leading.wait_for(|leading| !*leading);
    // Long before the deadline of a renewal.
    tokio::time::timeout(Duration::from_secs(5), lost).await.expect("it is deposed").expect("it is alive");
    // The thief never renews, so the Lease comes back.
    first.leads().await;
}
