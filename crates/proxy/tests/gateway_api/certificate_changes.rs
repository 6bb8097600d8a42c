//! Certificates that change while they are in use.

use serde_json::json;

use super::features::{
    NAMESPACE, Running, authority, by_tls, gateway, https, object, plain_gateway, request, route, secret,
    service, to, workload,
};
use super::world::key;

#[tokio::test]
async fn another_certificate_authority_of_a_backend_counts_at_once() {
    let validation = json!({"hostname": "abc.example.com",
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]});
    let policy =
        json!({"targetRefs": [{"group": "", "kind": "Service", "name": "one"}], "validation": validation});
    let rules = json!([{"backendRefs": [to("one")]}]);
    let objects = vec![
        plain_gateway(),
        service("one"),
        object("BackendTLSPolicy", "one", policy),
        route("HTTPRoute", "r", json!({"rules": rules})),
    ];
    let mut backend = workload("one", "https");
    backend["certificate"] = json!("backend");
    let certificates = json!([authority("ca"), authority("other"), secret("backend", &["abc.example.com"])]);
    let mut running = Running::new(objects, vec![backend], certificates).await;
    let (ca, other) = (key(&format!("{NAMESPACE}/ca")), key(&format!("{NAMESPACE}/other")));
    for status in [200, 503, 200] {
        running.expect(request("/", json!({"status": status}))).await;
        let (first, second) = (running.world.pairs.remove(&ca), running.world.pairs.remove(&other));
        running.world.pairs.extend(second.map(|pair| (ca.clone(), pair)));
        running.world.pairs.extend(first.map(|pair| (other.clone(), pair)));
        running.proxies.update(&running.world);
    }
}

#[tokio::test]
async fn another_certificate_of_a_listener_is_presented_to_new_connections() {
    let rules = json!([{"backendRefs": [to("one")]}]);
    let objects = vec![
        gateway(json!([https("web", "web.example")])),
        service("one"),
        route("HTTPRoute", "r", json!({"rules": rules})),
    ];
    let certificates =
        json!([authority("ca"), secret("web", &["web.example"]), secret("next", &["next.example"])]);
    let mut running = Running::new(objects, vec![workload("one", "http")], certificates).await;
    let served = json!({"status": 200, "backend": "one"});
    running.expect(by_tls("web.example", "web.example", false, served)).await;
    let next = running.world.pairs.remove(&key(&format!("{NAMESPACE}/next"))).expect("a pair");
    running.world.pairs.insert(key(&format!("{NAMESPACE}/web")), next);
    running.proxies.update(&running.world);
    // The client does not accept the other name.
    running.expect(by_tls("web.example", "web.example", false, json!({"failure": "another name"}))).await;
}
