//! Slices that `zoneward expose` makes: the endpoints are its own, hints and conditions follow the Service.

use fixtures::{eventually_async, node};
use serde_json::{Value, json};

use crate::controller::expect_condition;
use crate::controller::world::{World, config, items};

pub async fn exposed(world: &World) -> Value {
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        world.put(&node(name, zone)).await;
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]}});
    let service = world.put(&service).await;
    let endpoint = |address: &str, zone: &str| {
        json!({"addresses": [address], "zone": zone,
            "conditions": {"ready": true, "serving": true, "terminating": false}})
    };
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-80-tcp-ipv4-8080", "namespace": "default", "labels": {
            "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "expose.zoneward.dev",
            "zoneward.dev/expose-port": "80-tcp"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web",
                "uid": service["metadata"]["uid"]}]},
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": [endpoint("10.9.0.1", "za"), endpoint("10.9.0.2", "zb")]});
    world.put(&slice).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_expose_follow_the_services_distribution() {
    let mut world = World::new().await;
    let before = exposed(&world).await;
    world.start(config());
    let path = "/api/v1/namespaces/default/services/web";
    let hinted = async |wanted: usize| {
        let world = &world;
        eventually_async("the hints follow", || async {
            let slices = world.slices_of("default", "web").await;
            let endpoints = items(&slices[0]["endpoints"]);
            let own = |e: &&Value| e["hints"]["forZones"][0]["name"] == e["zone"];
            let found = endpoints.iter().filter(own).count();
            if slices.len() == 1 && endpoints.len() == 2 && found == wanted {
                Ok(slices[0].clone())
            } else {
                Err(format!("{slices:?}"))
            }
        })
        .await
    };
    world.merge(path, &json!({"spec": {"trafficDistribution": "PreferSameZone"}})).await;
    let slice = hinted(2).await;
    assert_eq!(slice["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(slice["ports"], before["ports"]);
    expect_condition(&world, "Programmed", "True", "Programmed").await;
    world.merge(path, &json!({"spec": {"trafficDistribution": null}})).await;
    let slice = hinted(0).await;
    assert_eq!(slice["metadata"]["annotations"], Value::Null);
    assert_eq!(slice["endpoints"], before["endpoints"]);
    let world = &world;
    eventually_async("the conditions go with it", || async {
        let left = items(&world.get(path).await["status"]["conditions"]).len();
        if left == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
}
