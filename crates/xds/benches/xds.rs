//! Ten thousand routes and clusters: what rendering costs, how soon a real Envoy has everything, what one change costs,
//! and how much memory a connected Envoy takes here.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench")]

#[path = "../tests/envoy/harness.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod harness;
#[path = "../tests/envoy/http.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod http;
#[path = "../tests/envoy/process.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod process;
#[path = "../tests/envoy/world.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod world;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::google::protobuf::Struct;
use model::backend::BackendTable;
use serde_json::{Value, json};
use xds::identity::{KEY, to_protobuf};
use xds::render::{RenderInput, Rendered, render};
use xds::resource::{ResourceSet, ResourceType};
use xds::server::XdsServerSettings;
use xds::stream::{DeltaStream, PublishedResources};

use harness::{Control, bootstrap, envoy};
use http::{Connection, Echo, Log};
use process::Envoy;
use toolbox::ports::free_port;
use world::{Places, gateway_input, snapshot};

fn main() {
    let services = number("ZONEWARD_BENCH_SERVICES", 10_000);
    if std::env::var("ZONEWARD_BENCH_COUNT").is_ok() {
        let input = routes(services.min(2_000), 0, free_port(), "one", &Places::new());
        let rendered = phase_render(input.clone());
        let after = phase_one_endpoint(&input, &rendered);
        phase_one_stream(&rendered, &after);
        println!("{} endpoints", services.min(2_000));
        return;
    }
    timed(services);
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A gateway with a route and a backend for each of so many Services; the last route leads to `last`.
fn routes(count: usize, patterns: usize, at: SocketAddr, last: &str, places: &Places) -> RenderInput {
    let backend = |i: usize| if i + 1 == count { last.to_owned() } else { format!("s{i}") };
    let rule = |i: usize| {
        json!({"matches": [{"path": {"type": "Prefix", "value": format!("/route/{i:05}")}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": backend(i)}]}})
    };
    // Patterns may match anywhere, so with some of them the tree grows too large and the list stays one.
    let pattern = |i: usize| {
        json!({"matches": [{"path": {"type": "RegularExpression", "value": format!("/never/{i}")}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "one"}]}})
    };
    let rules: Vec<Value> = (0..count).map(rule).chain((0..patterns).map(pattern)).collect();
    let policies: Vec<Value> = rules
        .chunks(1000)
        .enumerate()
        .map(|(i, rules)| {
            json!({"type": "MeshGatewayHTTPRoute", "name": format!("r{i}"),
                "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}})
        })
        .collect();
    let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
    let world = snapshot("ns", &policies, &["one", "two"], &listeners);
    gateway_input(&world, "ns", &[(8080, at)], places)
}

#[inline(never)]
fn phase_render(input: RenderInput) -> Rendered {
    render(input, None)
}

#[inline(never)]
fn phase_one_endpoint(input: &RenderInput, before: &Rendered) -> Rendered {
    let mut table = BackendTable::clone(&input.tiers[0]);
    let id = table.backends().next().unwrap().id.clone();
    table.put(Arc::new(world::backend(&id, &[("127.0.0.1:9".parse().unwrap(), "a", 1.0)])));
    render(RenderInput { tiers: vec![Arc::new(table)], ..input.clone() }, Some(before))
}

/// One stream from nothing to everything, and one change.
#[inline(never)]
fn phase_one_stream(before: &Rendered, after: &Rendered) -> usize {
    let mut stream = DeltaStream::default();
    let first = Arc::new(PublishedResources::first(before.resources.clone()));
    stream.set_target(first.clone());
    let ask = |kind: ResourceType, names: Vec<String>| DeltaDiscoveryRequest {
        type_url: kind.type_url().to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    };
    stream.handle_request(&ask(ResourceType::Cluster, Vec::new())).unwrap();
    let names = before.resources.of(ResourceType::Endpoints).keys().map(|name| name.to_string()).collect();
    stream.handle_request(&ask(ResourceType::Endpoints, names)).unwrap();
    let mut sent = settle(&mut stream);
    if let Some(next) = first.next(after.resources.clone()) {
        stream.set_target(Arc::new(next));
        sent += settle(&mut stream);
    }
    sent
}

fn settle(stream: &mut DeltaStream) -> usize {
    let mut sent = 0;
    while let Some(response) = stream.next_response() {
        sent += response.resources.len();
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        stream.handle_request(&answer).unwrap();
    }
    sent
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Microseconds of CPU that a process has used.
fn cpu(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}

fn memory(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn bytes(control: &Control) -> BTreeMap<ResourceType, (u64, u64)> {
    control
        .streams
        .counters()
        .into_iter()
        .map(|(kind, count)| (kind, (count.resources, count.bytes)))
        .collect()
}

/// What was sent since, as `kind: resources, bytes`.
fn since(control: &Control, before: &BTreeMap<ResourceType, (u64, u64)>) -> String {
    let line = |(kind, (resources, bytes)): (ResourceType, (u64, u64))| {
        let (r, b) = before.get(&kind).copied().unwrap_or_default();
        (resources > r).then(|| format!("{} {kind} ({} bytes)", resources - r, bytes - b))
    };
    in_words(bytes(control).into_iter().filter_map(line).collect())
}

fn in_words(parts: Vec<String>) -> String {
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn answered_by(at: SocketAddr, path: &str) -> Option<String> {
    Connection::open(at).ok()?.send("GET", "x", path, &[]).ok()?.backend()
}

fn timed(services: usize) {
    let log = Log::default();
    let (one, two) = (Echo::start("one", &log), Echo::start("two", &log));
    let at = free_port();
    let path = format!("/route/{:05}/x", services - 1);
    let places = |echo: &Echo| -> Places {
        [
            ("one".to_owned(), vec![(echo.address, "a", 1.0)]),
            ("two".to_owned(), vec![(two.address, "a", 1.0)]),
        ]
        .into()
    };
    let input = routes(services, 0, at, "one", &places(&one));
    let start = Instant::now();
    let rendered = phase_render(input.clone());
    println!(
        "render {services} routes and clusters: {:.0} ms, {} resources",
        millis(start),
        rendered.resources.len()
    );
    let start = Instant::now();
    let other = phase_one_endpoint(&input, &rendered);
    println!("render again after one endpoint changed: {:.1} ms", millis(start));
    drop(other);

    let control = Control::start(&rendered.resources);
    let start = Instant::now();
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait("the last route", || answered_by(at, &path).as_deref() == Some("one"));
    println!(
        "from the start of Envoy to its last route: {:.1} s ({})",
        millis(start) / 1e3,
        since(&control, &BTreeMap::new())
    );
    println!("Envoy then takes {:.0} MiB", memory(proxy.pid()));

    let before = bytes(&control);
    let mut table = BackendTable::clone(&input.tiers[0]);
    let id = table.backends().find(|b| b.id.service.name == "one").unwrap().id.clone();
    table.put(Arc::new(world::backend(&id, &[(two.address, "a", 1.0)])));
    let changed = RenderInput { tiers: vec![Arc::new(table)], ..input.clone() };
    one_change("endpoint", &control, &proxy, changed, &rendered, || {
        answered_by(at, &path).as_deref() == Some("two")
    });
    println!("  sent: {}", since(&control, &before));

    control.publish(&rendered.resources);
    proxy.wait("the way back", || answered_by(at, &path).as_deref() == Some("one"));
    let before = bytes(&control);
    let changed = routes(services, 0, at, "two", &places(&one));
    one_change("route", &control, &proxy, changed, &rendered, || {
        answered_by(at, &path).as_deref() == Some("two")
    });
    println!("  sent: {}", since(&control, &before));
    drop((proxy, control));

    lookups(services, &places(&one));
    streams(&rendered.resources);
}

/// From a new table to the first request that obeys it.
fn one_change(
    what: &str,
    control: &Control,
    proxy: &Envoy,
    input: RenderInput,
    before: &Rendered,
    done: impl Fn() -> bool,
) {
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu(proxy.pid());
    let start = Instant::now();
    let after = render(input, Some(before));
    let rendered = millis(start);
    control.publish(&after.resources);
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: Envoy says {}", proxy.log());
        std::thread::sleep(Duration::from_millis(1));
    }
    println!(
        "one {what} changed: {:.0} ms from the table to a request that obeys it, {rendered:.1} of them to render; Envoy used {:.0} ms of CPU",
        millis(start),
        (cpu(proxy.pid()) - used) / 1e3
    );
}

/// What a request costs Envoy, by the number of routes and how they are kept.
fn lookups(services: usize, places: &Places) {
    const REQUESTS: usize = 3_000;
    for (what, count, patterns) in [
        ("10 routes, a list", 10, 0),
        ("100 routes, a tree", 100, 0),
        ("100 routes, a list", 95, 5),
        ("all routes, a tree", services, 0),
        ("all routes, a list", services, 5),
    ] {
        let at = free_port();
        let rendered = render(routes(count, patterns, at, "one", places), None);
        let control = Control::start(&rendered.resources);
        let proxy = envoy(&bootstrap(control.address));
        let path = format!("/route/{:05}/x", count - 1);
        proxy.wait("the last route", || answered_by(at, &path).is_some());
        let mut connection = Connection::open(at).unwrap();
        let mut run = |requests: usize| {
            for _ in 0..requests {
                assert_eq!(connection.send("GET", "x", &path, &[]).unwrap().status(), 200);
            }
        };
        run(200);
        let (used, start) = (cpu(proxy.pid()), Instant::now());
        run(REQUESTS);
        let (used, wall) = (cpu(proxy.pid()) - used, millis(start) * 1e3);
        println!(
            "{what} ({count}): {:.0} us of Envoy's CPU for a request to the last one, {:.0} us in all",
            used / REQUESTS as f64,
            wall / REQUESTS as f64
        );
    }
}

/// What a hundred connected clients that hold everything cost the server.
fn streams(resources: &Arc<ResourceSet>) {
    const STREAMS: usize = 100;
    let control = Control::start_at(free_port(), resources, XdsServerSettings::default());
    let own = std::process::id();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let before = memory(own);
    let start = Instant::now();
    let names: Arc<Vec<String>> =
        Arc::new(resources.of(ResourceType::Endpoints).keys().map(|name| name.to_string()).collect());
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        clients.push(runtime.block_on(connect(control.address, names.clone())));
    }
    let all = millis(start);
    let grown = memory(own) - before;
    println!(
        "{STREAMS} streams that hold everything, and their clients in the same process: {:.1} MiB each, {:.0} ms each to fill",
        grown / STREAMS as f64,
        all / STREAMS as f64
    );
    drop(clients);
}

/// A client that asks for clusters and endpoints, acknowledges everything and keeps nothing.
async fn connect(
    server: SocketAddr,
    names: Arc<Vec<String>>,
) -> tokio::sync::mpsc::Sender<DeltaDiscoveryRequest> {
    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{server}"))
        .await
        .unwrap()
        .max_decoding_message_size(64 << 20);
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    let requests = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|request| (request, receiver))
    });
    let identity = json!({"gateway": "edge"});
    let fields = [(KEY.to_owned(), to_protobuf(&identity))].into_iter().collect();
    let node = Node { metadata: Some(Struct { fields }), ..Node::default() };
    let first = DeltaDiscoveryRequest {
        type_url: ResourceType::Cluster.type_url().to_owned(),
        node: Some(node),
        ..DeltaDiscoveryRequest::default()
    };
    sender.send(first).await.unwrap();
    let mut responses = client.delta_aggregated_resources(requests).await.unwrap().into_inner();
    let mut open = 2;
    let mut got: BTreeMap<String, usize> = BTreeMap::new();
    while open > 0 {
        let response = responses.message().await.unwrap().unwrap();
        let total = got.entry(response.type_url.clone()).or_default();
        *total += response.resources.len();
        let done = *total >= names.len();
        open -= usize::from(done);
        let is_clusters = response.type_url == ResourceType::Cluster.type_url();
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(answer).await.unwrap();
        if is_clusters && done {
            let endpoints = DeltaDiscoveryRequest {
                type_url: ResourceType::Endpoints.type_url().to_owned(),
                resource_names_subscribe: names.to_vec(),
                ..DeltaDiscoveryRequest::default()
            };
            sender.send(endpoints).await.unwrap();
        }
    }
    tokio::spawn(async move { while let Ok(Some(_)) = responses.message().await {} });
    sender
}
