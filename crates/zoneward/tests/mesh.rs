//! Conditions of routes and gateways on the embedded API, and what `zoneward mesh proxy` says to wrong use.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fixtures::{TestCertificate, eventually_async};
use http::Request;
use kube::Client;
use mesh::route_status;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use tokio::sync::watch;

async fn api(name: &str) -> Api {
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mesh-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = Engine::open(&folder, EngineOptions::default()).unwrap();
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).unwrap();
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    bootstrap(&api, BootstrapOptions { service_cidrs, listen: "127.0.0.1:6443".parse().unwrap() })
        .await
        .unwrap();
    api
}

fn route(name: &str, pattern: &str) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"namespace": "default", "name": name, "generation": 1, "uid": format!("uid-{name}")},
        "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [
            {"matches": [{"path": {"type": "RegularExpression", "value": pattern}}], "default": {}}]}]}})
}

/// As an object that an older API let through: this one's admission would refuse what is invalid.
async fn put(api: &Api, mut object: Value) {
    let kind = store::kinds::named("MeshHTTPRoute").unwrap();
    let work = move |objects: &mut store::object_txn::ObjectTxn<'_, '_>| objects.put(kind, &mut object);
    api.commit(false, work).await.unwrap();
}

async fn read(client: &Client, path: &str) -> Value {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

async fn condition(client: &Client, name: &str) -> (Value, Value) {
    let path = format!("/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes/{name}");
    eventually_async("a condition", async || {
        let object = read(client, &path).await;
        let first = &object["status"]["conditions"][0];
        let is_told = first["type"] == route_status::ACCEPTED;
        is_told.then(|| (first.clone(), object["metadata"]["resourceVersion"].clone())).ok_or(object)
    })
    .await
}

#[tokio::test]
async fn routes_are_told_whether_they_count_and_nothing_is_written_twice() {
    let api = api("accepted").await;
    let client = cluster::in_process(api.local(), &clock::Clock::system());
    put(&api, route("good", "/v[0-9]+")).await;
    put(&api, route("bad", "/v[")).await;
    let (stop, stopped) = watch::channel(false);
    let first = tokio::spawn(route_status::run(
        client.clone(),
        plan::gateway_api::AssignedAddresses::Services,
        clock::Clock::system(),
        model::random::Random::seeded(clock::os_seed()),
        stopped,
    ));
    let (good, version) = condition(&client, "good").await;
    assert_eq!((&good["status"], &good["reason"]), (&json!("True"), &json!("Valid")));
    let (bad, bad_version) = condition(&client, "bad").await;
    assert_eq!((&bad["status"], &bad["reason"]), (&json!("False"), &json!("Invalid")));
    let message = bad["message"].as_str().unwrap();
    assert!(message.starts_with("spec.to[0].rules[0].matches[0].path.value: "), "{message}");
    stop.send_replace(true);
    first.await.unwrap();
    let all = read(&client, "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes/good").await;
    let reasons: Vec<&Value> = all["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| &condition["reason"])
        .collect();
    assert_eq!(reasons, ["Valid", "TargetNotFound", "TargetNotFound"], "there is no Service backend");
    let events = read(&client, "/api/v1/namespaces/default/events").await;
    let events = events["items"].as_array().cloned().unwrap_or_default();
    assert!(
        events.iter().any(|e| e["involvedObject"]["name"] == "bad" && e["type"] == "Warning"),
        "{events:?}"
    );
    // Whoever leads next finds everything said.
    let (stop, stopped) = watch::channel(false);
    let next = tokio::spawn(route_status::run(
        client.clone(),
        plan::gateway_api::AssignedAddresses::Services,
        clock::Clock::system(),
        model::random::Random::seeded(clock::os_seed()),
        stopped,
    ));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(condition(&client, "good").await.1, version);
    assert_eq!(condition(&client, "bad").await.1, bad_version);
    // Put right, it counts.
    let path = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes/bad";
    let change =
        json!([{"op": "replace", "path": "/spec/to/0/rules/0/matches/0/path/value", "value": "/v.*"}]);
    let request = Request::patch(path).header("content-type", "application/json-patch+json");
    let request = request.body(serde_json::to_vec(&change).unwrap()).unwrap();
    client.request::<Value>(request).await.unwrap();
    eventually_async("it is accepted", async || condition(&client, "bad").await.0["status"] == "True").await;
    stop.send_replace(true);
    next.await.unwrap();
}

#[test]
fn wrong_use_of_the_proxy_names_the_flag_and_the_remedy() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["mesh", "proxy"])
            .args(words)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for wrong in [
        &[][..],
        &["--from", "frontend"],
        &["--gateway", "edge", "--outbound", "80=x"],
        &["--outbound", "80=x"],
        &["--from", "a", "--redirect=x"],
        &["--gateway", "edge", "--max-connections", "0"],
        &["--gateway", "edge", "--drain", "soon"],
        // Who may write the header has to be said.
        &["--gateway", "edge", "--proxy-protocol"],
        &["--gateway", "edge", "--trusted-proxies", "10.0.0.0/33"],
        &["--gateway", "edge", "--escaped-slashes", "drop"],
    ] {
        let (code, said) = run(wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    let file = format!("{}/../../examples/routes/canary.yaml", env!("CARGO_MANIFEST_DIR"));
    for (wrong, wanted) in [
        (&["--from", "a", "--outbound", "x=backend"][..], "PORT=SERVICE[:PORT]"),
        (&["--from", "a,version", "--outbound", "0=backend"], "TAG=VALUE"),
        (&["--gateway", ":http"], "missing MeshGateway name"),
        (&["--gateway", "edge", "--merge-slashes=false"], "--escaped-slashes=reject"),
        (&["--gateway", "edge", "--access-log", "/no/such/folder/log"], "--access-log"),
        (&["--gateway", "edge", "--bind-address", "192.0.2.1:1"], "--bind-address"),
    ] {
        let (code, said) = run(&[&["-f", &file][..], wrong].concat());
        assert!(code == Some(1) && said.contains(wanted), "{wrong:?}: {code:?} {said}");
    }
    let (code, said) = run(&["-f", "no-such-file.yaml", "--gateway", "edge"]);
    assert!(code == Some(1) && said.contains("no-such-file.yaml"), "{said}");
}

async fn post(client: &Client, path: &str, object: Value) {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&object).unwrap()).unwrap();
    client.request::<Value>(request).await.unwrap();
}

/// Waits until a condition of an object has this status and reason.
async fn until(client: &Client, path: &str, name: &str, status: &str, reason: &str) -> Value {
    eventually_async(&format!("{path}: {name} {status} {reason}"), async || {
        let found = read(client, path).await["status"].clone();
        let conditions = found["conditions"].as_array().cloned().unwrap_or_default();
        let is_so = |c: &Value| c["type"] == name && c["status"] == status && c["reason"] == reason;
        conditions.into_iter().find(is_so).ok_or(found)
    })
    .await
}

#[tokio::test]
async fn a_missing_secret_or_service_is_told_in_the_status_and_as_an_event_until_it_comes() {
    let api = api("resolved").await;
    let client = cluster::in_process(api.local(), &clock::Clock::system());
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(route_status::run(
        client.clone(),
        plan::gateway_api::AssignedAddresses::Services,
        clock::Clock::system(),
        model::random::Random::seeded(clock::os_seed()),
        stopped,
    ));
    let mesh = "/apis/zoneward.dev/v1alpha1/namespaces/default";
    post(&client, &format!("{mesh}/meshhttproutes"), route("r", "/v.*")).await;
    let gateway = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "https", "port": 8443, "protocol": "HTTPS",
            "tls": {"certificateRef": {"name": "cert"}}}]}});
    post(&client, &format!("{mesh}/meshgateways"), gateway).await;
    let (routes, edge) = (format!("{mesh}/meshhttproutes/r"), format!("{mesh}/meshgateways/edge"));
    until(&client, &routes, "Accepted", "True", "Valid").await;
    until(&client, &routes, "Programmed", "False", "TargetNotFound").await;
    let found = until(&client, &edge, "ResolvedRefs", "False", "InvalidCertificateRef").await;
    let message = found["message"].as_str().unwrap();
    assert!(message.starts_with("spec.listeners[0].tls.certificateRef: Secret default/cert: "), "{message}");
    until(&client, &edge, "Programmed", "False", "ListenersNotValid").await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "backend"},
        "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}});
    post(&client, "/api/v1/namespaces/default/services", service).await;
    until(&client, &routes, "ResolvedRefs", "True", "ResolvedRefs").await;
    until(&client, &routes, "Programmed", "True", "Programmed").await;
    let secret = TestCertificate::of("shop.example.com").secret("cert");
    post(&client, "/api/v1/namespaces/default/secrets", secret).await;
    until(&client, &edge, "ResolvedRefs", "True", "ResolvedRefs").await;
    until(&client, &edge, "Programmed", "True", "Programmed").await;
    stop.send_replace(true);
    running.await.unwrap();
    let events = read(&client, "/api/v1/namespaces/default/events").await;
    let has = |name: &str, kind: &str, reason: &str| {
        let mut all = events["items"].as_array().into_iter().flatten();
        all.any(|e| e["involvedObject"]["name"] == name && e["type"] == kind && e["reason"] == reason)
    };
    assert!(has("r", "Warning", "TargetNotFound") && has("r", "Normal", "Programmed"), "{events}");
    assert!(
        has("edge", "Warning", "InvalidCertificateRef") && has("edge", "Normal", "ResolvedRefs"),
        "{events}"
    );
}
