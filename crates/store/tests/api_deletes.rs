//! Deletes: preconditions, finalizers, grace, and what becomes of dependents and of the content of namespaces.

use crate::world;
use fixtures::eventually_async;
use serde_json::{Value, json};
use tokio::sync::watch;
use world::{CONFIG_MAPS, SERVICES, World};

/// A world with a collector at work.
async fn collected() -> (World, watch::Sender<bool>) {
    let world = World::new().await;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(store::garbage_collector::run(world.api.clone(), stopped));
    (world, stop)
}

fn owned_by(owner: &Value) -> Value {
    json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]})
}

#[tokio::test]
async fn preconditions_must_hold() {
    let world = World::new().await;
    let made = world.config_map("a", json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    for wrong in [json!({"uid": "x"}), json!({"resourceVersion": "1"})] {
        let (code, status) = world.delete(&path, &json!({"preconditions": wrong})).await;
        assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    }
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"]}});
    let (code, status) = world.delete(&path, &right).await;
    assert_eq!(
        (code, &status["status"], &status["details"]["uid"]),
        (200, &json!("Success"), &made["metadata"]["uid"])
    );
    assert_eq!(world.delete(&path, &Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_finalizer_holds_an_object_until_it_is_taken_out() {
    let world = World::new().await;
    world.config_map("a", json!({"finalizers": ["example.com/x"]})).await;
    let path = format!("{CONFIG_MAPS}/a");
    let (code, object) = world.delete(&path, &Value::Null).await;
    assert!(code == 200 && object["metadata"]["deletionTimestamp"].is_string(), "{object:#}");
    assert_eq!(world.get(&path).await.0, 200);
    let patch = json!({"metadata": {"finalizers": null}});
    assert_eq!(world.patch(&path, "merge-patch", &patch).await.0, 200);
    assert_eq!(world.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_dry_run_deletes_nothing() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    assert_eq!(world.delete(&format!("{CONFIG_MAPS}/a?dryRun=All"), &Value::Null).await.0, 200);
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/a")).await.0, 200);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let world = World::new().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        world.config_map(name, json!({"labels": {"kind": label}})).await;
    }
    let (code, list) = world.delete(&format!("{CONFIG_MAPS}?labelSelector=kind%3Dx"), &Value::Null).await;
    assert_eq!((code, list["items"].as_array().unwrap().len()), (200, 2));
    let (_, left) = world.get(CONFIG_MAPS).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn dependents_go_after_their_owner() {
    let (world, _stop) = collected().await;
    let owner = world.config_map("owner", json!({})).await;
    let child = world.config_map("child", owned_by(&owner)).await;
    world.config_map("grandchild", owned_by(&child)).await;
    world.delete(&format!("{CONFIG_MAPS}/owner"), &Value::Null).await;
    world.wait_gone(&format!("{CONFIG_MAPS}/child")).await;
    world.wait_gone(&format!("{CONFIG_MAPS}/grandchild")).await;
}

#[tokio::test]
async fn a_dependent_without_its_owner_goes_though_it_came_late() {
    let (world, _stop) = collected().await;
    let owner = world.config_map("owner", json!({})).await;
    world.delete(&format!("{CONFIG_MAPS}/owner"), &Value::Null).await;
    world.config_map("late", owned_by(&owner)).await;
    world.wait_gone(&format!("{CONFIG_MAPS}/late")).await;
}

#[tokio::test]
async fn a_dependent_with_another_owner_stays() {
    let (world, _stop) = collected().await;
    let (one, two) = (world.config_map("one", json!({})).await, world.config_map("two", json!({})).await);
    let mut metadata = owned_by(&one);
    let second = owned_by(&two)["ownerReferences"][0].clone();
    metadata["ownerReferences"].as_array_mut().unwrap().push(second);
    world.config_map("child", metadata).await;
    let path = format!("{CONFIG_MAPS}/child");
    world.delete(&format!("{CONFIG_MAPS}/one"), &Value::Null).await;
    eventually_async("the reference to the deleted owner goes", async || {
        let (code, child) = world.get(&path).await;
        assert_eq!(code, 200);
        child["metadata"]["ownerReferences"].as_array().unwrap().len() == 1
    })
    .await;
}

#[tokio::test]
async fn in_the_foreground_the_owner_waits() {
    let (world, _stop) = collected().await;
    let owner = world.config_map("owner", json!({})).await;
    let mut metadata = owned_by(&owner);
    metadata["finalizers"] = json!(["example.com/x"]);
    world.config_map("child", metadata).await;
    let (code, object) =
        world.delete(&format!("{CONFIG_MAPS}/owner"), &json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!((code, &object["metadata"]["finalizers"]), (200, &json!(["foregroundDeletion"])));
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/owner")).await.0, 200, "the child is still there");
    world
        .patch(&format!("{CONFIG_MAPS}/child"), "merge-patch", &json!({"metadata": {"finalizers": null}}))
        .await;
    world.wait_gone(&format!("{CONFIG_MAPS}/owner")).await;
    world.wait_gone(&format!("{CONFIG_MAPS}/child")).await;
}

#[tokio::test]
async fn orphans_stay_and_forget_their_owner() {
    let (world, _stop) = collected().await;
    let owner = world.config_map("owner", json!({})).await;
    world.config_map("child", owned_by(&owner)).await;
    world.delete(&format!("{CONFIG_MAPS}/owner"), &json!({"propagationPolicy": "Orphan"})).await;
    world.wait_gone(&format!("{CONFIG_MAPS}/owner")).await;
    let (code, child) = world.get(&format!("{CONFIG_MAPS}/child")).await;
    assert_eq!((code, child["metadata"].get("ownerReferences")), (200, None));
}

#[tokio::test]
async fn a_namespace_goes_after_its_content() {
    let (world, _stop) = collected().await;
    assert_eq!(world.json("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await.0, 201);
    let held = json!({"metadata": {"name": "c", "finalizers": ["example.com/x"]}});
    let (code, _) = world.json("POST", "/api/v1/namespaces/shop/configmaps", &held).await;
    assert_eq!(code, 201);
    let (code, ending) = world.delete("/api/v1/namespaces/shop", &Value::Null).await;
    assert_eq!((code, &ending["status"]["phase"]), (200, &json!("Terminating")));
    let (code, status) =
        world.json("POST", "/api/v1/namespaces/shop/configmaps", &json!({"metadata": {"name": "d"}})).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (403, &json!("NamespaceTerminating")));
    let path = "/api/v1/namespaces/shop/configmaps/c";
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(world.get("/api/v1/namespaces/shop").await.0, 200);
    world.patch(path, "merge-patch", &json!({"metadata": {"finalizers": null}})).await;
    world.wait_gone("/api/v1/namespaces/shop").await;
    assert_eq!(world.delete("/api/v1/namespaces/default", &Value::Null).await.0, 403);
}

#[tokio::test]
async fn a_pod_on_a_node_gets_time_to_end() {
    let (world, _stop) = collected().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "x"}]}})
    };
    let mut unplaced = pod("b", "");
    unplaced["spec"].as_object_mut().unwrap().remove("nodeName");
    for object in [pod("a", "n1"), unplaced] {
        let (code, made) = world.json("POST", pods, &object).await;
        assert_eq!(code, 201, "{made:#}");
    }
    let (_, leaving) = world.delete(&format!("{pods}/a"), &Value::Null).await;
    assert_eq!(leaving["metadata"]["deletionGracePeriodSeconds"], 1);
    world.delete(&format!("{pods}/b"), &Value::Null).await;
    assert_eq!(world.get(&format!("{pods}/b")).await.0, 404, "it is on no node");
    assert_eq!(world.get(&format!("{pods}/a")).await.0, 200);
    world.wait_gone(&format!("{pods}/a")).await;
}

#[tokio::test]
async fn an_object_that_a_policy_keeps_does_not_keep_the_others_of_its_namespace() {
    let (world, _stop) = collected().await;
    assert_eq!(world.json("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await.0, 201);
    let config_maps = "/api/v1/namespaces/shop/configmaps";
    for name in ["a", "kept", "z"] {
        assert_eq!(world.json("POST", config_maps, &json!({"metadata": {"name": name}})).await.0, 201);
    }
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "keep"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["DELETE"], "resources": ["configmaps"]}]},
        "validations": [{"expression": "oldObject.metadata.name != 'kept'"}]}});
    let binding = json!({"metadata": {"name": "keep"},
        "spec": {"policyName": "keep", "validationActions": ["Deny"]}});
    let policies = format!("{group}/validatingadmissionpolicies");
    assert_eq!(world.json("POST", &policies, &policy).await.0, 201);
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    assert_eq!(world.json("POST", &bindings, &binding).await.0, 201);
    assert_eq!(world.delete("/api/v1/namespaces/shop", &Value::Null).await.0, 200);
    world.wait_gone(&format!("{config_maps}/a")).await;
    world.wait_gone(&format!("{config_maps}/z")).await;
    assert_eq!(world.get(&format!("{config_maps}/kept")).await.0, 200);
    assert_eq!(world.delete(&format!("{bindings}/keep"), &Value::Null).await.0, 200);
    world.wait_gone("/api/v1/namespaces/shop").await;
}

// Seed 002: only ranges out of 10.96.0.0/16 and 2001:db8::/64 may be added.
#[tokio::test]
async fn a_policy_keeps_service_cidrs_within_bounds() {
    let world = World::new().await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "servicecidrs-default"}, "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{"apiGroups": ["networking.k8s.io"], "apiVersions": ["v1", "v1beta1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["servicecidrs"]}]},
        "matchConditions": [{"name": "exclude-default-servicecidr", "expression": "object.metadata.name != 'kubernetes'"}],
        "variables": [{"name": "allowed", "expression": "['10.96.0.0/16','2001:db8::/64']"}],
        "validations": [{"expression": "object.spec.cidrs.all(i , variables.allowed.exists(j , cidr(j).containsCIDR(i)))"}],
    }});
    let binding = json!({"metadata": {"name": "servicecidrs-binding"},
        "spec": {"policyName": "servicecidrs-default", "validationActions": ["Deny", "Audit"]}});
    let (code, made) = world.json("POST", &format!("{group}/validatingadmissionpolicies"), &policy).await;
    assert_eq!(code, 201, "{made:#}");
    let (code, _) = world.json("POST", &format!("{group}/validatingadmissionpolicybindings"), &binding).await;
    assert_eq!(code, 201);
    let cidrs = "/apis/networking.k8s.io/v1/servicecidrs";
    let range = |name: &str, cidr: &str| json!({"metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
    assert_eq!(world.json("POST", cidrs, &range("inside", "10.96.4.0/24")).await.0, 201);
    let (code, status) = world.json("POST", cidrs, &range("outside", "10.200.0.0/24")).await;
    assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")), "{status:#}");
    assert!(status["message"].as_str().unwrap().contains("ValidatingAdmissionPolicy 'servicecidrs-default'"));
    world.service("untouched", json!({})).await;
    let mut broken = policy;
    broken["metadata"]["name"] = "broken".into();
    broken["spec"]["validations"][0]["expression"] = "object.".into();
    let (code, status) = world.json("POST", &format!("{group}/validatingadmissionpolicies"), &broken).await;
    assert_eq!(
        (code, &status["details"]["causes"][0]["field"]),
        (422, &json!("spec.validations[0].expression"))
    );
    assert_eq!(world.delete(&format!("{SERVICES}/untouched"), &Value::Null).await.0, 200);
}
