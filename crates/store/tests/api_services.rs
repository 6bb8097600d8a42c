//! Services: addresses and ports that come and go with them, in the same transaction.

use crate::world;
use std::collections::BTreeSet;

use fixtures::eventually_async;
use http::Request;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits, Caller};
use world::{SERVICES, World, read, service};

async fn addresses(world: &World) -> Vec<String> {
    let (_, list) = world.get("/apis/networking.k8s.io/v1/ipaddresses").await;
    let items = list["items"].as_array().unwrap();
    items.iter().map(|ip| ip["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn ip(service: &Value) -> String {
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_address_comes_with_the_service_and_goes_with_it() {
    let world = World::new().await;
    let web = world.service("web", json!({})).await;
    assert_eq!(web["spec"]["clusterIPs"], json!([ip(&web)]));
    assert_eq!(web["spec"]["ipFamilies"], json!(["IPv4"]));
    let (code, lock) = world.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{}", ip(&web))).await;
    assert_eq!((code, &lock["spec"]["parentRef"]["name"]), (200, &json!("web")));
    let (code, gone) = world.delete(&format!("{SERVICES}/web"), &Value::Null).await;
    assert_eq!(
        (code, &gone["kind"]),
        (200, &json!("Service")),
        "client libraries read the Service that went"
    );
    assert_eq!(addresses(&world).await, ["10.96.0.1"]);
}

#[tokio::test]
async fn many_writers_never_get_the_same_address_or_port() {
    let world = World::new().await;
    let mut writers = tokio::task::JoinSet::new();
    for i in 0..60 {
        let (api, object) = (world.api.clone(), service(&format!("s{i}"), json!({"type": "NodePort"})));
        writers.spawn(async move {
            let request = Request::post(SERVICES).header("content-type", "application/json");
            let request = request.body(object.to_string().into()).unwrap();
            read(api.answer(request, &Caller::own()).await).await.1
        });
    }
    let tasks = writers.join_all().await;
    let ips: BTreeSet<String> = tasks.iter().map(ip).collect();
    let ports: BTreeSet<u64> =
        tasks.iter().map(|s| s["spec"]["ports"][0]["nodePort"].as_u64().unwrap()).collect();
    assert_eq!((ips.len(), ports.len()), (60, 60));
    assert_eq!(addresses(&world).await.len(), 61);
}

#[tokio::test]
async fn an_address_that_is_taken_or_out_of_range_is_refused_by_field() {
    let world = World::new().await;
    for wanted in ["10.96.0.1", "10.97.0.1", "10.96.0.0"] {
        let (code, status) = world.json("POST", SERVICES, &service("a", json!({"clusterIP": wanted}))).await;
        assert_eq!(code, 422, "{wanted}: {status:#}");
        assert_eq!(status["details"]["causes"][0]["field"], "spec.clusterIPs", "{wanted}");
    }
    let chosen = world.service("b", json!({"clusterIP": "10.96.0.10"})).await;
    assert_eq!(ip(&chosen), "10.96.0.10");
    assert_eq!(addresses(&world).await, ["10.96.0.1", "10.96.0.10"], "the refused ones left nothing behind");
}

#[tokio::test]
async fn a_second_family_is_added_and_given_back() {
    let world = World::new().await;
    let web = world.service("web", json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(web["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(addresses(&world).await.len(), 3);
    let path = format!("{SERVICES}/web");
    let (code, single) =
        world.patch(&path, "merge-patch", &json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await;
    assert_eq!((code, &single["spec"]["clusterIPs"]), (200, &json!([ip(&web)])), "{single:#}");
    assert_eq!(addresses(&world).await.len(), 2);
    let (code, dual) =
        world.patch(&path, "merge-patch", &json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await;
    assert_eq!((code, dual["spec"]["clusterIPs"].as_array().unwrap().len()), (200, 2), "{dual:#}");
}

#[tokio::test]
async fn types_change_with_all_that_belongs_to_them() {
    let world = World::new().await;
    let path = format!("{SERVICES}/web");
    let web = world.service("web", json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})).await;
    let (node_port, check) = (&web["spec"]["ports"][0]["nodePort"], &web["spec"]["healthCheckNodePort"]);
    assert!(node_port.is_u64() && check.is_u64() && node_port != check, "{web:#}");
    assert_eq!(web["status"], json!({"loadBalancer": {}}), "without a range it stays pending");
    let (code, plain) = world.patch(&path, "merge-patch", &json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(code, 200, "{plain:#}");
    assert_eq!((ip(&plain), plain["spec"]["ports"][0].get("nodePort")), (ip(&web), None));
    assert_eq!(plain["spec"].get("healthCheckNodePort"), None);
    // Both ports are free again.
    let again = json!({"type": "NodePort", "ports": [
        {"port": 1, "name": "a", "nodePort": node_port}, {"port": 2, "name": "b", "nodePort": check}]});
    world.service("other", again).await;
    let named = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null}});
    let (code, alias) = world.patch(&path, "merge-patch", &named).await;
    assert_eq!((code, alias["spec"].get("clusterIP")), (200, None), "{alias:#}");
    assert!(!addresses(&world).await.contains(&ip(&web)));
}

#[tokio::test]
async fn a_taken_node_port_is_refused_and_equal_ports_share_one() {
    let world = World::new().await;
    let dns = json!({"type": "NodePort", "ports": [
        {"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53, "protocol": "TCP"}]});
    let dns = world.service("dns", dns).await;
    let ports = &dns["spec"]["ports"];
    assert_eq!(ports[0]["nodePort"], ports[1]["nodePort"], "semantics E3");
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": ports[0]["nodePort"]}]});
    let (code, status) = world.json("POST", SERVICES, &service("b", taken)).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.ports[0].nodePort")));
}

#[tokio::test]
async fn a_load_balancer_gets_an_address_where_a_range_is_given() {
    let ranges = ServiceRanges {
        load_balancers: vec!["192.0.2.0/29".parse().unwrap()],
        ..ServiceRanges::without_flags()
    };
    let world = World::with(ranges).await;
    for (name, wanted) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        let made = world.service(name, json!({"type": "LoadBalancer"})).await;
        assert_eq!(made["status"]["loadBalancer"]["ingress"][0]["ip"], wanted, "{made:#}");
    }
    let classed =
        world.service("c", json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/x"})).await;
    assert_eq!(classed["status"], json!({"loadBalancer": {}}));
    world.delete(&format!("{SERVICES}/a"), &Value::Null).await;
    let next = world.service("d", json!({"type": "LoadBalancer"})).await;
    assert_eq!(next["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
}

#[tokio::test]
async fn a_rehearsal_takes_nothing() {
    let world = World::new().await;
    let (code, shown) =
        world.json("POST", &format!("{SERVICES}?dryRun=All"), &service("web", json!({}))).await;
    assert_eq!((code, ip(&shown).as_str()), (201, "10.96.0.0"), "semantics E3: the base of the range");
    assert_eq!(world.get(&format!("{SERVICES}/web")).await.0, 404);
    assert_eq!(addresses(&world).await, ["10.96.0.1"]);
}

#[tokio::test]
async fn headless_and_external_services_get_no_address() {
    let world = World::new().await;
    let headless = world.service("h", json!({"clusterIP": "None", "selector": {"a": "b"}})).await;
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(headless["spec"]["ipFamilies"], json!(["IPv4"]));
    let path = format!("{SERVICES}/h");
    let (code, still) = world.patch(&path, "merge-patch", &json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!((code, &still["spec"]), (200, &headless["spec"]));
    let alias = world.service("e", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    assert_eq!(alias["spec"].get("clusterIP"), None);
    assert_eq!(addresses(&world).await, ["10.96.0.1"]);
}

// KEP-4444: domain-prefixed values are for implementations, unknown plain ones are refused.
#[tokio::test]
async fn traffic_distribution_is_admitted_as_the_kep_says() {
    let world = World::new().await;
    for (i, (value, code, warnings)) in [
        ("PreferSameZone", 201, 0),
        ("PreferSameNode", 201, 0),
        ("PreferClose", 201, 1),
        ("zoneward.dev/Spill", 201, 0),
        ("PreferFar", 422, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let object = service(&format!("t{i}"), json!({"trafficDistribution": value}));
        let response =
            world.send("POST", SERVICES, "application/json", object.to_string().into_bytes()).await;
        assert_eq!(response.headers().get_all("warning").iter().count(), warnings, "{value}");
        assert_eq!(read(response).await.0, code, "{value}");
    }
}

#[tokio::test]
async fn an_endpoint_slice_names_its_writers() {
    let world = World::new().await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "web-1", "managedFields": [{"manager": "liar"}]},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]});
    let (_, made) = world.json("POST", &format!("{slices}?fieldManager=first"), &slice).await;
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "first");
    let request = Request::patch(format!("{slices}/web-1"))
        .header("content-type", "application/merge-patch+json")
        .header("user-agent", "kube-controller-manager/v1.37.0 (linux/amd64) kubernetes/0000000")
        .body(r#"{"metadata": {"labels": {"a": "b"}}}"#.into())
        .unwrap();
    let (_, changed) = read(world.api.answer(request, &Caller::own()).await).await;
    let managers: Vec<&Value> = changed["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["manager"])
        .collect();
    assert_eq!(managers, ["first", "kube-controller-manager"]);
    let same = json!({"metadata": {"labels": {"a": "b"}}});
    let (_, same) = world.patch(&format!("{slices}/web-1?fieldManager=third"), "merge-patch", &same).await;
    assert_eq!(same, changed, "an update without a change writes nothing");
}

#[tokio::test]
async fn a_gate_that_is_off_drops_its_field_and_keeps_what_is_stored() {
    let gates = "ServiceTrafficDistribution=false".parse().unwrap();
    let world = World::with(ServiceRanges { gates, ..ServiceRanges::without_flags() }).await;
    let made = world.service("web", json!({"trafficDistribution": "PreferClose"})).await;
    assert_eq!(made["spec"].get("trafficDistribution"), None);
    let change = json!({"spec": {"trafficDistribution": "PreferClose"}});
    let (code, patched) = world.patch(&format!("{SERVICES}/web"), "merge-patch", &change).await;
    assert_eq!((code, patched["spec"].get("trafficDistribution")), (200, None));

    let mut world = World::new().await;
    world.service("old", json!({"trafficDistribution": "PreferSameZone"})).await;
    // The same objects, as after a restart with the gate turned off.
    let ranges = ServiceRanges { gates, ..ServiceRanges::without_flags() };
    world.api = Api::new(world.api.engine().clone(), ranges, ApiLimits::default());
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, kept) = world.patch(&format!("{SERVICES}/old"), "merge-patch", &label).await;
    assert_eq!((code, &kept["spec"]["trafficDistribution"]), (200, &json!("PreferSameZone")));
}

#[tokio::test]
async fn values_of_a_gate_that_is_off_are_refused_and_hints_for_nodes_dropped() {
    let gates = "PreferSameTrafficDistribution=false".parse().unwrap();
    let world = World::with(ServiceRanges { gates, ..ServiceRanges::without_flags() }).await;
    let near = service("web", json!({"trafficDistribution": "PreferSameNode"}));
    let (code, status) = world.json("POST", SERVICES, &near).await;
    let cause = &status["details"]["causes"][0];
    assert_eq!((code, &cause["field"]), (422, &json!("spec.trafficDistribution")), "{status:#}");
    assert_eq!(cause["reason"], "FieldValueNotSupported");
    world.service("web", json!({"trafficDistribution": "PreferClose"})).await;

    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let hints = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]});
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [],
        "endpoints": [{"addresses": ["10.0.0.1"], "hints": hints}]});
    let (code, made) = world.json("POST", slices, &slice).await;
    assert_eq!((code, &made["endpoints"][0]["hints"]), (201, &json!({"forZones": [{"name": "a"}]})));
    let (code, put) = world.json("PUT", &format!("{slices}/s"), &slice).await;
    assert_eq!((code, &put["endpoints"][0]["hints"]), (200, &json!({"forZones": [{"name": "a"}]})));
}

#[tokio::test]
async fn the_address_of_the_api_is_given_to_no_other_service() {
    let world = World::new().await;
    let own = format!("{SERVICES}/kubernetes");
    assert_eq!(world.delete(&own, &Value::Null).await.0, 200);
    let (code, status) =
        world.json("POST", SERVICES, &service("taker", json!({"clusterIP": "10.96.0.1"}))).await;
    let cause = &status["details"]["causes"][0];
    assert_eq!((code, &cause["field"]), (422, &json!("spec.clusterIPs")), "{status:#}");
    assert!(
        cause["message"].as_str().unwrap().contains("reserved for Service default/kubernetes"),
        "{cause}"
    );
    let parent = json!({"group": "", "resource": "services", "namespace": "default", "name": "taker"});
    let lock = json!({"metadata": {"name": "10.96.0.1"}, "spec": {"parentRef": parent}});
    let (code, status) = world.json("POST", "/apis/networking.k8s.io/v1/ipaddresses", &lock).await;
    assert_eq!(
        (code, &status["details"]["causes"][0]["field"]),
        (422, &json!("spec.parentRef")),
        "{status:#}"
    );
    // Made by hand, it gets its own address, too.
    assert_eq!(world.service("kubernetes", json!({})).await["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test]
async fn no_search_for_an_address_finds_that_of_the_api() {
    let world = World::ranged(vec!["10.7.0.0/29".parse().unwrap()]).await;
    world.delete(&format!("{SERVICES}/kubernetes"), &Value::Null).await;
    for i in 0..5 {
        let made = world.service(&format!("s{i}"), json!({})).await;
        assert_ne!(made["spec"]["clusterIP"], "10.7.0.1");
    }
    let (code, _) = world.json("POST", SERVICES, &service("one-more", json!({}))).await;
    assert_eq!(code, 500, "the range is full");
    assert_eq!(world.service("kubernetes", json!({})).await["spec"]["clusterIP"], "10.7.0.1");
}

#[tokio::test]
async fn the_service_of_the_api_comes_back_when_it_is_deleted() {
    let world = World::new().await;
    // Even where a policy forbids Services.
    let group = "/apis/admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]});
    let policy = json!({"metadata": {"name": "none"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}});
    let binding =
        json!({"metadata": {"name": "none"}, "spec": {"policyName": "none", "validationActions": ["Deny"]}});
    for (kind, object) in [("policies", policy), ("policybindings", binding)] {
        let made = world.json("POST", &format!("{group}/validatingadmission{kind}"), &object).await;
        assert_eq!(made.0, 201, "{}", made.1);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let listen = "127.0.0.1:6443".parse().unwrap();
    let keeper = tokio::spawn(store::bootstrap::keep_api_service(world.api.clone(), listen, stopped));
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    for path in [format!("{SERVICES}/kubernetes"), slice.to_owned()] {
        assert_eq!(world.delete(&path, &Value::Null).await.0, 200);
        eventually_async(&path, async || world.get(&path).await.0 == 200).await;
    }
    let (_, own) = world.get(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(own["spec"]["clusterIP"], "10.96.0.1");
    stop.send_replace(true);
    keeper.await.unwrap();
}
