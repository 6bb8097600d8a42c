//! The controllers of cluster IPs on the embedded API: objects in by API, finalizers, conditions, IPAddresses and Events out
//! by API. The cases of vectors/ip-allocation.json that are about objects run here, too.

mod vectors;
mod world;

use std::time::{Duration, Instant};

use cluster::ObjectKind;
use serde_json::json;
use world::World;

const RANGE: &str = "10.96.0.0/24";

#[tokio::test]
async fn the_default_range_is_made_protected_and_ready_and_comes_back() {
    let world = World::new("default").await;
    let _keeper = world.keep(&[RANGE]);
    let ready = world.until("finalizer and Ready", ObjectKind::ServiceCidr, "kubernetes", |cidr| {
        cidr["metadata"]["finalizers"] == json!(["networking.k8s.io/service-cidr-finalizer"])
            && cidr["status"]["conditions"][0]["status"] == "True"
    });
    let uid = ready.await["metadata"]["uid"].clone();
    // Without addresses it may go, after the time that allocators get; and then it is made anew.
    let began = Instant::now();
    world.delete(ObjectKind::ServiceCidr, "kubernetes").await;
    world
        .until("it is another one", ObjectKind::ServiceCidr, "kubernetes", |cidr| {
            cidr["metadata"]["uid"] != uid
        })
        .await;
    assert!(began.elapsed() > Duration::from_secs(9), "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_default_range_gets_a_second_family() {
    let world = World::new("dual").await;
    let first = world.keep(&[RANGE]);
    world
        .until("one range", ObjectKind::ServiceCidr, "kubernetes", |cidr| {
            cidr["spec"]["cidrs"] == json!([RANGE])
        })
        .await;
    first.abort();
    let _keeper = world.keep(&[RANGE, "fd00::/112"]);
    let both = json!([RANGE, "fd00::/112"]);
    world
        .until("both ranges", ObjectKind::ServiceCidr, "kubernetes", |cidr| cidr["spec"]["cidrs"] == both)
        .await;
}

#[tokio::test]
async fn a_default_range_that_differs_is_said_once_and_left_alone() {
    let world = World::new("differs").await;
    world
        .create(
            ObjectKind::ServiceCidr,
            json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.0.0.0/24"]}}),
        )
        .await;
    let _keeper = world.keep(&[RANGE]);
    world.reasons_become(&["KubernetesDefaultServiceCIDRInconsistent"]).await;
    let cidr = world.find(ObjectKind::ServiceCidr, "kubernetes").await.expect("it is there");
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.0.0.0/24"]));
}

#[tokio::test]
async fn an_ip_address_deleted_by_hand_comes_back() {
    let world = World::new("back").await;
    let _keeper = world.keep(&[RANGE]);
    world.until("the range", ObjectKind::ServiceCidr, "kubernetes", |_| true).await;
    let service = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}});
    world.create(ObjectKind::Service, service).await;
    let uid =
        world.find(ObjectKind::IpAddress, "10.96.0.7").await.expect("the API makes it")["metadata"]["uid"]
            .clone();
    world.delete(ObjectKind::IpAddress, "10.96.0.7").await;
    let back = world
        .until("it is back", ObjectKind::IpAddress, "10.96.0.7", |ip| ip["metadata"]["uid"] != uid)
        .await;
    assert_eq!(back["spec"]["parentRef"]["name"], "web");
    world.reasons_become(&["ClusterIPNotAllocated"]).await;
}

#[tokio::test]
async fn an_ip_address_of_nobody_that_could_hold_it_goes() {
    let world = World::new("nobody").await;
    let _keeper = world.keep(&[RANGE]);
    world.until("the range", ObjectKind::ServiceCidr, "kubernetes", |_| true).await;
    let mut ip = world::ip_address("10.96.0.9", "default", "x");
    ip["spec"]["parentRef"]["resource"] = json!("pods");
    world.create(ObjectKind::IpAddress, ip).await;
    world.until_gone("it goes", ObjectKind::IpAddress, "10.96.0.9").await;
    world.reasons_become(&["IPAddressNotAllocated"]).await;
}

#[tokio::test]
async fn a_range_in_use_waits_for_its_last_service() {
    let world = World::new("waits").await;
    let _keeper = world.keep(&[RANGE]);
    world
        .create(
            ObjectKind::ServiceCidr,
            json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}}),
        )
        .await;
    let service = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.97.0.7", "ports": [{"port": 80}]}});
    world.create(ObjectKind::Service, service).await;
    world
        .until("it is protected", ObjectKind::ServiceCidr, "more", |cidr| {
            cidr["metadata"]["finalizers"].is_array()
        })
        .await;
    world.delete(ObjectKind::ServiceCidr, "more").await;
    let waiting = world.until("it says why", ObjectKind::ServiceCidr, "more", |cidr| {
        cidr["status"]["conditions"][0]["reason"] == "Terminating"
    });
    let condition = &waiting.await["status"]["conditions"][0];
    assert_eq!(condition["status"], "False");
    assert!(condition["message"].as_str().is_some_and(|text| text.contains("10.97.0.7")), "{condition}");
    world.delete(ObjectKind::Service, "web").await;
    world.until_gone("it goes", ObjectKind::ServiceCidr, "more").await;
}
