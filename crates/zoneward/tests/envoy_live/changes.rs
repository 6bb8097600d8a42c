//! What people change while an Envoy runs: policies, endpoints, and things that Envoy does not take.

use fixtures::eventually;
use serde_json::{Value, json};

use crate::envoy_live::control::{Control, Load, apply, envoy, kubectl};
use crate::mesh_live::world::{Machine, Upstream, ask, body, route};

const AT: &str = "127.0.0.1:8081";

fn to(filters: &Value, path: &str) -> Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": path}}], "default": {"filters": filters}}])
}

#[test]
fn policies_by_kubectl_and_endpoints_reach_a_running_envoy() {
    toolbox::in_own_namespaces!();
    let (one, two) = (Upstream::start("one", "10.1.0.1"), Upstream::start("two", "10.1.0.2"));
    let machine = Machine::up("envoy-policies", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    let control = Control::start(&machine, &[]);
    let envoy = envoy(&["--from", "frontend", "--outbound", "8081=backend"]);
    envoy.wait_for(AT.parse().unwrap());
    eventually("the first answer", || body(AT, "/").as_deref() == Some("one"));
    let load = Load::start(AT.parse().unwrap());

    let kubeconfig = machine.folder.join("data/kubeconfig");
    let tea = json!([{"type": "DirectResponse", "directResponse": {"status": 418, "body": {"inlineString": "tea"}}}]);
    apply(&machine.folder, &kubeconfig, &[route("tea", "backend", to(&tea, "/tea"))]);
    eventually("the policy", || ask(AT, "x", "/tea/green", "").is_some_and(|answer| answer.status == 418));
    kubectl(&kubeconfig, &["delete", "meshhttproute", "tea"]);
    eventually("the end of the policy", || body(AT, "/tea").as_deref() == Some("one"));
    let (clusters, listeners) = (r#"sent_total{kind="cluster"} 1"#, r#"sent_total{kind="listener"} 1"#);
    let metrics = control.page("/metrics");
    assert!(metrics.contains(clusters) && metrics.contains(listeners), "routes alone changed: {metrics}");

    // One more endpoint, then the other one alone.
    machine.expose("backend", &[one.address.clone(), two.address.clone()]);
    eventually("the second endpoint", || body(AT, "/").as_deref() == Some("two"));
    eventually("the first, too", || body(AT, "/").as_deref() == Some("one"));
    machine.expose("backend", std::slice::from_ref(&two.address));
    eventually("the second alone", || (0..20).all(|_| body(AT, "/").as_deref() == Some("two")));
    load.wait_for(50);
    let seen = one.seen().len();
    load.wait_for(200);
    assert_eq!(one.seen().len(), seen, "who is no endpoint any more is asked nothing");
    assert!(load.end() > 300);
    assert_eq!(control.metric("zoneward_xds_responses_refused_total"), 0);
}

#[test]
fn a_refusal_is_in_status_metrics_and_notices_and_what_worked_goes_on() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("envoy-refusal", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    let control = Control::start(&machine, &["--allow-file", "/nowhere/page.html"]);
    let envoy = envoy(&["--from", "frontend", "--outbound", "8081=backend", "--id", "frontend-1"]);
    envoy.wait_for(AT.parse().unwrap());
    eventually("the first answer", || body(AT, "/").is_some());
    let load = Load::start(AT.parse().unwrap());

    // It may be read, and is not there: only Envoy can know.
    let page = json!([{"type": "DirectResponse", "directResponse": {"status": 200, "body": {"filename": "/nowhere/page.html"}}}]);
    let policy = route("page", "backend", to(&page, "/page"));
    machine.apply(&policy);
    let refused = || control.status()["streams"][0]["refused"].clone();
    eventually("the refusal", || refused().as_array().is_some_and(|all| !all.is_empty()));
    let refusal = &refused()[0];
    assert_eq!((&refusal["kind"], &refusal["name"]), (&json!("routes"), &json!("default/backend:80")));
    assert!(refusal["message"].as_str().unwrap().contains("/nowhere/page.html"), "Envoy's words: {refusal}");
    assert_eq!(refusal["triedAgain"], false);
    assert_eq!(control.metric("zoneward_xds_resources_refused"), 1);
    assert_eq!(control.metric("zoneward_xds_responses_refused_total"), 1);
    eventually("the Notice", || control.status()["notices"].to_string().contains("ConfigurationRefused"));
    let log = control.running.log();
    let told = |line: &str| line.contains("Envoy default/frontend-1") && line.contains("rejected routes");
    assert!(log.lines().any(|line| told(line) && line.contains("ConfigurationRefused")), "{log}");
    assert_eq!(control.metric("zoneward_xds_notices"), 1);
    assert_eq!(body(AT, "/page").as_deref(), Some("one"), "what it had");

    // The next version is taken, and everything else went on.
    let good = json!([{"type": "DirectResponse", "directResponse": {"status": 410}}]);
    machine.apply(&route("page", "backend", to(&good, "/page")));
    eventually("the good version", || ask(AT, "x", "/page", "").is_some_and(|answer| answer.status == 410));
    eventually("no refusal", || control.metric("zoneward_xds_resources_refused") == 0);
    eventually("no Notice", || control.metric("zoneward_xds_notices") == 0);
    load.wait_for(50);
    load.end();
    assert_eq!(control.metric("zoneward_xds_responses_refused_total"), 1, "it was sent once");
}
