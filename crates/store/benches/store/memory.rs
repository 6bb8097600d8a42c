//! What the server process holds in memory with 10,000 Services, 10,000 slices and 100,000 Pods: at rest, while all
//! Pods are listed, and while watches begin with all of them. And what making one more Service costs, small and large.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::client::{Access, Connection};
use super::percentile;
use super::server::Running;

const SERVICES: u64 = 10_000;
const PODS: u64 = 100_000;
const WRITERS: u64 = 32;
const NAMESPACES: u64 = 50;

pub async fn run() {
    println!("\nin the server process: {SERVICES} Services, {SERVICES} slices, {PODS} Pods, over the wire");
    let api = Running::api();
    let mut connection = api.access.connect().await;
    for number in 0..NAMESPACES {
        let body = json!({"metadata": {"name": format!("ns-{number}")}});
        connection.done("POST", "/api/v1/namespaces", body.to_string().into()).await;
    }
    fill(&api.access, 0, 100, service).await;
    create_cost(&mut connection, 100).await;
    timed("Services made", fill(&api.access, 100, SERVICES, service)).await;
    create_cost(&mut connection, SERVICES).await;
    timed("slices made", fill(&api.access, 0, SERVICES, slice)).await;
    timed("Pods made", fill(&api.access, 0, PODS, pod)).await;
    say(&api, "after writing");
    tokio::time::sleep(Duration::from_secs(3)).await;
    say(&api, "three seconds later");
    while_asking(&api, 1, "/api/v1/pods", "one list of all Pods").await;
    while_asking(&api, 10, "/api/v1/pods", "ten lists of all Pods at once").await;
    while_asking(&api, 1, "/api/v1/pods?labelSelector=app%3Dnone", "one list of all Pods by label").await;
    let begins = "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                  &allowWatchBookmarks=true&timeoutSeconds=1";
    while_asking(&api, 10, begins, "ten watches that begin with all Pods").await;
}

fn say(api: &Running, when: &str) {
    let (now, peak) = api.memory();
    println!("{when:<40} {now:>6} MiB resident, {peak:>6} at most so far");
}

async fn timed(what: &str, work: impl Future<Output = ()>) {
    let start = Instant::now();
    work.await;
    println!("{what:<40} {:>6.1} s", start.elapsed().as_secs_f64());
}

/// The peak while clients read answers, each on its own connection.
async fn while_asking(api: &Running, clients: usize, path: &'static str, what: &str) {
    let (before, _) = api.memory();
    api.reset_peak();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let mut connection = api.access.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut body = connection.send("GET", path, Bytes::new()).await.into_body();
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.expect("a whole answer");
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            bytes
        }));
    }
    let mut bytes = 0;
    for task in tasks {
        bytes += task.await.expect("clients do not fail");
    }
    let (_, peak) = api.memory();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what:<40} {peak:>6} MiB at most, {:>+5} by it; {} MiB sent in {seconds:.1} s",
        peak as i64 - before as i64,
        bytes >> 20
    );
}

type Make = fn(u64) -> (&'static str, String, Value);

async fn fill(access: &Access, from: u64, to: u64, make: Make) {
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let mut connection = access.connect().await;
        tasks.push(tokio::spawn(async move {
            for number in (from + writer..to).step_by(WRITERS as usize) {
                create(&mut connection, make(number)).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("writers do not fail");
    }
}

async fn create(connection: &mut Connection, (prefix, plural, object): (&'static str, String, Value)) {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let path = format!("{prefix}/namespaces/{namespace}/{plural}");
    connection.done("POST", &path, object.to_string().into()).await;
}

/// How long the creation of one Service takes, with its addresses, where there are so many already.
async fn create_cost(connection: &mut Connection, there: u64) {
    let mut times = Vec::new();
    for number in 0..200 {
        let mut made = service(1_000_000 + there + number);
        made.2["spec"]["type"] = "ClusterIP".into();
        let start = Instant::now();
        create(connection, made).await;
        times.push(start.elapsed());
    }
    let [p50, p99] = [0.5, 0.99].map(|share| percentile(&mut times, share));
    println!("{:<40} {p50:>6.2} ms p50, {p99:.2} p99", format!("a Service made where {there} are"));
}

fn metadata(kind: &str, number: u64) -> Value {
    json!({
        "name": format!("{kind}-{number}"),
        "namespace": format!("ns-{}", number % NAMESPACES),
        "labels": {"app": format!("app-{}", number % 500), "team": "bench", "zoneward.dev/part": kind},
    })
}

fn service(number: u64) -> (&'static str, String, Value) {
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("service", number),
        "spec": {"selector": {"app": format!("app-{number}")}, "ipFamilyPolicy": "PreferDualStack",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "https", "port": 443}]},
    });
    ("/api/v1", "services".to_owned(), object)
}

fn slice(number: u64) -> (&'static str, String, Value) {
    let endpoint = |i: u64| {
        json!({"addresses": [format!("10.{}.{}.{i}", number / 256 % 256, number % 256)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{i}"), "zone": format!("zone-{}", i % 3),
            "targetRef": {"kind": "Pod", "name": format!("pod-{}", number * 10 + i), "namespace": "default"}})
    };
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata("slice", number),
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..10).map(endpoint).collect::<Vec<_>>(),
    });
    ("/apis/discovery.k8s.io/v1", "endpointslices".to_owned(), object)
}

fn pod(number: u64) -> (&'static str, String, Value) {
    let variable = |i: u64| json!({"name": format!("VARIABLE_{i}"), "value": format!("value-{number}-{i}")});
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata("pod", number),
        "spec": {"nodeName": format!("node-{}", number % 1_000), "containers": [{
            "name": "main", "image": "registry.example/app:1.2.3",
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "env": (0..8).map(variable).collect::<Vec<_>>(),
        }]},
    });
    ("/api/v1", "pods".to_owned(), object)
}
