//! With a manual clock, a seed and inline commits, a run of the API is replayed byte by byte.

use crate::world;
use std::time::{Duration, SystemTime};

use clock::ManualTime;
use http_body_util::BodyExt;
use model::random::Random;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::engine::{CommitMode, EngineOptions};
use world::{CONFIG_MAPS, SERVICES, World, service};

/// Everything that the store holds after some writes.
async fn run(seed: u64) -> Vec<Vec<u8>> {
    let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let options =
        EngineOptions { commit: CommitMode::Inline, clock: time.clock(), ..EngineOptions::default() };
    let world = World::seeded(ServiceRanges::without_flags(), options, Random::seeded(seed)).await;
    for _ in 0..3 {
        world.json("POST", CONFIG_MAPS, &json!({"metadata": {"generateName": "a-"}})).await;
        time.advance(Duration::from_secs(1));
    }
    world.json("POST", SERVICES, &service("web", json!({"type": "NodePort"}))).await;
    let mut lists = Vec::new();
    for path in [CONFIG_MAPS, SERVICES, "/apis/networking.k8s.io/v1/ipaddresses", "/api/v1/namespaces"] {
        let response = world.send("GET", path, "application/json", Vec::new()).await;
        lists.push(response.into_body().collect().await.unwrap().to_bytes().to_vec());
    }
    lists
}

#[tokio::test]
async fn equal_seeds_and_clocks_give_equal_bytes() {
    let first = run(7).await;
    let maps: Value = serde_json::from_slice(&first[0]).unwrap();
    assert_eq!(maps["items"].as_array().unwrap().len(), 3);
    let created = maps["items"].as_array().unwrap().iter().map(|map| &map["metadata"]["creationTimestamp"]);
    let mut created: Vec<&str> = created.filter_map(Value::as_str).collect();
    created.sort_unstable();
    assert_eq!(created, ["2023-11-14T22:13:20Z", "2023-11-14T22:13:21Z", "2023-11-14T22:13:22Z"]);
    assert!(first == run(7).await, "a run differs from its replay");
    assert!(first != run(8).await, "another seed gives other names");
}
