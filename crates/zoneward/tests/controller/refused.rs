//! What the conditions say when the API refuses slices: Programmed is about what was written, not about what was meant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fixtures::{eventually_async, node};
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::controller::world::{World, config, items, pod, service, start};
use crate::controller::{condition, expect_condition};

/// The API, but as long as `refuses` is true it takes no slice.
fn refusing(client: Client, refuses: Arc<AtomicBool>) -> Client {
    let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
        "metadata": {}, "message": format!("EndpointSlice \"web-x\" is invalid: endpoints[0].hints: too many{}",
            ", endpoints[1].hints: too many".repeat(1_000))});
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, answer) = (client.clone(), answer.to_string());
        let writes = *request.method() != Method::GET && request.uri().path().contains("endpointslices");
        let refused = writes && refuses.load(Ordering::SeqCst);
        async move {
            if !refused {
                return client.send(request).await;
            }
            let response = http::Response::builder().status(422).header("content-type", "application/json");
            Ok(response.body(Body::from(answer.into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_makes_programmed_false_with_the_reason() {
    let world = World::new().await;
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        world.put(&node(name, zone)).await;
    }
    let mut web = service("default", "web");
    web["spec"]["trafficDistribution"] = "PreferSameZone".into();
    world.put(&web).await;
    world.put(&pod("default", "web-1", "web", "n1", "10.1.0.1")).await;
    let refuses = Arc::new(AtomicBool::new(true));
    let client = refusing(world.client.clone(), refuses.clone());
    let running = start(&client, config(), &world.metrics);
    expect_condition(&world, "Programmed", "False", "WriteRefused").await;
    let message = condition(&world, "Programmed").await["message"].as_str().unwrap().to_owned();
    assert!(message.contains("endpoints[0].hints: too many"), "{message}");
    assert!(message.len() < 1_200 && message.ends_with("..."), "the API's words are cut: {message}");
    expect_condition(&world, "Accepted", "True", "Accepted").await;
    expect_condition(&world, "Honored", "False", "NotProgrammed").await;
    // The same refusal again is not written again.
    let path = "/api/v1/namespaces/default/services/web";
    let version = world.get(path).await["metadata"]["resourceVersion"].clone();
    world.put(&pod("default", "web-2", "web", "n2", "10.1.0.2")).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(world.get(path).await["metadata"]["resourceVersion"], version);
    refuses.store(false, Ordering::SeqCst);
    world.put(&pod("default", "web-3", "web", "n2", "10.1.0.3")).await;
    expect_condition(&world, "Programmed", "True", "Programmed").await;
    running.stop.send_replace(true);
    running.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_of_nine_zones_is_taken_by_the_api() {
    let mut world = World::new().await;
    for i in 0..9 {
        let mut node = node(&format!("n{i}"), &format!("z{i}"));
        node["metadata"]["labels"]["topology.kubernetes.io/region"] = "east".into();
        world.put(&node).await;
    }
    let mut web = service("default", "web");
    web["metadata"]["annotations"] = json!({"endpointslice.kubernetes.io/same-region": "Require"});
    world.put(&web).await;
    for i in 0..9 {
        let (name, address) = (format!("web-{i}"), format!("10.1.0.{}", i + 1));
        world.put(&pod("default", &name, "web", &format!("n{i}"), &address)).await;
    }
    world.start(config());
    expect_condition(&world, "Programmed", "True", "Programmed").await;
    let message = condition(&world, "Programmed").await["message"].as_str().unwrap().to_owned();
    assert!(message.contains("more than 8 zones"), "{message}");
    let slices = world.slices_of("default", "web").await;
    assert_eq!(slices[0]["metadata"]["annotations"]["zoneward.dev/mechanism"], "RequireRegion");
    let endpoints: Vec<Value> = slices.iter().flat_map(|slice| items(&slice["endpoints"])).collect();
    assert_eq!(endpoints.len(), 9);
    assert!(endpoints.iter().all(|endpoint| endpoint["hints"].is_null()), "{endpoints:?}");
    let world = &world;
    eventually_async("the Event says why there are no hints", || async {
        let events = items(&world.get("/api/v1/namespaces/default/events").await["items"]);
        let said = events.iter().any(|event| event["reason"] == "TooManyZonesForHints");
        if said { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
}
