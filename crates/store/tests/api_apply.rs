//! Server-side apply against the API: the cases of `vectors/server-side-apply.json` for built-in kinds, and what the
//! server adds to them. Cases of custom resources run in the crate `plan`.

#[path = "../../apimachinery/tests/server_side_apply/pruned.rs"]
mod pruned;

use crate::world;
use std::time::{Duration, SystemTime};

use clock::ManualTime;
use pruned::pruned;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::engine::EngineOptions;
use world::{CONFIG_MAPS, SERVICES, World, read, service};

/// An API whose time stands still.
async fn with_time() -> (World, ManualTime) {
    let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    let options = EngineOptions { clock: time.clock(), ..EngineOptions::default() };
    (World::on(ServiceRanges::without_flags(), options).await, time)
}

async fn apply(world: &World, path: &str, query: &str, object: &Value) -> (u16, Value) {
    let path = format!("{path}?{query}");
    let body = object.to_string().into_bytes();
    read(world.send("PATCH", &path, "application/apply-patch+yaml", body).await).await
}

/// The path of a collection.
fn collection(kind: &str) -> &'static str {
    match kind {
        "ConfigMap" => CONFIG_MAPS,
        "Service" => SERVICES,
        "Pod" => "/api/v1/namespaces/default/pods",
        "Namespace" => "/api/v1/namespaces",
        "Lease" => "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "EndpointSlice" => "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        other => panic!("{other} has no path here"),
    }
}

fn is_subset(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| is_subset(part, whole)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_subset(part, whole))
        }
        (part, whole) => part == whole,
    }
}

/// The entries of managedFields without times, in order.
fn entries(object: &Value) -> Vec<Value> {
    let entry = |entry: &Value| {
        let mut entry = entry.as_object().unwrap().clone();
        assert_eq!(entry.remove("fieldsType"), Some(json!("FieldsV1")));
        assert!(entry.remove("time").unwrap().as_str().unwrap().ends_with('Z'));
        let mut entry = Value::Object(entry);
        entry.sort_all_objects();
        entry
    };
    object["metadata"]["managedFields"].as_array().into_iter().flatten().map(entry).collect()
}

fn sorted(mut entries: Vec<Value>) -> Vec<String> {
    entries.iter_mut().for_each(Value::sort_all_objects);
    let mut texts: Vec<String> = entries.iter().map(Value::to_string).collect();
    texts.sort();
    texts
}

fn time_of<'a>(object: &'a Value, owner: &str) -> Option<&'a str> {
    let (manager, operation) = owner.split_once('/').unwrap();
    let mut entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let entry = entries.find(|entry| entry["manager"] == manager && entry["operation"] == operation)?;
    entry["time"].as_str()
}

#[tokio::test]
async fn the_vectors_of_built_in_kinds_hold() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../vectors/server-side-apply.json")).unwrap();
    let mut count = 0;
    for case in vectors["cases"].as_array().unwrap().iter().filter(|case| case["kind"] != "Widget") {
        run(case).await;
        count += 1;
    }
    assert_eq!(count, 30, "cases of built-in kinds");
}

async fn run(case: &Value) {
    let (world, time) = with_time().await;
    let (id, kind) = (case["id"].as_str().unwrap(), case["kind"].as_str().unwrap());
    let path = format!("{}/{}", collection(kind), case["name"].as_str().unwrap());
    let (mut before, mut first_version) = (Value::Null, Value::Null);
    for (i, step) in case["steps"].as_array().unwrap().iter().enumerate() {
        let what = format!("{id}, step {i}");
        let delay = step["delaySeconds"].as_f64().unwrap_or_default();
        time.advance(Duration::from_secs_f64(delay));
        let (code, answer) = send(&world, step, kind, &path, &before, &first_version).await;
        assert_eq!(Some(u64::from(code)), step["expect"]["status"].as_u64(), "{what}: {answer:#}");
        let (found, now) = world.get(&path).await;
        let now = if found == 200 { now } else { Value::Null };
        if code < 300 {
            assert_eq!(answer["metadata"]["managedFields"], now["metadata"]["managedFields"], "{what}");
        }
        check_step(&what, &step["expect"], case["match"] == "exact", &answer, &before, &now);
        if first_version.is_null() {
            first_version = now["metadata"]["resourceVersion"].clone();
        }
        before = now;
    }
}

async fn send(
    world: &World,
    step: &Value,
    kind: &str,
    path: &str,
    before: &Value,
    first_version: &Value,
) -> (u16, Value) {
    let text = |name: &str| step[name].as_str().unwrap_or_default();
    let subresource = if text("subresource").is_empty() { "" } else { "/status" };
    let path = format!("{path}{subresource}");
    let mut query = format!("fieldManager={}", text("manager"));
    if step["force"] == true {
        query.push_str("&force=true");
    }
    let mut object = step["object"].clone();
    match text("op") {
        "apply" => {
            if text("resourceVersion") == "stale" {
                object["metadata"]["resourceVersion"] = first_version.clone();
            }
            apply(world, &path, &query, &object).await
        }
        "create" => world.json("POST", &format!("{}?{query}", collection(kind)), &object).await,
        "update" => {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            world.json("PUT", &format!("{path}?{query}"), &object).await
        }
        "patch" => {
            let media = if text("patchType") == "json" { "json-patch" } else { "merge-patch" };
            world.patch(&format!("{path}?{query}"), media, &object).await
        }
        "get" => world.get(&path).await,
        other => panic!("{other}"),
    }
}

fn check_step(what: &str, expect: &Value, exact: bool, answer: &Value, before: &Value, now: &Value) {
    let message = answer["message"].as_str().unwrap_or_default();
    if let Some(reason) = expect["reason"].as_str() {
        assert_eq!(answer["reason"], reason, "{what}");
    }
    if let Some(whole) = expect["message"].as_str() {
        assert_eq!(message, whole, "{what}");
    }
    if let Some(part) = expect["messageContains"].as_str() {
        assert!(message.contains(part), "{what}: {message}");
    }
    let causes = answer["details"]["causes"].as_array().cloned().unwrap_or_default();
    for cause in expect["causes"].as_array().into_iter().flatten() {
        assert!(causes.iter().any(|found| found["field"] == cause["field"]), "{what}: {causes:?}");
    }
    if let Some(conflicts) = expect["conflicts"].as_array() {
        let pair = |cause: &Value| json!([cause["field"], cause["message"]]);
        let found = causes.iter().filter(|cause| cause["reason"] == "FieldManagerConflict").map(pair);
        assert_eq!(sorted(found.collect()), sorted(conflicts.iter().map(pair).collect()), "{what}");
        assert_eq!(answer["details"].as_object().unwrap().len(), 1, "{what}: only causes");
    }
    if let Some(unchanged) = expect["resourceVersionUnchanged"].as_bool() {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        assert_eq!(version(before) == version(now), unchanged, "{what}");
    }
    for (owner, changed) in expect["timeChanged"].as_object().into_iter().flatten() {
        assert_eq!(time_of(before, owner) != time_of(now, owner), changed == true, "{what}: {owner}");
    }
    if !expect["object"].is_null() {
        let mut object = now.clone();
        let metadata = object["metadata"].as_object_mut().unwrap();
        for name in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"] {
            metadata.remove(name);
        }
        // The vectors leave the content of this one out.
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let (found, expected) = (pruned(&object), pruned(&expect["object"]));
        match exact {
            true => assert_eq!(found, expected, "{what}"),
            false => assert!(is_subset(&expected, &found), "{what}: {found:#} {expected:#}"),
        }
    }
    for path in expect["absent"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !path.contains('[') {
            assert!(now.pointer(&path.replace('.', "/")).is_none(), "{what}: {path}");
        }
    }
    if let Some(expected) = expect["managedFields"].as_array() {
        let (found, expected) = (entries(now), expected.clone());
        if expect["managedFieldsOrdered"] == true {
            let managers = |entries: &[Value]| -> Vec<Value> {
                entries.iter().map(|entry| json!([entry["manager"], entry["operation"]])).collect()
            };
            assert_eq!(managers(&found), managers(&expected), "{what}");
        }
        assert_eq!(sorted(found), sorted(expected), "{what}");
    }
}

#[tokio::test]
async fn a_create_owns_what_it_sets_and_its_defaults() {
    let (world, _) = with_time().await;
    let object = service("web", json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}));
    let (code, made) = world.json("POST", &format!("{SERVICES}?fieldManager=kubectl-create"), &object).await;
    assert_eq!(code, 201);
    let expected = json!({"manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "fieldsV1": {
        "f:spec": {"f:internalTrafficPolicy": {}, "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {
            ".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}}, "f:selector": {},
            "f:sessionAffinity": {}, "f:type": {}}}});
    assert_eq!(sorted(entries(&made)), sorted(vec![expected]), "allocated fields have no owner");
    assert!(made["spec"]["clusterIP"].is_string());

    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (_, made) = world.json("POST", &format!("{}?fieldManager=m", collection("Pod")), &pod).await;
    let fields = &entries(&made)[0]["fieldsV1"];
    assert_eq!(fields["f:metadata"], json!({"f:labels": {".": {}, "f:x": {}}}));
    let containers = &fields["f:spec"]["f:containers"];
    assert_eq!(containers.get("."), None, "the list is part of every Pod");
    let container = &containers["k:{\"name\":\"c\"}"];
    for field in [".", "f:image", "f:name", "f:resources"] {
        assert!(container.get(field).is_some(), "{field}: {fields:#}");
    }
    assert_eq!(fields.get("f:status"), None);
    let (_, namespace) = world.json("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    assert_eq!(
        entries(&namespace)[0]["fieldsV1"],
        json!({"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}})
    );
}

#[tokio::test]
async fn applies_that_are_wrong_are_refused() {
    let (world, _) = with_time().await;
    let path = format!("{CONFIG_MAPS}/c");
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}});
    let changed = |pointer: &str, value: Value| {
        let mut object = config.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[name] = value;
        object
    };
    let long = format!("fieldManager={}", "m".repeat(129));
    for (query, object, code, part) in [
        ("", config.clone(), 422, "fieldManager: Required value: is required for apply patch"),
        ("fieldManager=", config.clone(), 422, "is required for apply patch"),
        (&long, config.clone(), 422, "may not be more than 128 bytes"),
        ("fieldManager=a%07b", config.clone(), 422, "should only contain printable characters"),
        (
            "fieldManager=m",
            changed("/kind", json!("Secret")),
            400,
            "Incorrect version specified in apply patch",
        ),
        ("fieldManager=m", changed("/apiVersion", json!("v2")), 400, "expected: v1"),
        ("fieldManager=m", changed("/metadata/name", json!("d")), 400, "does not match the name on the URL"),
        ("fieldManager=m", changed("/metadata/namespace", json!("x")), 400, "does not match the namespace"),
        ("fieldManager=m", changed("/data", json!([])), 400, "data: expected object"),
        ("fieldManager=m", changed("/date", json!({})), 500, ".date: field not declared in schema"),
        ("fieldManager=m", changed("/metadata/uid", json!("u")), 409, "Precondition failed: UID"),
        ("fieldManager=m", changed("/metadata/managedFields", json!([])), 400, "managedFields must be nil"),
    ] {
        let (found, status) = apply(&world, &path, query, &object).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert!(found == code && message.contains(part), "{query} {object}: {found} {message}");
    }
    assert_eq!(world.get(&path).await.0, 404);
    let status = format!("{SERVICES}/none/status");
    let object = service("none", json!({}));
    assert_eq!(apply(&world, &status, "fieldManager=m", &object).await.0, 404);
}

#[tokio::test]
async fn a_dry_run_stores_nothing_and_yaml_is_read() {
    let (world, _) = with_time().await;
    let path = format!("{CONFIG_MAPS}/c");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: '1'\n";
    let send = async |query: &str| {
        let path = format!("{path}?fieldManager=m{query}");
        read(world.send("PATCH", &path, "application/apply-patch+yaml", yaml.as_bytes().to_vec()).await).await
    };
    let (code, tried) = send("&dryRun=All").await;
    assert_eq!((code, &tried["data"]["a"]), (201, &json!("1")));
    assert_eq!(world.get(&path).await.0, 404);
    assert_eq!(send("").await.0, 201);
    let (code, same) = send("&dryRun=All").await;
    assert_eq!((code, same), (200, world.get(&path).await.1));
}

#[tokio::test]
async fn several_conflicts_are_listed_by_manager() {
    let (world, _) = with_time().await;
    let path = format!("{CONFIG_MAPS}/c");
    let config = |a: &str, b: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": a, "b": b}});
    apply(&world, &path, "fieldManager=one", &config("1", "1")).await;
    world.patch(&format!("{path}?fieldManager=two"), "merge-patch", &json!({"data": {"c": "1"}})).await;
    let mut all = config("2", "2");
    all["data"]["c"] = "2".into();
    let (code, status) = apply(&world, &path, "fieldManager=three", &all).await;
    assert_eq!(code, 409);
    assert_eq!(
        status["message"],
        "Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b\nconflicts with \"two\" using v1:\n- .data.c"
    );
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn events_have_owners_in_both_versions() {
    let (world, _) = with_time().await;
    let path = |group: &str| format!("{group}/namespaces/default/events/e");
    let (core, new) = (path("/api/v1"), path("/apis/events.k8s.io/v1"));
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "R", "message": "one",
        "source": {"component": "x"}, "type": "Normal"});
    assert_eq!(apply(&world, &core, "fieldManager=old", &event).await.0, 201);
    let newer = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"}, "note": "two"});
    let (code, status) = apply(&world, &new, "fieldManager=new", &newer).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (409, "Apply failed with 1 conflict: conflict with \"old\": .message")
    );
}

#[tokio::test]
async fn custom_resources_are_merged_by_their_schema() {
    let (world, _) = with_time().await;
    let path = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways/g";
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "HTTP"});
    let gateway = |version: &str, listeners: Value| {
        json!({"apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": "Gateway",
            "metadata": {"name": "g"}, "spec": {"gatewayClassName": "c", "listeners": listeners}})
    };
    let (code, made) =
        apply(&world, path, "fieldManager=a", &gateway("v1", json!([listener("one", 80)]))).await;
    assert_eq!(code, 201, "{made:#}");
    let beta = path.replace("/v1/", "/v1beta1/");
    let (code, both) =
        apply(&world, &beta, "fieldManager=b", &gateway("v1beta1", json!([listener("two", 81)]))).await;
    assert_eq!(code, 200, "{both:#}");
    assert_eq!(both["spec"]["listeners"].as_array().unwrap().len(), 2);
    let (code, rest) = apply(&world, path, "fieldManager=a", &gateway("v1", json!([]))).await;
    assert_eq!((code, &rest["spec"]["listeners"][0]["name"]), (200, &json!("two")), "{rest:#}");
    let owners: Vec<Value> = entries(&rest).iter().map(|entry| entry["apiVersion"].clone()).collect();
    assert_eq!(owners.len(), 2, "{owners:?}");
}

#[tokio::test]
async fn a_slice_of_an_earlier_version_keeps_its_writer() {
    let (world, _) = with_time().await;
    let slices = collection("EndpointSlice");
    let slice =
        json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]});
    let (_, made) = world.json("POST", &format!("{slices}?fieldManager=now"), &slice).await;
    let mut old = made.clone();
    old["metadata"]["managedFields"] = json!([{"manager": "then", "operation": "Update",
        "apiVersion": "discovery.k8s.io/v1", "time": "2026-01-01T00:00:00Z"}]);
    let kind = store::kinds::named("EndpointSlice").unwrap();
    world.api.commit(false, move |objects| objects.put(kind, &mut old)).await.unwrap();
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (_, changed) = world.patch(&format!("{slices}/s?fieldManager=later"), "merge-patch", &label).await;
    let managers: Vec<Value> = entries(&changed).iter().map(|entry| entry["manager"].clone()).collect();
    assert_eq!(managers, ["later", "then"]);
}
