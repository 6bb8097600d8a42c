//! `pods/eviction`: deletes a Pod, as `kubectl drain` does.

use crate::world;
use serde_json::{Value, json};
use world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn evict(world: &World, name: &str, eviction: &Value) -> (u16, Value) {
    world.json("POST", &format!("{PODS}/{name}/eviction"), eviction).await
}

#[tokio::test]
async fn an_eviction_deletes_the_pod_it_names() {
    let world = World::new().await;
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(world.json("POST", PODS, &pod).await.0, 201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let mut other = eviction.clone();
    other["metadata"]["name"] = "b".into();
    assert_eq!(evict(&world, "a", &other).await.0, 400);
    let mut tried = eviction.clone();
    tried["deleteOptions"] = json!({"dryRun": ["All"]});
    assert_eq!(evict(&world, "a", &tried).await.0, 201);
    let mut stale = eviction.clone();
    stale["deleteOptions"] = json!({"preconditions": {"uid": "other"}});
    assert_eq!(evict(&world, "a", &stale).await.0, 409);
    assert_eq!(world.get(&format!("{PODS}/a")).await.0, 200);
    let (code, answer) = evict(&world, "a", &eviction).await;
    assert_eq!((code, &answer["status"]), (201, &json!("Success")));
    assert_eq!(world.get(&format!("{PODS}/a")).await.0, 404);
    assert_eq!(evict(&world, "a", &eviction).await.0, 404);
}
