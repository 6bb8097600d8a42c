//! The vectors through the running system: objects in by the API, slices, Events and conditions out by the API.

use std::collections::BTreeMap;

use fixtures::eventually_async;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::controller::world::{World, config, items, pod_status, vectors};

fn address(i: &Value) -> String {
    let i = i.as_u64().expect("a number");
    format!("10.64.{}.{}", i / 250, i % 250 + 1)
}

fn packing_pod(pod: &Value) -> Value {
    let address = address(&pod["i"]);
    let node = pod["node"].as_str().unwrap_or("node-1");
    let mut object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod{}", pod["i"]), "namespace": "test", "labels": {"foo": "bar"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": pod_status(&address, pod["ready"] == true)});
    if let Some(port) = pod.get("namedPort") {
        object["spec"]["containers"][0]["ports"] =
            json!([{"name": port["name"], "containerPort": port["port"], "protocol": "TCP"}]);
    }
    if pod["terminating"] == true || pod["deleting"] == true {
        object["metadata"]["deletionTimestamp"] = true.into();
    }
    object
}

/// A stored slice of the vector, with the identities that the API gave to its Service and pods.
fn packing_slice(slice: &Value, vector: &Value, service: &Value, uids: &BTreeMap<String, Value>) -> Value {
    let endpoint = |e: &Value| {
        let pod = format!("pod{}", e["i"]);
        let uid = uids.get(&pod).cloned().unwrap_or_else(|| json!("gone"));
        json!({"addresses": [address(&e["i"])], "nodeName": "node-1",
            "conditions": {"ready": e["ready"], "serving": e["serving"], "terminating": e["terminating"]},
            "targetRef": {"kind": "Pod", "namespace": "test", "name": pod, "uid": uid}})
    };
    let owner = |uid: &Value| {
        let ours = *uid == vector["service"]["metadata"]["uid"];
        let uid = if ours { service["metadata"]["uid"].clone() } else { uid.clone() };
        json!({"apiVersion": "v1", "kind": "Service", "name": "foo", "uid": uid, "controller": true})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": slice["name"], "namespace": "test", "labels": slice["labels"],
            "ownerReferences": items(&slice["ownerUIDs"]).iter().map(owner).collect::<Vec<_>>()},
        "addressType": slice["addressType"], "ports": slice["ports"],
        "endpoints": items(&slice["endpoints"]).iter().map(endpoint).collect::<Vec<_>>()})
}

fn versions(slices: &[Value]) -> BTreeMap<String, String> {
    let text = |slice: &Value, field: &str| slice["metadata"][field].as_str().unwrap_or_default().to_owned();
    slices.iter().map(|slice| (text(slice, "uid"), text(slice, "resourceVersion"))).collect()
}

/// How many slices came, changed and went.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> [u64; 3] {
    let creates = after.keys().filter(|uid| !before.contains_key(*uid)).count();
    let deletes = before.keys().filter(|uid| !after.contains_key(*uid)).count();
    let updates = before.iter().filter(|(uid, v)| after.get(*uid).is_some_and(|now| now != *v)).count();
    [creates as u64, updates as u64, deletes as u64]
}

async fn packing(vector: &Value) -> bool {
    let labelled = |s: &Value| s["labels"]["kubernetes.io/service-name"].is_string();
    if !items(&vector["existingSlices"]).iter().all(labelled) {
        return false;
    }
    let (id, expect) = (&vector["id"], &vector["expect"]);
    let mut world = World::new().await;
    world.namespace("test").await;
    let mut service = vector["service"].clone();
    for (i, port) in service["spec"]["ports"].as_array_mut().into_iter().flatten().enumerate() {
        if port.get("port").is_none() {
            port["port"] = (80 + i).into();
        }
    }
    let service = world.put(&service).await;
    world.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})).await;
    let pods = items(&vector["pods"]);
    let put = |pod: Value| {
        let world = &world;
        async move { (format!("pod{}", pod["i"]), world.put(&packing_pod(&pod)).await["metadata"]["uid"].clone()) }
    };
    let uids: BTreeMap<String, Value> = join_all(pods.into_iter().map(put)).await.into_iter().collect();
    for slice in items(&vector["existingSlices"]) {
        world.put(&packing_slice(&slice, vector, &service, &uids)).await;
    }
    let before = versions(&world.slices("test").await);
    let mut config = config();
    config.settings.planning.slices.max_endpoints =
        vector["maxEndpointsPerSlice"].as_u64().expect("a limit") as usize;
    world.start(config);
    let wanted = ["creates", "updates", "deletes"].map(|change| expect[change].as_u64().expect("a count"));
    let world = &world;
    let check = || async {
        let slices = world.slices("test").await;
        let done = changes(&before, &versions(&slices));
        if done == wanted { Ok(slices) } else { Err(format!("{done:?} instead of {wanted:?}")) }
    };
    eventually_async(&format!("{id}"), check).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let slices = check().await.unwrap_or_else(|why| panic!("{id}: it does not rest: {why}"));
    let lengths = |list: Vec<u64>| {
        let mut list = list;
        list.sort_unstable();
        list
    };
    let have = lengths(slices.iter().map(|s| items(&s["endpoints"]).len() as u64).collect());
    let want = items(&expect["sliceLengthsAfter"]).iter().filter_map(Value::as_u64).collect();
    assert_eq!(have, lengths(want), "{id}: lengths");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slice_packing_holds_through_the_running_system() {
    let mut ran = 0;
    for vector in vectors("slice-packing.json") {
        ran += usize::from(packing(&vector).await);
    }
    assert!(ran >= 10, "only {ran} vectors have slices with labels");
}

/// A node in a zone that has pods: one of the vector's, or one that does not count because it is not ready.
fn node_of(zone: &Value, nodes: &mut Vec<Value>) -> String {
    let in_zone = |node: &&Value| node["metadata"]["labels"]["topology.kubernetes.io/zone"] == *zone;
    if let Some(node) = nodes.iter().filter(|_| zone.is_string()).find(in_zone) {
        return node["metadata"]["name"].as_str().expect("a name").to_owned();
    }
    let name = format!("idle-{}", nodes.len());
    let labels = if zone.is_string() { json!({"topology.kubernetes.io/zone": zone}) } else { json!({}) };
    nodes.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    name
}

async fn auto(vector: &Value) {
    let (id, expect) = (&vector["id"], &vector["expect"]);
    let mut world = World::new().await;
    let mut nodes = items(&vector["input"]["nodes"]);
    let mut pods = Vec::new();
    for group in items(&vector["input"]["readyEndpointsInSliceOrder"]) {
        let node = node_of(&group["zone"], &mut nodes);
        for _ in 0..group["count"].as_u64().expect("a count") {
            let address = address(&json!(pods.len()));
            let name = format!("pod{:04}", pods.len());
            pods.push(crate::controller::world::pod("default", &name, "svc", &node, &address));
        }
    }
    join_all(nodes.iter().chain(&pods).map(|object| world.put(object))).await;
    let mut service = crate::controller::world::service("default", "svc");
    service["metadata"]["annotations"] = json!({"service.kubernetes.io/topology-mode": "Auto"});
    world.put(&service).await;
    let mut config = config();
    config.settings.planning.slices.max_endpoints = 1000;
    world.start(config);
    let wanted = if expect["hintsPerZone"].is_null() { json!({}) } else { expect["hintsPerZone"].clone() };
    let (world, wanted) = (&world, &wanted);
    eventually_async(&format!("{id}: hints"), || async {
        let slices = world.slices_of("default", "svc").await;
        let endpoints: Vec<Value> = slices.iter().flat_map(|s| items(&s["endpoints"])).collect();
        let mut per_zone: BTreeMap<&str, u64> = BTreeMap::new();
        for endpoint in &endpoints {
            if let Some(zone) = endpoint["hints"]["forZones"][0]["name"].as_str() {
                *per_zone.entry(zone).or_default() += 1;
            }
        }
        let as_wanted = endpoints.len() == pods.len() && json!(per_zone) == *wanted;
        if as_wanted { Ok(()) } else { Err(format!("{per_zone:?} instead of {wanted}")) }
    })
    .await;
    let event = &expect["events"][0];
    eventually_async(&format!("{id}: its Event"), || async {
        let events = items(&world.get("/api/v1/namespaces/default/events").await["items"]);
        let told = |e: &Value| {
            let message = e["message"].as_str().unwrap_or_default();
            e["reason"] == event["reason"]
                && e["type"] == event["type"]
                && message.starts_with(event["message"].as_str().unwrap_or("?"))
        };
        if events.iter().any(told) { Ok(()) } else { Err(format!("{event} is not in {events:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_auto_holds_through_the_running_system() {
    for vector in vectors("hints-auto.json").iter().filter(|v| v["kind"] == "end-to-end") {
        auto(vector).await;
    }
}

/// The endpoints of a vector's slices.
fn listed(vector: &Value) -> Vec<Value> {
    let lists = ["slicesToCreate", "slicesToUpdate", "slicesUnchanged"];
    let slices = lists.iter().flat_map(|list| items(&vector[list]));
    slices.flat_map(|slice| items(&slice["endpoints"])).collect()
}

/// Some vectors have an address twice, or an endpoint that is on no node but in a zone: no pods are like that, so they
/// are for `plan` alone.
fn could_be_pods(endpoints: &[Value]) -> bool {
    let addresses: std::collections::BTreeSet<&str> =
        endpoints.iter().filter_map(|e| e["addresses"][0].as_str()).collect();
    addresses.len() == endpoints.len() && endpoints.iter().all(|e| e["nodeName"].is_string())
}

async fn distribution(vector: &Value) -> bool {
    let id = &vector["id"];
    let endpoints = listed(vector);
    if !could_be_pods(&endpoints) {
        return false;
    }
    let mut world = World::new().await;
    for endpoint in &endpoints {
        let node = endpoint["nodeName"].as_str().unwrap_or_default();
        world.put(&fixtures::node(node, endpoint["zone"].as_str().unwrap_or_default())).await;
        let address = endpoint["addresses"][0].as_str().unwrap_or_default();
        let name = format!("pod-{}", address.replace('.', "-"));
        let mut pod = crate::controller::world::pod("default", &name, "svc", node, address);
        pod["status"] = pod_status(address, endpoint["conditions"]["ready"] == true);
        world.put(&pod).await;
    }
    let mut service = crate::controller::world::service("default", "svc");
    service["spec"]["trafficDistribution"] = vector["trafficDistribution"].clone();
    world.put(&service).await;
    world.start(config());
    let hints = |endpoints: Vec<Value>| -> BTreeMap<String, Value> {
        let address = |e: &Value| e["addresses"][0].as_str().unwrap_or_default().to_owned();
        endpoints.iter().map(|e| (address(e), e["hints"].clone())).collect()
    };
    let (world, wanted) = (&world, &hints(listed(&vector["expect"])));
    eventually_async(&format!("{id}"), || async {
        let slices = world.slices_of("default", "svc").await;
        let found = hints(slices.iter().flat_map(|s| items(&s["endpoints"])).collect());
        if found == *wanted { Ok(()) } else { Err(format!("{found:?} instead of {wanted:?}")) }
    })
    .await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_distribution_hints_hold_through_the_running_system() {
    let mut ran = 0;
    for vector in vectors("trafficdist-hints.json") {
        ran += usize::from(distribution(&vector).await);
    }
    assert_eq!(ran, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_become_the_endpoints_of_endpoint_conversion() {
    for vector in vectors("endpoint-conversion.json").iter().filter(|v| v["kind"] == "pod-to-endpoint") {
        let (id, input) = (&vector["id"], &vector["input"]);
        let mut world = World::new().await;
        let namespace = input["pod"]["metadata"]["namespace"].as_str().unwrap_or("default");
        world.namespace(namespace).await;
        for (kind, object) in [("Node", &input["node"]), ("Pod", &input["pod"])] {
            let mut object = object.clone();
            if object.is_null() {
                // The function behind the vector takes a pod without its node; the controller waits for the node.
                object = json!({"metadata": {"name": input["pod"]["spec"]["nodeName"]}});
            }
            object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            object["apiVersion"] = "v1".into();
            object["kind"] = kind.into();
            if kind == "Pod" {
                object["metadata"]["labels"]["app"] = "s".into();
                for container in object["spec"]["containers"].as_array_mut().into_iter().flatten() {
                    container["image"] = "i".into();
                }
            }
            world.put(&object).await;
        }
        let mut service = crate::controller::world::service(namespace, "s");
        let given = &input["service"];
        let name = given["metadata"]["name"].as_str().unwrap_or("s").to_owned();
        service["metadata"]["name"] = name.as_str().into();
        for field in ["publishNotReadyAddresses"] {
            if !given["spec"][field].is_null() {
                service["spec"][field] = given["spec"][field].clone();
            }
        }
        service["spec"]["ipFamilies"] = json!([input["addressType"]]);
        world.put(&service).await;
        world.start(config());
        let expect = &vector["expect"]["endpoint"];
        let (world, name) = (&world, &name);
        eventually_async(&format!("{id}"), || async {
            let slices = world.slices_of(namespace, name).await;
            let Some(endpoint) = slices.iter().flat_map(|s| items(&s["endpoints"])).next() else {
                return Err("no endpoint".to_owned());
            };
            for field in ["addresses", "conditions", "hostname", "nodeName", "zone"] {
                if endpoint[field] != expect[field] {
                    return Err(format!("{field}: {} instead of {}", endpoint[field], expect[field]));
                }
            }
            Ok(())
        })
        .await;
    }
}
