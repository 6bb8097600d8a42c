//! Ephemeral containers are refused by name, as a cluster does that has them disabled: no kubelet would start them.

use crate::world;
use serde_json::{Value, json};
use world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";
const STRATEGIC: &str = "strategic-merge-patch";

async fn with_pod() -> World {
    let world = World::new().await;
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": spec});
    assert_eq!(world.json("POST", PODS, &pod).await.0, 201);
    world
}

fn adding(containers: &Value) -> Value {
    json!({"spec": {"ephemeralContainers": containers}})
}

fn fields(status: &Value) -> Vec<&str> {
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    causes.filter_map(|cause| cause["field"].as_str()).collect()
}

#[tokio::test]
async fn the_subresource_is_refused_by_name() {
    let world = with_pod().await;
    let patch = adding(&json!([{"name": "d", "image": "i"}]));
    let (code, refused) = world.patch(&format!("{PODS}/p/ephemeralcontainers"), STRATEGIC, &patch).await;
    assert_eq!((code, &refused["reason"]), (404, &json!("NotFound")), "{refused}");
    assert_eq!(refused["message"], "pods/ephemeralcontainers is not served: no kubelet runs containers here");
    assert_eq!(world.get(&format!("{PODS}/p")).await.1["spec"].get("ephemeralContainers"), None);
}

#[tokio::test]
async fn the_pod_itself_takes_none() {
    let world = with_pod().await;
    let container = json!([{"name": "d", "image": "i"}]);
    let (code, refused) = world.patch(&format!("{PODS}/p"), STRATEGIC, &adding(&container)).await;
    assert_eq!((code, fields(&refused)), (422, vec!["spec"]), "{refused}");
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "ephemeralContainers": container});
    let pod = json!({"metadata": {"name": "q", "namespace": "default"}, "spec": spec});
    let (code, refused) = world.json("POST", PODS, &pod).await;
    assert_eq!((code, fields(&refused)), (422, vec!["spec.ephemeralContainers"]), "{refused}");
}

#[tokio::test]
async fn a_patch_whose_result_cannot_be_read_is_invalid() {
    let world = with_pod().await;
    let labels = json!({"metadata": {"labels": "invalid"}});
    for kind in [STRATEGIC, "merge-patch"] {
        let (code, refused) = world.patch(&format!("{PODS}/p"), kind, &labels).await;
        assert_eq!((code, &refused["reason"], fields(&refused)), (422, &json!("Invalid"), vec!["patch"]));
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("metadata.labels: cannot restore map from string"), "{message}");
    }
    let strict = format!("{PODS}/p?fieldValidation=Strict");
    let (code, refused) = world.patch(&strict, STRATEGIC, &json!({"spec": {"colour": "red"}})).await;
    assert_eq!((code, fields(&refused)), (422, vec!["patch"]));
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("strict decoding error: unknown field \"spec.colour\""), "{message}");
}
