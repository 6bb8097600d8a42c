//! Our own kinds on the embedded API: the examples are taken, and what their definitions forbid is refused by field.

use crate::world;
use std::path::Path;

use serde_json::{Value, json};
use world::World;

fn path(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
    format!("/apis/zoneward.dev/v1alpha1/namespaces/{namespace}/{plural}")
}

#[tokio::test]
async fn every_example_of_a_route_is_taken() {
    let world = World::new().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/routes");
    let mut taken = 0;
    for entry in std::fs::read_dir(examples).expect("the examples") {
        let file = entry.expect("an example").path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("an example");
        for document in text.split("\n---") {
            let Ok(object) = serde_saphyr::from_str::<Value>(document) else { continue };
            if object["apiVersion"] != "zoneward.dev/v1alpha1" {
                continue;
            }
            let mut object = object;
            // Examples may name the same policy: each has its file, here they share a namespace.
            object["metadata"]["name"] = format!("example-{taken}").into();
            let (code, answer) = world.json("POST", &path(&object), &object).await;
            assert_eq!(code, 201, "{}: {answer}", file.display());
            taken += 1;
        }
    }
    assert!(taken >= 8, "{taken}");
}

#[tokio::test]
async fn what_the_definition_forbids_is_refused_with_its_field() {
    let world = World::new().await;
    let route = |matches: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute", "metadata": {"name": "a"},
            "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "b"},
                "rules": [{"matches": [matches], "default": {}}]}]}})
    };
    let bad = route(json!({"path": {"type": "Wrong", "value": "/"}}));
    let (code, answer) = world.json("POST", &path(&bad), &bad).await;
    assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")), "{answer}");
    let field = answer["details"]["causes"][0]["field"].as_str().unwrap_or_default();
    assert!(field.starts_with("spec.to[0].rules[0].matches[0].path"), "{answer}");
    let good = route(json!({"path": {"type": "Exact", "value": "/"}}));
    assert_eq!(world.json("POST", &path(&good), &good).await.0, 201);
}

#[tokio::test]
async fn load_balancing_is_checked_by_schema_and_rules() {
    let world = World::new().await;
    let policy = |target: Value, default: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshLoadBalancing", "metadata": {"name": "a"},
            "spec": {"targetRef": target, "to": [
                {"targetRef": {"kind": "MeshService", "name": "b"}, "default": default}]}})
    };
    let mesh = json!({"kind": "Mesh"});
    let hash = json!({"type": "Maglev", "hashOn": {"type": "SourceIP"}});
    let edge = json!({"kind": "MeshGateway", "name": "edge"});
    for (target, default) in [
        (&mesh, json!({})),
        (&mesh, json!({"algorithm": {"type": "Maglev"}})),
        (&mesh, json!({"algorithm": hash, "slowStart": {"window": "30s"}})),
        (&mesh, json!({"timeouts": {"request": "soon"}})),
        (&mesh, json!({"localities": [{"priorities": [{"zones": [{"type": "Same", "name": "a"}]}]}]})),
        (&mesh, json!({"slowStart": {"window": "1s", "aggression": "0"}})),
        (&mesh, json!({"timeouts": {"request": "1s", "backendRequest": "2s"}})),
        (&mesh, json!({"faults": {"abort": {"status": 200}}})),
    ] {
        let bad = policy(target.clone(), default);
        let (code, answer) = world.json("POST", &path(&bad), &bad).await;
        assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")), "{bad}: {answer}");
    }
    let good = policy(
        edge,
        json!({"algorithm": hash, "retries": {"codes": [503], "budget": {"percent": 20}}, "rateLimit": {"requests": 5},
            "localities": [{"priorities": [{"zones": [{"type": "Same", "weight": 3}, {"name": "b"}]}]}]}),
    );
    let (code, answer) = world.json("POST", &path(&good), &good).await;
    assert_eq!(code, 201, "{answer}");
}
