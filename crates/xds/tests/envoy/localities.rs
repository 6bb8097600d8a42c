//! Weights and priorities of zones by MeshLoadBalancing: the plan's endpoints through a real Envoy and through the embedded
//! proxy, which have to agree.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use fixtures::object;
use model::backend::ConsumerLocation;
use model::{Labels, Snapshot};
use plan::FeatureGates;
use serde_json::{Value, json};
use xds::render::{RenderInput, render};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log};
use crate::load_balancing::embedded;
use crate::world::{Places, sidecar_input, snapshot};
use toolbox::ports::free_port;

/// The zone of each endpoint.
const ZONES: [&str; 4] = ["a", "a", "b", "c"];

fn world(settings: &Value, echoes: &[Echo]) -> Snapshot {
    let policy = json!({"type": "MeshLoadBalancing", "name": "policy", "spec": {"to": [
        {"targetRef": {"kind": "MeshService", "name": "web"}, "default": settings}]}});
    let mut world = snapshot("ns", &[policy], &["web", "client"], &json!(null));
    for (i, (echo, zone)) in echoes.iter().zip(ZONES).enumerate() {
        let hints = json!({"forZones": [{"name": zone}]});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "ns", "name": format!("web-{i}"),
                "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "", "port": echo.address.port()}],
            "endpoints": [{"addresses": ["127.0.0.1"], "zone": zone, "hints": hints}]});
        world.apply(object(&slice));
    }
    world
}

/// What a proxy in zone `a` gets.
fn input(settings: &Value, at: SocketAddr, echoes: &[Echo]) -> RenderInput {
    let world = world(settings, echoes);
    let mut input = sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &Places::new());
    let place = ConsumerLocation { node: "here".into(), zone: Some("a".into()) };
    let table = plan::backends::table(&world, &input.routes, &place, FeatureGates::ALL);
    assert!(table.backends().all(|backend| backend.mode == "localities"));
    input.tiers = vec![Arc::new(table)];
    input
}

/// The share of each endpoint in so many requests, which must all succeed.
fn shares(at: SocketAddr, requests: usize) -> Vec<f64> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut connection = Connection::open(at).unwrap();
    for _ in 0..requests {
        let answer = connection.send("GET", "web", "/", &[]).unwrap();
        assert_eq!(answer.status(), 200);
        *counts.entry(answer.backend().unwrap()).or_default() += 1;
    }
    let share = |i| counts.get(&format!("e{i}")).copied().unwrap_or(0) as f64 / requests as f64;
    (0..ZONES.len()).map(share).collect()
}

fn assert_near(found: &[f64], wanted: [f64; 4]) {
    let is_near =
        |(found, wanted): (&f64, f64)| (found - wanted).abs() < if wanted == 0.0 { 0.0001 } else { 0.05 };
    assert!(found.iter().zip(wanted).all(is_near), "{found:?} is not {wanted:?}");
}

fn on_both(settings: &Value, check: impl Fn(SocketAddr, &[Echo])) {
    let at = free_port();
    let start = || -> Vec<Echo> {
        let log = Log::default();
        (0..ZONES.len()).map(|i| Echo::start(&format!("e{i}"), &log)).collect()
    };
    let echoes = start();
    let rendered = render(input(settings, at, &echoes), None);
    assert_eq!(rendered.notices, []);
    let control = Control::start(&rendered.resources);
    let running = envoy(&bootstrap(control.address));
    running.wait_for(at);
    check(at, &echoes);
    drop((running, control));

    let echoes = start();
    let (_runtime, _proxy, embedded) = embedded(&input(settings, at, &echoes));
    check(embedded, &echoes);
}

/// Three quarters in zone a, a quarter in b, and c where both fail.
fn localities() -> Value {
    json!([{"from": ["a"], "priorities": [
        {"zones": [{"type": "Same", "weight": 3}, {"name": "b", "weight": 1}]},
        {"zones": [{"type": "Other"}]}]}])
}

#[test]
fn zones_get_their_weights_whatever_the_number_of_their_endpoints() {
    for kind in ["LeastRequest", "RoundRobin"] {
        let settings = json!({"algorithm": {"type": kind}, "localities": localities()});
        on_both(&settings, |at, _| assert_near(&shares(at, 2000), [0.375, 0.375, 0.25, 0.0]));
    }
}

#[test]
fn the_next_priority_serves_when_the_endpoints_before_it_vanish() {
    let outliers = json!({"consecutiveFailures": 1, "baseEjectionTime": "1h", "maxEjectionPercent": 100});
    let settings = json!({"localities": localities(), "outlierDetection": outliers});
    on_both(&settings, |at, echoes| {
        assert_eq!(shares(at, 100)[3], 0.0);
        echoes[..3].iter().for_each(Echo::stop);
        // The proxy learns meanwhile that open connections have ended.
        std::thread::sleep(std::time::Duration::from_millis(300));
        shares(at, 100);
        assert_near(&shares(at, 300), [0.0, 0.0, 0.0, 1.0]);
    });
}
