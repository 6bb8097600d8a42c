//! `pods/NAME/ephemeralcontainers`: adds containers to a Pod, and changes nothing else.

use crate::world;
use serde_json::{Value, json};
use world::{World, read};

const PODS: &str = "/api/v1/namespaces/default/pods";
const PART: &str = "/api/v1/namespaces/default/pods/p/ephemeralcontainers";
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
async fn containers_are_added_and_kept() {
    let world = with_pod().await;
    let patch = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"ephemeralContainers": [{"name": "d", "image": "i", "targetContainerName": "c"}],
            "hostNetwork": true},
        "status": {"phase": "Running"}});
    let media = format!("application/{STRATEGIC}+json");
    let response = world.send("PATCH", PART, &media, patch.to_string().into_bytes()).await;
    let warning = response.headers()["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("there is no kubelet"), "{warning}");
    let (code, pod) = read(response).await;
    assert_eq!(code, 200, "{pod}");
    let found = &pod["spec"]["ephemeralContainers"][0];
    assert_eq!(found["name"], "d");
    assert_eq!(
        (&found["imagePullPolicy"], &found["terminationMessagePolicy"]),
        (&json!("Always"), &json!("File"))
    );
    assert_eq!((&pod["spec"]["hostNetwork"], &pod["status"]["phase"]), (&Value::Null, &json!("Pending")));
    assert_eq!((&pod["metadata"]["generation"], &pod["metadata"]["labels"]), (&json!(2), &Value::Null));
    let entries = pod["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["subresource"] == "ephemeralcontainers").unwrap();
    let owned = entry["fieldsV1"]["f:spec"].as_object().unwrap();
    assert_eq!(owned.keys().collect::<Vec<_>>(), ["f:ephemeralContainers"], "{entry}");

    let (code, mut update) = world.get(PART).await;
    assert_eq!((code, &update), (200, &pod));
    let more = json!({"name": "e", "image": "i"});
    update["spec"]["ephemeralContainers"].as_array_mut().unwrap().push(more);
    let (code, pod) = world.json("PUT", PART, &update).await;
    assert_eq!((code, pod["spec"]["ephemeralContainers"][1]["name"].as_str()), (200, Some("e")), "{pod}");
    let (code, stale) = world.json("PUT", PART, &update).await;
    assert_eq!((code, &stale["reason"]), (409, &json!("Conflict")));
    assert_eq!(world.delete(PART, &json!({})).await.0, 405);
    assert_eq!(world.json("POST", PART, &update).await.0, 405);
    assert_eq!(world.get(&format!("{PODS}/other/ephemeralcontainers")).await.0, 404);
}

#[tokio::test]
async fn existing_containers_cannot_change() {
    let world = with_pod().await;
    let one = json!([{"name": "d", "image": "i"}]);
    assert_eq!(world.patch(PART, STRATEGIC, &adding(&one)).await.0, 200);
    assert_eq!(world.patch(PART, STRATEGIC, &adding(&one)).await.0, 200, "no change");
    for (what, list) in [
        ("changed", json!([{"name": "d", "image": "other"}])),
        ("removed", json!([{"name": "d", "$patch": "delete"}])),
    ] {
        let (code, refused) = world.patch(PART, STRATEGIC, &adding(&list)).await;
        assert_eq!((code, fields(&refused)), (422, vec!["spec.ephemeralContainers"]), "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(&format!("may not be {what}")), "{message}");
    }
    let part = format!("{PART}?fieldManager=m");
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    let applied = applied.to_string().into_bytes();
    let (code, pod) = read(world.send("PATCH", &part, "application/apply-patch+yaml", applied).await).await;
    assert_eq!((code, pod["spec"]["ephemeralContainers"].as_array().map(Vec::len)), (200, Some(2)), "{pod}");
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
