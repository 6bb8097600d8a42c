//! The ValidatingAdmissionPolicy of deploy/node, evaluated by the API on tokens as the kubelet mounts them: a node proxy
//! writes the Lease and the Events of its own node, and nothing of another.

use crate::world;
use std::sync::Arc;

use apimachinery::rbac::UserInfo;
use http::Request;
use serde_json::{Value, json};
use store::api::Caller;
use world::{World, read};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/zoneward-node-lease/leases";
const ACCOUNT: &str = "/api/v1/namespaces/kube-system/serviceaccounts/zoneward-node/token";
const EVENTS: &str = "/api/v1/namespaces/default/events";

async fn make(world: &World, path: &str, object: &Value) {
    let (code, made) = world.json("POST", path, object).await;
    assert_eq!(code, 201, "{path}: {made:#}");
}

/// The collection of an object of the manifests.
fn collection(object: &Value) -> String {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let kind = store::kinds::of(version, kind).unwrap();
    let prefix = if kind.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{prefix}/namespaces/{namespace}/{}", kind.plural),
        None => format!("{prefix}/{}", kind.plural),
    }
}

/// The manifests of the node proxy, two nodes, and a pod of the DaemonSet on each.
async fn cluster() -> World {
    let world = World::new().await;
    // The namespace may be there already.
    world.json("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "kube-system"}})).await;
    for file in ["rbac", "policy"] {
        let path = format!("{}/../../deploy/node/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        for document in text.split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            make(&world, &collection(&object), &object).await;
        }
    }
    for node in ["a", "b"] {
        make(&world, "/api/v1/nodes", &json!({"metadata": {"name": node}})).await;
        let pod = json!({"metadata": {"name": format!("zoneward-node-{node}")},
            "spec": {"nodeName": node, "serviceAccountName": "zoneward-node",
                "containers": [{"name": "node", "image": "zoneward"}]}});
        make(&world, "/api/v1/namespaces/kube-system/pods", &pod).await;
    }
    world
}

/// The node proxy as the API knows it by a token of this TokenRequest.
async fn caller(world: &World, spec: Value) -> Caller {
    let (code, made) = world.json("POST", ACCOUNT, &json!({"spec": spec})).await;
    assert_eq!(code, 201, "{made:#}");
    let review = json!({"spec": {"token": made["status"]["token"]}});
    let (_, review) = world.json("POST", "/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
    let user = &review["status"]["user"];
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let groups = texts(&user["groups"]);
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let mut info = UserInfo::new(user["username"].as_str().unwrap(), &groups);
    let extra = user["extra"].as_object().into_iter().flatten();
    info.extra = extra.map(|(key, values)| (key.clone(), texts(values))).collect();
    Caller { user: Arc::new(info), source: None, connection: None }
}

async fn pod_of(world: &World, node: &str) -> Caller {
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "name": format!("zoneward-node-{node}")});
    caller(world, json!({"boundObjectRef": pod})).await
}

async fn ask(world: &World, caller: &Caller, method: &str, path: &str, body: &Value) -> (u16, String) {
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(method).uri(path).header("content-type", content);
    let request = request.body(body.to_string().into_bytes().into()).unwrap();
    let (code, answer) = read(world.api.answer(request, caller).await).await;
    (code, answer["message"].as_str().unwrap_or_default().to_owned())
}

fn lease(node: &str) -> Value {
    json!({"metadata": {"name": format!("zoneward-node-{node}")}, "spec": {"holderIdentity": node}})
}

#[tokio::test]
async fn a_node_proxy_writes_the_lease_of_its_own_node_alone() {
    let world = cluster().await;
    let (a, b) = (pod_of(&world, "a").await, pod_of(&world, "b").await);
    for (caller, node) in [(&a, "a"), (&b, "b")] {
        assert_eq!(ask(&world, caller, "POST", LEASES, &lease(node)).await.0, 201);
        let own = format!("{LEASES}/zoneward-node-{node}");
        assert_eq!(
            ask(&world, caller, "PATCH", &own, &json!({"spec": {"leaseDurationSeconds": 90}})).await.0,
            200
        );
    }
    let (code, message) = ask(
        &world,
        &a,
        "PATCH",
        &format!("{LEASES}/zoneward-node-b"),
        &json!({"spec": {"holderIdentity": "a"}}),
    )
    .await;
    assert_eq!(code, 403, "{message}");
    assert!(message.contains("only the Lease of its own node, zoneward-node-a"), "{message}");
    for name in ["c", "b-x"] {
        assert_eq!(ask(&world, &a, "POST", LEASES, &lease(name)).await.0, 403, "{name}");
    }
    // Leases of leaders are in another namespace, where RBAC gives it nothing.
    let leaders = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    make(&world, leaders, &json!({"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": "x"}}))
        .await;
    let stolen = json!({"spec": {"holderIdentity": "a"}});
    assert_eq!(ask(&world, &a, "PATCH", &format!("{leaders}/kube-scheduler"), &stolen).await.0, 403);
}

#[tokio::test]
async fn a_token_without_a_node_writes_nothing() {
    let world = cluster().await;
    let unbound = caller(&world, json!({})).await;
    let (code, message) = ask(&world, &unbound, "POST", LEASES, &lease("a")).await;
    assert_eq!(code, 403, "{message}");
    assert!(message.contains("names no node"), "{message}");
}

#[tokio::test]
async fn a_node_proxy_writes_events_of_its_own_node_alone() {
    let world = cluster().await;
    let (a, b) = (pod_of(&world, "a").await, pod_of(&world, "b").await);
    let event = |name: &str, host: Value| {
        json!({"metadata": {"name": name, "namespace": "default"}, "reason": "x", "source": {"component": "c", "host": host},
            "involvedObject": {"kind": "Node", "name": "a"}})
    };
    assert_eq!(ask(&world, &a, "POST", EVENTS, &event("e", json!("a"))).await.0, 201);
    assert_eq!(ask(&world, &a, "PATCH", &format!("{EVENTS}/e"), &json!({"count": 2})).await.0, 200);
    assert_eq!(ask(&world, &a, "POST", EVENTS, &event("f", json!("b"))).await.0, 403, "in another's name");
    assert_eq!(ask(&world, &a, "POST", EVENTS, &event("f", Value::Null)).await.0, 403, "in no name");
    let taken = json!({"source": {"host": "b"}});
    assert_eq!(ask(&world, &b, "PATCH", &format!("{EVENTS}/e"), &taken).await.0, 403, "another's Event");
    // Other users are not bound by the policy.
    assert_eq!(world.json("POST", EVENTS, &event("g", json!("z"))).await.0, 201);
}
