//! `pods/binding`: a Pod gets its node once, as a scheduler gives it.

use crate::world;
use serde_json::{Value, json};
use world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn pod(world: &World, name: &str, mut spec: Value) {
    spec["containers"] = json!([{"name": "app", "image": "app:1"}]);
    let (code, object) = world.json("POST", PODS, &json!({"metadata": {"name": name}, "spec": spec})).await;
    assert_eq!(code, 201, "{object:#}");
}

fn binding(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": {"why": "it is near"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
}

async fn bind(world: &World, name: &str, binding: &Value) -> (u16, Value) {
    world.json("POST", &format!("{PODS}/{name}/binding"), binding).await
}

#[tokio::test]
async fn a_pod_is_bound_once_and_the_second_scheduler_gets_a_conflict() {
    let world = World::new().await;
    pod(&world, "a", json!({})).await;
    let (code, answer) = bind(&world, "a", &binding("a", "n1")).await;
    assert_eq!((code, &answer["kind"], &answer["status"]), (201, &json!("Status"), &json!("Success")));
    let (_, bound) = world.get(&format!("{PODS}/a")).await;
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["why"]),
        (&json!("n1"), &json!("it is near"))
    );
    let conditions = bound["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|one| one["type"] == "PodScheduled" && one["status"] == "True"),
        "{bound:#}"
    );
    let (code, answer) = bind(&world, "a", &binding("a", "n2")).await;
    assert_eq!((code, &answer["reason"]), (409, &json!("Conflict")));
    let wanted =
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\"";
    assert_eq!(answer["message"], wanted);
    assert_eq!(world.get(&format!("{PODS}/a")).await.1["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn a_binding_that_does_not_fit_changes_nothing() {
    let world = World::new().await;
    pod(&world, "a", json!({})).await;
    pod(&world, "gated", json!({"schedulingGates": [{"name": "wait"}]})).await;
    assert_eq!(bind(&world, "nobody", &binding("nobody", "n1")).await.0, 404);
    assert_eq!(bind(&world, "a", &binding("b", "n1")).await.0, 400);
    assert_eq!(bind(&world, "gated", &binding("gated", "n1")).await.0, 409);
    let (code, answer) = bind(&world, "a", &json!({"target": {"kind": "Pod"}})).await;
    assert_eq!(code, 422, "{answer:#}");
    let fields: Vec<&Value> =
        answer["details"]["causes"].as_array().unwrap().iter().map(|cause| &cause["field"]).collect();
    assert_eq!(fields, ["target.kind", "target.name"]);
    assert_eq!(bind(&world, "a", &json!({"target": {"name": "Not A Name"}})).await.0, 422);
    let mut other = binding("a", "n1");
    other["metadata"]["uid"] = "another".into();
    assert_eq!(bind(&world, "a", &other).await.0, 409);
    assert_eq!(bind(&world, "a", &json!({"kind": "Pod", "target": {"name": "n1"}})).await.0, 400);
    for (method, code) in [("GET", 405), ("PUT", 405), ("DELETE", 405)] {
        assert_eq!(world.json(method, &format!("{PODS}/a/binding"), &binding("a", "n1")).await.0, code);
    }
    assert_eq!(world.json("POST", &format!("{PODS}/a/binding?dryRun=All"), &binding("a", "n1")).await.0, 201);
    assert_eq!(world.get(&format!("{PODS}/a")).await.1["spec"]["nodeName"], Value::Null);
}
