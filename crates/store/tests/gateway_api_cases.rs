//! The admission cases of the Gateway API's vectors.

use serde_json::{Value, json};

use crate::world::World;

pub(crate) fn cases() -> Vec<Value> {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    file["admission"].as_array().cloned().expect("a list")
}

pub(crate) fn path(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let plural = match kind.strip_suffix("policy") {
        Some(stem) => format!("{stem}policies"),
        None => format!("{kind}s"),
    };
    format!("/apis/gateway.networking.k8s.io/v1/namespaces/default/{plural}")
}

/// The cases that are not of another channel; their number.
pub(crate) async fn check_cases(other_channel: &str) -> usize {
    let world = World::new().await;
    let (mut count, mut failures) = (0, Vec::new());
    for case in cases() {
        let mut object = case["object"].clone();
        if case["channel"] == other_channel || object["apiVersion"] != "gateway.networking.k8s.io/v1" {
            continue;
        }
        count += 1;
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = format!("case-{count}").into();
        object["metadata"]["namespace"] = "default".into();
        let (code, answer) = world.json("POST", &path(&object), &object).await;
        let is_good = if case["valid"] == true { code == 201 } else { code == 422 };
        if !is_good {
            failures.push(format!("{}: {code}: {object}: {}", case["id"], answer["message"]));
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    count
}
