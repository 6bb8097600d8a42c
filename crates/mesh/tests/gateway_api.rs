//! The controller of the Gateway API on the embedded API: the statuses of the conformance cases, and what it writes when.

#![allow(unreachable_pub)]

#[path = "../../plan/tests/gateway_api/statuses.rs"]
mod statuses;
#[path = "gateway_api/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clock::Clock;
use fixtures::{TestCertificate, eventually_async};
use http::Method;
use model::gateway_api::CONTROLLER;
use plan::gateway_api::{UnboundPort, UnboundPorts};
use serde_json::{Value, json};
use statuses::{items, text};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use world::{World, object_path};

const USABLE: &str = "192.0.2.1";
const UNUSABLE: &str = "192.0.2.99";

fn class() -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "conformance"}, "spec": {"controllerName": CONTROLLER}})
}

/// A Secret or ConfigMap with a real certificate.
fn certificate_object(wanted: &Value) -> Value {
    let TestCertificate { chain: pem, key, .. } = TestCertificate::of("example.com");
    let metadata = json!({"name": wanted["name"], "namespace": wanted["namespace"]});
    match text(&wanted["kind"]) {
        "Secret" => {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": wanted["type"],
            "stringData": {"tls.crt": pem, "tls.key": key}})
        }
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {text(&wanted["key"]): pem}}),
    }
}

fn cases() -> Vec<Value> {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let text =
        text.replace("\"UNUSABLE\"", &format!("{UNUSABLE:?}")).replace("\"USABLE\"", &format!("{USABLE:?}"));
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    items(&file["cases"])
}

/// Creates the objects of a case, each in a later second than the one before of its kind.
struct Creator<'w> {
    world: &'w World,
    created: BTreeMap<String, i64>,
}

impl Creator<'_> {
    async fn create(&mut self, object: &Value) {
        if let Some(namespace) = object["metadata"]["namespace"].as_str() {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            // It may exist.
            let _ = self.world.send(Method::POST, "/api/v1/namespaces", &namespace).await;
        }
        if object["kind"] == "Namespace" {
            if self.world.send(Method::POST, "/api/v1/namespaces", object).await.is_err() {
                let path = format!("/api/v1/namespaces/{}", text(&object["metadata"]["name"]));
                let labels = json!({"metadata": {"labels": object["metadata"]["labels"]}});
                self.world.send(Method::PATCH, &path, &labels).await.expect("labels");
            }
            return;
        }
        let kind = text(&object["kind"]).to_owned();
        if object["apiVersion"] != "v1" {
            let now = || Clock::system().timestamp().as_second();
            while self.created.get(&kind) == Some(&now()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            self.created.insert(kind, now());
        }
        self.world.create(object).await;
    }
}

/// Runs a case; the number of its statuses.
async fn run_case(case: &Value) -> Result<usize, String> {
    let world = World::new().await;
    let mut creator = Creator { world: &world, created: BTreeMap::new() };
    creator.create(&class()).await;
    for certificate in items(&case["certificates"]) {
        creator.create(&certificate_object(&certificate)).await;
    }
    for object in items(&case["objects"]) {
        creator.create(&object).await;
    }
    let mut count = 0;
    for step in std::iter::once(case.clone()).chain(items(&case["steps"])) {
        if step["create"].is_object() {
            creator.create(&step["create"]).await;
        }
        if step["replace"].is_object() {
            world.replace(&step["replace"]).await;
        }
        if step["delete"].is_object() {
            let path = object_path(text(&step["delete"]["kind"]), text(&step["delete"]["name"]));
            world.send(Method::DELETE, &path, &Value::Null).await.expect("deleted");
        }
        let wanted = items(&step["statuses"]);
        if !wanted.is_empty() {
            world.check(&wanted).await.map_err(|why| format!("{}: {why}", case["id"]))?;
            count += wanted.len();
        }
    }
    // What is written at last stays, and is not written again.
    world.quiet().await;
    world.end().await;
    Ok(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statuses_of_the_conformance_cases_are_written() {
    let (places, mut running) = (Arc::new(Semaphore::new(12)), JoinSet::new());
    for case in cases() {
        let places = places.clone();
        running.spawn(async move {
            let _place = places.acquire().await.expect("open");
            run_case(&case).await
        });
    }
    let (mut count, mut failures) = (0, Vec::new());
    while let Some(done) = running.join_next().await {
        match done.expect("a case") {
            Ok(own) => count += own,
            Err(why) => failures.push(why),
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n\n"));
    assert_eq!(count, 153);
}

fn gateway(name: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"gatewayClassName": "conformance",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}})
}

fn route(name: &str, backend: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"parentRefs": [{"name": "edge"}],
        "hostnames": [format!("{name}.example.com")],
        "rules": [{"backendRefs": [{"name": backend, "port": 80}]}]}})
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"port": 80}]}})
}

fn route_is(name: &str, kind: &str, status: &str, reason: &str) -> Value {
    json!({"kind": "HTTPRoute", "name": format!("default/{name}"), "parent": "default/edge",
        "conditions": [{"type": kind, "status": status, "reason": reason}]})
}

fn attached(count: usize) -> Value {
    json!({"kind": "Gateway", "name": "default/edge", "listeners": [{"name": "http", "attachedRoutes": count}]})
}

/// A route's change is one write, however many routes there are; a Service's one per route that names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_change_costs_the_statuses_that_change() {
    let world = World::new().await;
    for object in [class(), gateway("edge"), service("web")] {
        world.create(&object).await;
    }
    for i in 0..100 {
        world.create(&route(&format!("r{i}"), "web")).await;
    }
    world.check(&[attached(100), route_is("r99", "Accepted", "True", "Accepted")]).await.expect("attached");
    let before = world.quiet().await;
    world.replace(&route("r7", "other")).await;
    world.check(&[route_is("r7", "ResolvedRefs", "False", "BackendNotFound")]).await.expect("not resolved");
    assert_eq!(world.quiet().await - before, 1, "one route, one status");
    let before = world.quiet().await;
    world.create(&service("other")).await;
    world.check(&[route_is("r7", "ResolvedRefs", "True", "ResolvedRefs")]).await.expect("resolved");
    assert_eq!(world.quiet().await - before, 1, "one route names the Service");
    let before = world.quiet().await;
    // A label changes nothing that a status depends on.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    world.send(Method::PATCH, &object_path("HTTPRoute", "default/r3"), &label).await.expect("a label");
    assert_eq!(world.quiet().await, before, "nothing changed, nothing is written");
    world.send(Method::DELETE, &object_path("HTTPRoute", "default/r3"), &Value::Null).await.expect("deleted");
    world.check(&[attached(99)]).await.expect("one route less");
    assert_eq!(world.quiet().await - before, 1, "the Gateway's");
    world.end().await;
}

/// The entries of other controllers stay, ours go when a route leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn entries_of_other_controllers_stay() {
    let world = World::new().await;
    for object in [class(), gateway("edge"), service("web"), route("r", "web")] {
        world.create(&object).await;
    }
    world.check(&[route_is("r", "Accepted", "True", "Accepted")]).await.expect("accepted");
    let path = format!("{}/status", object_path("HTTPRoute", "default/r"));
    let condition = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-01T00:00:00Z", "observedGeneration": 1});
    let other = json!({"controllerName": "example.com/other", "conditions": [condition],
        "parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "far"}});
    // It forgets our entry, as some do.
    world.send(Method::PATCH, &path, &json!({"status": {"parents": [other]}})).await.expect("a status");
    let parents = async || items(&world.get("HTTPRoute", "default/r").await["status"]["parents"]);
    eventually_async("our entry is written again", async || parents().await.len() == 2).await;
    assert_eq!(parents().await[0], other);
    let mut away = route("r", "web");
    away["spec"]["parentRefs"] = json!([{"name": "far"}]);
    world.replace(&away).await;
    let is_gone = async || parents().await == [other.clone()];
    eventually_async("our entry is removed, and the other stays", is_gone).await;
    world.end().await;
}

/// Two Gateways with one port get two addresses; a class says which features there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_status_that_another_client_wrote_first_is_planned_from_what_it_left() {
    let world = World::new().await;
    for object in [class(), gateway("edge"), service("web")] {
        world.create(&object).await;
    }
    world.quiet().await;
    let condition = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-01T00:00:00Z", "observedGeneration": 1});
    let other = json!({"controllerName": "example.com/other", "conditions": [condition],
        "parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "far"}});
    let path = format!("{}/status", object_path("HTTPRoute", "default/r"));
    let earlier = (path, json!({"status": {"parents": [other]}}));
    *world.rival.write.lock().expect("not poisoned") = Some(earlier);
    world.create(&route("r", "web")).await;
    world.check(&[route_is("r", "Accepted", "True", "Accepted")]).await.expect("accepted");
    let parents = items(&world.get("HTTPRoute", "default/r").await["status"]["parents"]);
    assert_eq!((parents.len(), &parents[0]), (2, &other), "both entries: {parents:?}");
    let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
    assert_eq!(
        (count(&world.rival.conflicts), count(&world.rival.reads)),
        (1, 1),
        "read again after the conflict"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_get_addresses_and_the_class_its_features() {
    let world = World::new().await;
    for object in [class(), gateway("edge"), gateway("second")] {
        world.create(&object).await;
    }
    let with = |name: &str| {
        json!({"kind": "Gateway", "name": format!("default/{name}"), "hasAddress": true,
            "conditions": [{"type": "Programmed", "status": "True"}]})
    };
    world.check(&[with("edge"), with("second")]).await.expect("addresses");
    let address = async |name: &str| {
        text(&world.get("Gateway", name).await["status"]["addresses"][0]["value"]).to_owned()
    };
    assert_ne!(address("default/edge").await, address("default/second").await);
    let class = world.get("GatewayClass", "conformance").await;
    let features: Vec<String> = items(&class["status"]["supportedFeatures"])
        .iter()
        .map(|own| text(&own["name"]).to_owned())
        .collect();
    assert!(features.is_sorted() && features.iter().any(|name| name == "HTTPRoute"), "{features:?}");
    let conditions = items(&class["status"]["conditions"]);
    assert!(
        conditions.iter().any(|own| own["type"] == "SupportedVersion" && own["status"] == "True"),
        "{class}"
    );
    world.end().await;
}

/// An API without the Gateway API is no error; when it appears, it is picked up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_gateway_api_may_appear_later() {
    let world = World::hiding(true).await;
    for object in [class(), gateway("edge"), service("web"), route("r", "web")] {
        world.create(&object).await;
    }
    // Routes of our own API get their conditions meanwhile.
    let own = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"name": "own", "namespace": "default"}, "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {}}]}]}});
    world.create(&own).await;
    let path = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes/own";
    let status =
        async || world.send(Method::GET, path, &Value::Null).await.expect("the route")["status"].clone();
    eventually_async("conditions of a MeshHTTPRoute", async || !status().await.is_null()).await;
    world.hides.send_replace(false);
    world.check(&[route_is("r", "Accepted", "True", "Accepted")]).await.expect("picked up");
    world.end().await;
}

/// A port that a proxy could not bind is in the status, of that Gateway alone, until it is bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unbound_ports_are_in_the_status_of_their_gateway() {
    let world = World::new().await;
    for object in [class(), gateway("edge"), gateway("second")] {
        world.create(&object).await;
    }
    let is = |name: &str, status: &str, reason: &str| {
        json!({"kind": "Gateway", "name": format!("default/{name}"),
            "conditions": [{"type": "Programmed", "status": status, "reason": reason}]})
    };
    let good = |name: &str| is(name, "True", "Programmed");
    world.check(&[good("edge"), good("second")]).await.expect("programmed");
    let before = world.quiet().await;
    let port = UnboundPort {
        namespace: "default".to_owned(),
        gateway: "edge".to_owned(),
        is_udp: false,
        address: ([192, 0, 2, 1], 80).into(),
        listener_port: None,
        envoy: String::new(),
        node: "n1".to_owned(),
        error: "Address already in use".to_owned(),
    };
    world.unbound.send_replace(UnboundPort::by_gateway([port]));
    world.check(&[is("edge", "False", "Pending"), good("second")]).await.expect("pending");
    assert_eq!(world.quiet().await, before + 1, "one write");
    world.unbound.send_replace(UnboundPorts::new());
    world.check(&[good("edge"), good("second")]).await.expect("bound");
    assert_eq!(world.quiet().await, before + 2, "one more write");
    world.end().await;
}
