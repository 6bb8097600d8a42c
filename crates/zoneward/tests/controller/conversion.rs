//! The rest of the vectors about pods, ports, labels and annotations, through the running system: each in a namespace of
//! its own, objects in by the API, slices out by the API.

use std::collections::BTreeSet;

use fixtures::{eventually_async, node};
use serde_json::{Value, json};

use crate::controller::world::{World, config, items, pod, pod_status, vectors};

/// A world with a controller and two zones, and the vectors of some kinds.
async fn begin(file: &str, kinds: &[&str]) -> (World, Vec<Value>) {
    let mut world = World::new().await;
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        world.put(&node(name, zone)).await;
    }
    world.start(config());
    let wanted = |vector: &Value| kinds.iter().any(|kind| vector["kind"] == *kind);
    let chosen: Vec<Value> = vectors(file).into_iter().filter(wanted).collect();
    assert!(kinds.iter().all(|kind| chosen.iter().any(|vector| vector["kind"] == *kind)));
    (world, chosen)
}

async fn namespace(world: &World, vector: &Value) -> String {
    let name = vector["id"].as_str().expect("an id").replace('.', "-");
    world.namespace(&name).await;
    name
}

/// The vector's Service as the API takes it: with ports, and with an address that the API chooses.
fn service(given: &Value, namespace: &str) -> Value {
    let mut service = given.clone();
    service["apiVersion"] = "v1".into();
    service["kind"] = "Service".into();
    service["metadata"]["namespace"] = namespace.into();
    if service["metadata"]["name"].is_null() {
        service["metadata"]["name"] = "foo".into();
    }
    let spec = &mut service["spec"];
    if spec["clusterIP"] != "None" {
        spec.as_object_mut().unwrap().remove("clusterIP");
    }
    spec["selector"] = json!({"app": "foo"});
    if spec["ports"].is_null() {
        spec["ports"] = json!([{"port": 80}]);
    }
    service
}

/// A pod of Service `foo` with the containers of a vector.
fn pod_with(given: &Value, namespace: &str) -> Value {
    let mut object = pod(namespace, "pod", "foo", "n1", "10.1.0.1");
    for list in ["containers", "initContainers"] {
        let mut containers = items(&given["spec"][list]);
        for (i, container) in containers.iter_mut().enumerate() {
            container["name"] = format!("{list}-{i}").to_lowercase().into();
            container["image"] = "i".into();
            for port in container["ports"].as_array_mut().into_iter().flatten() {
                let port = port.as_object_mut().unwrap();
                // No API server takes these, and they decide nothing.
                port.retain(|name, value| {
                    !(name == "hostPort" && *value == -1 || name == "name" && *value == "")
                });
            }
        }
        if !containers.is_empty() {
            object["spec"][list] = containers.into();
        }
    }
    object
}

/// The slices of a Service once they satisfy a check.
async fn slices(
    world: &World,
    vector: &Value,
    namespace: &str,
    service: &str,
    check: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    eventually_async(&format!("{}", vector["id"]), || async {
        let slices = world.slices_of(namespace, service).await;
        if check(&slices) { Ok(slices) } else { Err(format!("{slices:#?}")) }
    })
    .await
}

fn endpoints(slices: &[Value]) -> Vec<Value> {
    slices.iter().flat_map(|slice| items(&slice["endpoints"])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_are_found_in_pods_as_in_the_vectors() {
    let (world, vectors) = begin("endpoint-conversion.json", &["find-port", "pod-ports"]).await;
    for vector in &vectors {
        let (input, expect) = (&vector["input"], &vector["expect"]);
        let namespace = namespace(&world, vector).await;
        let mut given = json!({"spec": input["service"]["spec"]});
        let mut wanted: BTreeSet<u64> =
            items(&expect["ports"]).iter().filter_map(|p| p["port"].as_u64()).collect();
        if let Some(port) = expect["port"].as_u64() {
            given["spec"] = json!({"ports": [input["servicePort"].clone()]});
            given["spec"]["ports"][0]["port"] = 80.into();
            wanted.insert(port);
        }
        world.put(&service(&given, &namespace)).await;
        world.put(&pod_with(&input["pod"], &namespace)).await;
        slices(&world, vector, &namespace, "foo", |slices| {
            let ports = slices.iter().flat_map(|slice| items(&slice["ports"]));
            let ports: BTreeSet<u64> = ports.filter_map(|port| port["port"].as_u64()).collect();
            endpoints(slices).len() == 1 && ports == wanted
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_are_labelled_and_owned_as_in_the_vectors() {
    let (world, vectors) = begin("endpoint-conversion.json", &["slice-labels", "new-slice"]).await;
    for vector in &vectors {
        let (input, expect) = (&vector["input"], &vector["expect"]);
        let namespace = namespace(&world, vector).await;
        let made = world.put(&service(&input["service"], &namespace)).await;
        let owner = json!({"apiVersion": "v1", "kind": "Service", "name": "foo", "uid": made["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true});
        if input["slice"]["metadata"]["labels"].is_object() {
            // Its endpoints change with the pod below, and its labels with them.
            world
                .put(&json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                    "metadata": {"name": "foo-old", "namespace": namespace, "ownerReferences": [owner],
                        "labels": input["slice"]["metadata"]["labels"]}, "endpoints": []}))
                .await;
        }
        world.put(&pod(&namespace, "pod", "foo", "n1", "10.1.0.1")).await;
        let wanted = &expect["labels"];
        let wanted = if wanted.is_null() { &expect["slice"]["metadata"]["labels"] } else { wanted };
        let found = slices(&world, vector, &namespace, "foo", |slices| {
            endpoints(slices).len() == 1 && slices.iter().all(|slice| slice["metadata"]["labels"] == *wanted)
        })
        .await;
        if let Some(slice) = expect["slice"].as_object() {
            let metadata = &found[0]["metadata"];
            assert_eq!(metadata["generateName"], slice["metadata"]["generateName"], "{}", vector["id"]);
            assert_eq!(metadata["ownerReferences"], json!([owner]), "{}", vector["id"]);
            assert_eq!(found[0]["addressType"], slice["addressType"], "{}", vector["id"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_have_slices_of_their_families_as_in_the_vectors() {
    let (world, vectors) = begin("endpoint-conversion.json", &["address-types"]).await;
    for vector in &vectors {
        let namespace = namespace(&world, vector).await;
        let families = &vector["expect"]["addressTypes"];
        let mut object = service(&vector["input"]["service"], &namespace);
        // What the API does not settle by itself from an address of its own choice.
        object["spec"]["ipFamilies"] = families.clone();
        object["spec"]["ipFamilyPolicy"] =
            if items(families).len() == 2 { "RequireDualStack".into() } else { "SingleStack".into() };
        world.put(&object).await;
        let wanted: BTreeSet<String> = items(families).iter().map(Value::to_string).collect();
        slices(&world, vector, &namespace, "foo", |slices| {
            slices.iter().map(|slice| slice["addressType"].to_string()).collect::<BTreeSet<_>>() == wanted
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_listed_or_not_as_in_the_vectors() {
    let (world, vectors) = begin("endpoint-conversion.json", &["pod-included", "hostname-published"]).await;
    for vector in &vectors {
        let (given, expect) = (&vector["input"]["pod"], &vector["expect"]);
        let namespace = namespace(&world, vector).await;
        world.put(&service(&json!({"spec": {}}), &namespace)).await;
        let mut object = pod(&namespace, "pod", "foo", "n1", "10.1.0.1");
        if given["status"].is_object() {
            let mut status = given["status"].clone();
            if status["podIPs"].is_null() {
                // An API server fills the list by itself.
                status["podIPs"] = json!([{"ip": status["podIP"]}]);
            }
            for ip in status["podIPs"].as_array_mut().into_iter().flatten() {
                // The API takes addresses in one spelling only.
                let address: std::net::IpAddr = ip["ip"].as_str().unwrap().parse().unwrap();
                ip["ip"] = address.to_string().into();
            }
            object["status"] = status;
        }
        for field in ["hostname", "subdomain"] {
            if let Some(text) = given["spec"][field].as_str().filter(|text| !text.is_empty()) {
                object["spec"][field] = text.into();
            }
        }
        world.put(&object).await;
        // A second pod, so that there is something to wait for.
        world.put(&pod(&namespace, "other", "foo", "n2", "10.1.0.2")).await;
        let count = if expect["included"] == false { 1 } else { 2 };
        let found =
            slices(&world, vector, &namespace, "foo", |slices| endpoints(slices).len() == count).await;
        let hostnames = endpoints(&found).iter().filter(|e| e["hostname"].is_string()).count();
        assert_eq!(hostnames, usize::from(expect["set"] == true), "{}", vector["id"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_turn_auto_on_and_off_as_in_the_vectors() {
    let (world, vectors) = begin("hints-auto.json", &["annotation"]).await;
    for vector in &vectors {
        let namespace = namespace(&world, vector).await;
        for i in 1..=4 {
            let at = if i % 2 == 0 { "n2" } else { "n1" };
            let mut object = pod(&namespace, &format!("pod-{i}"), "foo", at, &format!("10.1.0.{i}"));
            object["status"] = pod_status(&format!("10.1.0.{i}"), true);
            world.put(&object).await;
        }
        let given = json!({"metadata": {"annotations": vector["input"]["annotations"]}, "spec": {}});
        let object = service(&given, &namespace);
        if vector["input"]["annotations"].as_object().is_some_and(|all| all.len() == 2) {
            // Two that contradict each other: no API takes them, so this case is for `plan` alone.
            let path = format!("/api/v1/namespaces/{namespace}/services");
            assert!(world.try_send("POST", &path, "application/json", &object).await.is_err());
            continue;
        }
        world.put(&object).await;
        let hinted = if vector["expect"]["topologyModeAuto"] == true { 4 } else { 0 };
        slices(&world, vector, &namespace, "foo", |slices| {
            let endpoints = endpoints(slices);
            let with_hints = endpoints.iter().filter(|e| e["hints"]["forZones"].is_array()).count();
            endpoints.len() == 4 && with_hints == hinted
        })
        .await;
    }
}
