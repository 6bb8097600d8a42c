//! The Gateway API on the embedded API: the admission cases of its conformance vectors, and defaults.

use crate::gateway_api_cases;
use crate::world;
use gateway_api_cases::{check_cases, path};
use serde_json::{Value, json};
use world::World;

/// X kinds are not served.
#[tokio::test]
async fn the_admission_cases_of_the_standard_channel_are_taken_or_refused() {
    assert_eq!(check_cases("experimental").await, 60);
}

#[tokio::test]
async fn a_route_gets_the_defaults_of_its_schema_and_its_status_is_apart() {
    let world = World::new().await;
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "a"},
        "spec": {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]},
        "status": {"parents": []}});
    let (code, stored) = world.json("POST", &path(&route), &route).await;
    assert_eq!(code, 201, "{stored}");
    let spec = &stored["spec"];
    assert_eq!(spec["parentRefs"][0]["kind"], "Gateway");
    assert_eq!(spec["rules"][0]["matches"], json!([{"path": {"type": "PathPrefix", "value": "/"}}]));
    assert_eq!(spec["rules"][0]["backendRefs"][0]["weight"], 1);
    assert_eq!((&stored["metadata"]["generation"], stored.get("status")), (&json!(1), None));
    let mut written = stored.clone();
    written["status"] = json!({"parents": []});
    let (code, after) = world.json("PUT", &format!("{}/a/status", path(&route)), &written).await;
    assert_eq!((code, &after["metadata"]["generation"]), (200, &json!(1)), "{after}");
    let mut refused = stored;
    refused["metadata"] = json!({"name": "b"});
    refused["spec"]["rules"][0]["backendRefs"][0]["port"] = 0.into();
    let (code, answer) = world.json("POST", &path(&route), &refused).await;
    assert_eq!(code, 422, "{answer}");
}

#[tokio::test]
async fn an_object_is_the_same_in_both_versions() {
    let world = World::new().await;
    let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
        "metadata": {"name": "g"}, "spec": {"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute",
            "namespace": "web"}], "to": [{"group": "", "kind": "Service"}]}});
    let at = |version: &str| {
        format!("/apis/gateway.networking.k8s.io/{version}/namespaces/default/referencegrants")
    };
    let (code, stored) = world.json("POST", &at("v1beta1"), &grant).await;
    assert_eq!((code, &stored["apiVersion"]), (201, &grant["apiVersion"]), "{stored}");
    for version in ["v1", "v1beta1"] {
        let (code, read) = world.json("GET", &format!("{}/g", at(version)), &Value::Null).await;
        assert_eq!(code, 200, "{read}");
        assert_eq!(read["apiVersion"], format!("gateway.networking.k8s.io/{version}"));
        assert_eq!(read["spec"], grant["spec"]);
    }
    let (_, group) = world.json("GET", "/apis/gateway.networking.k8s.io", &Value::Null).await;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    assert_eq!(group["versions"][1]["version"], "v1beta1");
}
