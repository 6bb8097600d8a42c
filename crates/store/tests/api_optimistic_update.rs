//! Optimistic updates: an overtaken update loses nothing and overwrites nothing.

use crate::world;
use std::sync::Arc;

use serde_json::{Value, json};
use world::World;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

fn slice(address: &str) -> Value {
    json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": [address]}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})
}

async fn put(world: &World, slice: &Value) -> (u16, Value) {
    world.json("PUT", &format!("{SLICES}/a"), slice).await
}

async fn world_with_slice() -> (Arc<World>, Value) {
    let world = Arc::new(World::new().await);
    let (code, created) = world.json("POST", SLICES, &slice("10.0.0.1")).await;
    assert_eq!(code, 201, "{created:#}");
    (world, created)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn updates_of_one_object_at_once_all_count() {
    let (world, created) = world_with_slice().await;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let world = world.clone();
        tasks.spawn(async move {
            let mut versions = Vec::new();
            for step in 0..20 {
                let (code, answer) = put(&world, &slice(&format!("10.1.{writer}.{}", step + 1))).await;
                assert_eq!(code, 200, "{answer:#}");
                versions.push(answer["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
            }
            versions
        });
    }
    let mut versions: Vec<String> = tasks.join_all().await.into_iter().flatten().collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 160);
    let (_, last) = world.get(&format!("{SLICES}/a")).await;
    assert_eq!(last["metadata"]["generation"], 161);
    assert_eq!(last["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_updates_of_the_same_version_one_wins() {
    let (world, created) = world_with_slice().await;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let (world, mut wanted) = (world.clone(), slice(&format!("10.2.0.{}", writer + 1)));
        wanted["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
        tasks.spawn(async move { put(&world, &wanted).await.0 });
    }
    let mut codes = tasks.join_all().await;
    codes.sort_unstable();
    assert_eq!((codes[0], &codes[1..]), (200, &[409; 15][..]));
}

#[tokio::test]
async fn what_changes_nothing_makes_no_version_and_a_label_no_generation() {
    let (world, created) = world_with_slice().await;
    let (code, same) = put(&world, &slice("10.0.0.1")).await;
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &created["metadata"]["resourceVersion"]));
    let mut labelled = slice("10.0.0.1");
    labelled["metadata"]["labels"] = json!({"b": "c"});
    let (_, labelled) = put(&world, &labelled).await;
    assert_ne!(labelled["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    assert_eq!(
        (&labelled["metadata"]["generation"], &labelled["metadata"]["labels"]["b"]),
        (&json!(1), &json!("c"))
    );
    let (_, moved) = put(&world, &slice("10.0.0.2")).await;
    assert_eq!((&moved["metadata"]["generation"], &moved["metadata"]["labels"]), (&json!(2), &Value::Null));
    assert_eq!(world.get(&format!("{SLICES}/a")).await.1, moved);
    let (code, answer) = put(&world, &slice("not an address")).await;
    assert_eq!((code, &answer["details"]["causes"][0]["field"]), (422, &json!("endpoints[0].addresses[0]")));
    let mut other = slice("10.0.0.2");
    other["addressType"] = "IPv6".into();
    assert_eq!(put(&world, &other).await.0, 422);
}

#[tokio::test]
async fn a_policy_is_obeyed_from_the_moment_that_it_is_bound() {
    let (world, _) = world_with_slice().await;
    let policy = json!({"metadata": {"name": "still"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["discovery.k8s.io"], "apiVersions": ["v1"],
            "operations": ["UPDATE"], "resources": ["endpointslices"]}]},
        "validations": [{"expression": "object.endpoints == oldObject.endpoints", "message": "keep still"}]}});
    let (code, answer) =
        world.json("POST", &format!("{POLICIES}/validatingadmissionpolicies"), &policy).await;
    assert_eq!(code, 201, "{answer:#}");
    assert_eq!(put(&world, &slice("10.0.0.2")).await.0, 200);
    let binding = json!({"metadata": {"name": "still"}, "spec": {"policyName": "still", "validationActions": ["Deny"]}});
    let (code, answer) =
        world.json("POST", &format!("{POLICIES}/validatingadmissionpolicybindings"), &binding).await;
    assert_eq!(code, 201, "{answer:#}");
    let (code, answer) = put(&world, &slice("10.0.0.3")).await;
    assert!(code == 422 && answer["message"].as_str().unwrap().contains("keep still"), "{answer:#}");
}
