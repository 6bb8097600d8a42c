//! The slice controller on the embedded API, as a whole: what is done by hand is put right, what is asked for is
//! written and said once, and the vectors hold.

mod agree;
mod chaos;
mod conversion;
mod exposed;
mod hand_back;
mod lead;
mod refused;
mod vectors;
mod world;

use std::time::{Duration, Instant};

use controller::ControllerExit;
use fixtures::{eventually_async, node};
use serde_json::{Value, json};
use world::{World, config, items, pod, pod_status, ready, service, slices_path};

/// A cluster of two zones with one Service of four pods, and a controller at work.
async fn shop(spec: Value) -> World {
    let mut world = World::new().await;
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        world.put(&node(name, zone)).await;
    }
    let mut web = service("default", "web");
    web["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    world.put(&web).await;
    for i in 1..=4 {
        let at = if i % 2 == 0 { "n2" } else { "n1" };
        world.put(&pod("default", &format!("web-{i}"), "web", at, &format!("10.1.0.{i}"))).await;
    }
    world.start(config());
    settled(&world, &[1, 2, 3, 4]).await;
    world
}

/// Waits until the Service's slices list just these as ready, each once.
async fn settled(world: &World, pods: &[u8]) -> Vec<Value> {
    let wanted: Vec<String> = pods.iter().map(|i| format!("10.1.0.{i}")).collect();
    eventually_async("the slices list the pods", || async {
        let slices = world.slices_of("default", "web").await;
        let have = ready(&slices);
        if have == wanted { Ok(slices) } else { Err(format!("{have:?} instead of {wanted:?}")) }
    })
    .await
}

fn path(slice: &Value) -> String {
    format!("{}/{}", slices_path("default"), slice["metadata"]["name"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_follow_pods() {
    let mut world = shop(json!({})).await;
    let status = |i: u8, ready| json!({"status": pod_status(&format!("10.1.0.{i}"), ready)});
    world.merge("/api/v1/namespaces/default/pods/web-2/status", &status(2, false)).await;
    let slices = settled(&world, &[1, 3, 4]).await;
    assert_eq!(items(&slices[0]["endpoints"]).len(), 4, "one that is not ready stays listed");
    world.send("DELETE", "/api/v1/namespaces/default/pods/web-1?gracePeriodSeconds=0", &Value::Null).await;
    settled(&world, &[3, 4]).await;
    world.merge("/api/v1/namespaces/default/pods/web-2/status", &status(2, true)).await;
    world.put(&pod("default", "web-5", "web", "n1", "10.1.0.5")).await;
    settled(&world, &[2, 3, 4, 5]).await;
    assert_eq!(world.stop().await, ControllerExit::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_edited_or_deleted_by_hand_come_back_at_once() {
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    let all = [1, 2, 3, 4];
    for round in 0..5 {
        let slice = &settled(&world, &all).await[0];
        let start = Instant::now();
        match round {
            0 => drop(world.send("DELETE", &path(slice), &Value::Null).await),
            1 => drop(world.merge(&path(slice), &json!({"endpoints": []})).await),
            2 => {
                let mut endpoints = items(&slice["endpoints"]);
                endpoints.iter_mut().for_each(|e| e["hints"] = Value::Null);
                world.merge(&path(slice), &json!({"endpoints": endpoints})).await;
            }
            3 => {
                let labels = json!({"metadata": {"labels": {"kubernetes.io/service-name": null}}});
                world.merge(&path(slice), &labels).await;
            }
            _ => {
                let annotations = json!({"metadata": {"annotations": {"zoneward.dev/mechanism": "RequireZone",
                    "example.com/theirs": "stays"}}});
                world.merge(&path(slice), &annotations).await;
            }
        }
        let world = &world;
        eventually_async("it is as before", || async {
            let slices = world.slices_of("default", "web").await;
            let hinted = |e: &Value| e["hints"]["forZones"][0]["name"] == e["zone"];
            let right = slices.len() == 1
                && ready(&slices).len() == 4
                && items(&slices[0]["endpoints"]).iter().all(hinted)
                && slices[0]["metadata"]["annotations"]["zoneward.dev/mechanism"] != "RequireZone";
            if right { Ok(()) } else { Err(format!("round {round}: {slices:#?}")) }
        })
        .await;
        assert!(start.elapsed() < Duration::from_secs(10), "round {round}: {:?}", start.elapsed());
    }
    let slice = &settled(&world, &all).await[0];
    assert_eq!(slice["metadata"]["annotations"]["example.com/theirs"], "stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_without_a_service_are_removed() {
    let world = shop(json!({})).await;
    world.send("DELETE", "/api/v1/namespaces/default/services/web", &Value::Null).await;
    let world = &world;
    eventually_async("no slice is left", || async {
        let left = world.slices_of("default", "web").await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
}

async fn condition(world: &World, kind: &str) -> Value {
    let service = world.get("/api/v1/namespaces/default/services/web").await;
    let kind = format!("zoneward.dev/TrafficDistribution{kind}");
    items(&service["status"]["conditions"])
        .into_iter()
        .find(|c| c["type"] == kind.as_str())
        .unwrap_or_default()
}

async fn expect_condition(world: &World, kind: &str, status: &str, reason: &str) {
    eventually_async(&format!("{kind} is {status} {reason}"), || async {
        let found = condition(world, kind).await;
        if found["status"] == status && found["reason"] == reason { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

async fn lease(world: &World, node: &str, revision: &str, failed: &str) {
    let name = format!("zoneward-node-{node}");
    let annotations =
        json!({"zoneward.dev/programmed-revision": revision, "zoneward.dev/failed-services": failed});
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"zoneward.dev/component": "node-proxy"},
            "annotations": annotations}});
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}");
    if world.try_send("GET", &path, "application/json", &Value::Null).await.is_ok() {
        world.merge(&path, &json!({"metadata": {"annotations": annotations}})).await;
    } else {
        world.put(&object).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_say_what_was_accepted_programmed_and_honored() {
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    world.namespace("kube-system").await;
    expect_condition(&world, "Accepted", "True", "Accepted").await;
    expect_condition(&world, "Programmed", "True", "Programmed").await;
    expect_condition(&world, "Honored", "Unknown", "NoNodeProxy").await;

    lease(&world, "n1", "1000000", "").await;
    lease(&world, "n2", "1000000", "default/web").await;
    expect_condition(&world, "Honored", "False", "NodesBehind").await;
    let message = condition(&world, "Honored").await["message"].as_str().unwrap().to_owned();
    assert!(message.contains("n2") && !message.contains("status"), "{message}");
    lease(&world, "n2", "1000000", "").await;
    expect_condition(&world, "Honored", "True", "Honored").await;

    // A pod more turns nothing, so nothing is written.
    let before =
        world.get("/api/v1/namespaces/default/services/web").await["metadata"]["resourceVersion"].clone();
    world.put(&pod("default", "web-5", "web", "n1", "10.1.0.5")).await;
    settled(&world, &[1, 2, 3, 4, 5]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after =
        world.get("/api/v1/namespaces/default/services/web").await["metadata"]["resourceVersion"].clone();
    assert_eq!(before, after);

    // Somebody else's condition survives ours going away.
    let theirs = json!({"status": {"conditions": [{"type": "example.com/Theirs", "status": "True", "reason": "R",
        "message": "m", "lastTransitionTime": "2026-11-15T10:00:00Z"}]}});
    let path = "/api/v1/namespaces/default/services/web";
    let kind = "application/strategic-merge-patch+json";
    world.try_send("PATCH", &format!("{path}/status"), kind, &theirs).await.unwrap();
    world.merge(path, &json!({"spec": {"trafficDistribution": null}})).await;
    let world = &world;
    eventually_async("ours are gone", || async {
        let conditions = items(&world.get(path).await["status"]["conditions"]);
        let left: Vec<&Value> = conditions.iter().map(|c| &c["type"]).collect();
        if left == ["example.com/Theirs"] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_said_once_and_not_again_after_a_restart() {
    let mut world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    let count = async |world: &World| {
        let events = items(&world.get("/api/v1/namespaces/default/events").await["items"]);
        let about = |e: &&Value| {
            e["reason"] == "TrafficDistributionProgrammed" && e["involvedObject"]["name"] == "web"
        };
        events.iter().filter(about).map(|e| e["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    {
        let world = &world;
        eventually_async("the Event comes", || async {
            let said = count(world).await;
            if said == 1 { Ok(()) } else { Err(said.to_string()) }
        })
        .await;
    }
    world.put(&pod("default", "web-5", "web", "n1", "10.1.0.5")).await;
    settled(&world, &[1, 2, 3, 4, 5]).await;
    world.stop().await;
    world.start(config());
    world.put(&pod("default", "web-6", "web", "n2", "10.1.0.6")).await;
    settled(&world, &[1, 2, 3, 4, 5, 6]).await;
    assert_eq!(count(&world).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_distribution_is_an_event() {
    // `kubectl describe` showed the mechanism of before as the last word.
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    let path = "/api/v1/namespaces/default/services/web";
    let said = async |text: &str| {
        let world = &world;
        eventually_async(text, || async {
            let events = items(&world.get("/api/v1/namespaces/default/events").await["items"]);
            let found = events.iter().any(|e| {
                e["involvedObject"]["name"] == "web"
                    && e["message"].as_str().is_some_and(|m| m.contains(text))
            });
            if found { Ok(()) } else { Err(format!("{events:?}")) }
        })
        .await;
    };
    said("spec.trafficDistribution: PreferSameZone: traffic stays in its zone").await;
    world.merge(path, &json!({"spec": {"trafficDistribution": "PreferSameNode"}})).await;
    said("spec.trafficDistribution: PreferSameNode").await;
    world.merge(path, &json!({"spec": {"trafficDistribution": null}})).await;
    said("PreferSameNode ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gets_a_zone_or_comes_late_reaches_the_slices() {
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    world
        .merge("/api/v1/nodes/n2", &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zc"}}}))
        .await;
    let zones = async |world: &World| -> Vec<String> {
        let slices = world.slices_of("default", "web").await;
        let mut zones: Vec<String> = slices
            .iter()
            .flat_map(|s| items(&s["endpoints"]))
            .map(|e| format!("{}>{}", e["zone"], e["hints"]["forZones"][0]["name"]).replace('"', ""))
            .collect();
        zones.sort();
        zones.dedup();
        zones
    };
    eventually_async("the new zone is on the endpoints", || async {
        let found = zones(&world).await;
        if found == ["za>za", "zc>zc"] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    world.put(&pod("default", "web-5", "web", "late", "10.1.0.5")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    settled(&world, &[1, 2, 3, 4]).await;
    world.put(&node("late", "za")).await;
    settled(&world, &[1, 2, 3, 4, 5]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_of_a_namespace_holds_for_its_services() {
    let world = shop(json!({})).await;
    let hinted = async |world: &World| {
        let slices = world.slices_of("default", "web").await;
        slices.iter().flat_map(|s| items(&s["endpoints"])).filter(|e| !e["hints"].is_null()).count()
    };
    assert_eq!(hinted(&world).await, 0);
    let key = "zoneward.dev/default-traffic-distribution";
    world
        .merge("/api/v1/namespaces/default", &json!({"metadata": {"annotations": {key: "PreferSameZone"}}}))
        .await;
    let world = &world;
    eventually_async("the endpoints get hints", || async {
        let found = hinted(world).await;
        if found == 4 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_another_controller_slices_are_our_own_and_its_are_left_alone() {
    let mut world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    world.stop().await;
    // What was written alone now stands for the other controller's.
    let theirs = world.slices_of("default", "web").await;
    let mut coexist = config();
    coexist.settings.planning.slices.mode = plan::slices::SliceMode::Coexist;
    world.start(coexist);
    let ours = async |world: &World| {
        let path = format!("{}?labelSelector=zoneward.dev/service-name=web", slices_path("default"));
        items(&world.get(&path).await["items"])
    };
    let shared = &world;
    let found = eventually_async("ours stand beside", || async {
        let found = ours(shared).await;
        if ready(&found).len() == 4 { Ok(found) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(found[0]["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"], "zoneward.dev");
    assert_eq!(shared.slices_of("default", "web").await, theirs);
    world.stop().await;
    // Alone again: ours beside go, the others are taken back as they are.
    world.start(config());
    let shared = &world;
    eventually_async("none stands beside", || async {
        let left = ours(shared).await.len();
        if left == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
    assert_eq!(shared.slices_of("default", "web").await, theirs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_object_is_said_and_the_rest_goes_on() {
    let world = shop(json!({})).await;
    let named = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "named", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "x", "port": 80, "targetPort": "nothing"}]}});
    world.put(&named).await;
    let world = &world;
    eventually_async("the Event names the port", || async {
        let events = items(&world.get("/api/v1/namespaces/default/events").await["items"]);
        let said =
            events.iter().any(|e| e["reason"] == "PortNotFound" && e["involvedObject"]["name"] == "named");
        if said { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
    settled(world, &[1, 2, 3, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_names_that_dashboards_know() {
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    let mut registry = prometheus_client::registry::Registry::default();
    world.metrics.register(&mut registry);
    let world = &world;
    let registry = &registry;
    eventually_async("the metrics count the Service", || async {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        let lines = [
            "endpoint_slice_controller_endpoints_desired 4",
            "endpoint_slice_controller_num_endpoint_slices 1",
            "endpoint_slice_controller_desired_endpoint_slices 1",
            "endpoint_slice_controller_changes{operation=\"create\"}",
            "endpoint_slice_controller_syncs{result=\"success\"}",
            "endpoint_slice_controller_endpoints_added_per_sync_bucket",
            "endpoint_slice_controller_endpoints_removed_per_sync_sum",
            "endpoint_slice_controller_services_count_by_traffic_distribution{traffic_distribution=\"PreferSameZone\"} 1",
            "endpoint_slice_controller_changes_endpointslices_per_sync_count{approach=\"PreferSameZone\"}",
            "endpoint_slice_controller_reallocated_endpoints_per_sync_count",
            "endpoint_slice_controller_total_endpoints 4",
            "zoneward_controller_services_by_mechanism{mechanism=\"PreferSameZone\"} 1",
        ];
        let topology = "endpoint_slice_controller_endpointslices_changed_per_sync_count{topology=\"Disabled\"";
        match lines.iter().chain([&topology]).find(|line| !text.contains(**line)) {
            None => Ok(()),
            Some(missing) => Err(format!("{missing} is not in\n{text}")),
        }
    })
    .await;
    let _ = world;
}
