//! Malformed requests: the API answers each with an HTTP status and keeps serving.

use crate::world;
use http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};
use store::api::Caller;
use world::{SERVICES, World, service};

/// JSON of any shape, with words of the API among its names.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "ports",
        "port",
        "nodePort",
        "clusterIP",
        "clusterIPs",
        "type",
        "name",
        "kind",
        "$patch",
        "$retainKeys",
        "$setElementOrder/ports",
        "ipFamilies",
        "finalizers",
        "ownerReferences",
        "labels",
    ]);
    let text = prop::sample::select(vec![
        "",
        "None",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "delete",
        "replace",
        "IPv6",
        "10.96.0.9",
        "\u{0}x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone(), inner, 0..6)
                .prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

#[test]
fn no_body_path_or_query_makes_it_fail() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(World::new());
    runtime.block_on(world.service("web", json!({"type": "NodePort"})));
    let paths = vec![
        SERVICES.to_owned(),
        format!("{SERVICES}/web"),
        format!("{SERVICES}/web/status"),
        "/api/v1/namespaces".to_owned(),
        "/api/v1/namespaces/default/pods".to_owned(),
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices".to_owned(),
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes".to_owned(),
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies".to_owned(),
        "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes".to_owned(),
    ];
    let media = vec!["json", "json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "yaml"];
    let method = prop::sample::select(vec!["POST", "PUT", "PATCH", "DELETE"]);
    let request =
        (method, prop::sample::select(paths), prop::sample::select(media), any_json(), "[ -~]{0,20}");
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 1_500, ..ProptestConfig::default() });
    let send = |method: &str, uri: String, media: &str, body: Vec<u8>| {
        let request =
            Request::builder().method(method).uri(uri).header("content-type", format!("application/{media}"));
        let Ok(request) = request.body(body.into()) else { return 400 };
        runtime.block_on(world.api.answer(request, &Caller::own())).status().as_u16()
    };
    let outcome = runner.run(&request, |(method, path, media, body, query)| {
        let body = if method == "PUT" && body["spec"].is_object() {
            service("web", body["spec"].clone())
        } else {
            body
        };
        let code = send(method, path.clone(), media, body.to_string().into_bytes());
        prop_assert!((200..500).contains(&code) || code == 504, "{method} {path}: {code}");
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for key in ["labelSelector", "fieldSelector", "continue", "limit", "resourceVersion"] {
            let code = send("GET", format!("{path}?{key}={query}"), media, Vec::new());
            prop_assert!((200..500).contains(&code) || code == 504, "GET {path}?{key}={query}: {code}");
        }
        Ok(())
    });
    outcome.unwrap();
    let (code, _) = runtime.block_on(world.get("/api/v1/services"));
    assert_eq!(code, 200, "it goes on");
}
