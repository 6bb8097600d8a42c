//! The L7 cases through the library: requests and merges, as a proxy would ask.

use std::collections::BTreeSet;

use model::route::{Arrival, BackendTarget, EdgeSettings, RouteTable, Routing, Scheme, rule_value};
use model::{Name, ObjectKey, ServiceKey, Snapshot};
use plan::routes::{MeshClient, RequestOutcome, TracedRequest, gateway, outbound, trace};
use serde_json::{Value, json};

fn file() -> Value {
    let path = format!("{}/../../vectors/l7-routing.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn cases(kind: &str) -> Vec<Value> {
    items(&file()["cases"]).into_iter().filter(|case| case["kind"] == kind).collect()
}

fn wrapped(resource: &Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": resource["type"],
        "metadata": {"name": resource["name"], "namespace": "default"}, "spec": resource["spec"]})
}

fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let of_service =
                map.get("kind").and_then(Value::as_str).is_some_and(|k| k.starts_with("MeshService"));
            names.extend(map.get("name").and_then(Value::as_str).filter(|_| of_service).map(str::to_owned));
            map.values().for_each(|inner| names_in(inner, names));
        }
        Value::Array(list) => list.iter().for_each(|inner| names_in(inner, names)),
        _ => {}
    }
}

fn snapshot(resources: &Value, others: &[&Value], listeners: &Value) -> Snapshot {
    let mut names = BTreeSet::new();
    names_in(resources, &mut names);
    names.extend(others.iter().filter_map(|name| name.as_str()).map(str::to_owned));
    let there = names.iter().filter(|name| !name.starts_with("missing"));
    let mut values: Vec<Value> = there
        .map(|name| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
        })
        .collect();
    values.extend(items(resources).iter().map(wrapped));
    if listeners.is_array() {
        values.push(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
            "metadata": {"name": "edge"}, "spec": {"listeners": listeners}}));
    }
    fixtures::snapshot(&values)
}

fn key(name: &Value) -> ServiceKey {
    ServiceKey::new(&"default".into(), &name.as_str().expect("a name").into())
}

fn between(snapshot: &Snapshot, proxy: &Value, destination: &Value) -> Routing {
    let tags = proxy["tags"].as_object().into_iter().flatten();
    let tags = tags.map(|(key, value)| (key.as_str(), value.as_str().expect("a text"))).collect();
    let client = MeshClient::of_service(snapshot, &key(&proxy["service"]), &tags);
    let service = snapshot.service(&key(destination)).expect("it is there");
    outbound(snapshot, &client, service, &service.ports[0]).expect("TCP").0.routing
}

fn headers(value: &Value) -> Vec<(Name, Name)> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.as_str().into(), value.as_str().expect("a text").into())).collect()
}

fn send(snapshot: &Snapshot, fixture: &Value, request: &Value) -> RequestOutcome {
    let text = |name: &str| request[name].as_str().expect("a text").to_owned();
    let incoming = TracedRequest {
        method: text("method"),
        host: text("host"),
        path: text("path"),
        headers: headers(&request["headers"]),
        response_headers: headers(&request["backend_sets_response_headers"]),
        client: None,
    };
    let table: RouteTable;
    let in_mesh: Routing;
    let (routing, port) = if fixture["destination"].is_string() {
        in_mesh = between(snapshot, &fixture["client"], &fixture["destination"]);
        (Some(&in_mesh), None)
    } else {
        let edge =
            snapshot.mesh_gateway(&ObjectKey::new(&"default".into(), &"edge".into())).expect("the gateway");
        table = gateway(snapshot, edge).0;
        let port = table.ports().next().expect("a port");
        (port.listener(&incoming.host).and_then(|l| l.routing(&incoming.host)), Some(port.number))
    };
    let routes = routing.map(|routing| match routing {
        Routing::Http(routes) => &**routes,
        Routing::Tcp(_) => panic!("not HTTP"),
    });
    trace(routes, &incoming, &Arrival { scheme: Scheme::Http, port }, &EdgeSettings::default()).outcome
}

fn name(to: &BackendTarget) -> String {
    match to {
        BackendTarget::Backend(id) => id.service.name.to_string(),
        BackendTarget::Error(status) => format!("status:{status}"),
    }
}

#[test]
fn requests_go_where_a_real_proxy_sent_them() {
    let all = file();
    for case in cases("request") {
        let (id, expect) = (&case["id"], &case["expect"]);
        let fixture = &all["fixtures"][case["fixture"].as_str().expect("a fixture")];
        let others = [&fixture["client"]["service"], &fixture["destination"]];
        let snapshot = snapshot(&fixture["resources"], &others, &fixture["listeners"]);
        let outcome = send(&snapshot, fixture, &case["request"]);
        let own_status = expect["status"].as_u64().filter(|status| *status != 200);
        assert_eq!(outcome.status.map(u64::from), own_status, "{id}: {outcome:?}");
        if let Some(backend) = expect["backend"].as_str() {
            let backends: Vec<String> = outcome.backends.iter().map(|backend| name(&backend.to)).collect();
            assert_eq!(backends, [backend], "{id}");
        }
        if let Some(path) = expect["upstream"]["path"].as_str() {
            assert_eq!(outcome.path, path, "{id}");
        }
        for mirror in items(&expect["mirrors"]) {
            assert!(outcome.mirrors.iter().any(|m| m.to.service == key(&mirror)), "{id}: {mirror}");
        }
        let total: u64 = outcome.backends.iter().map(|backend| backend.weight).sum();
        for (wanted, share) in expect["distribution"].as_object().into_iter().flatten() {
            let backend =
                outcome.backends.iter().find(|backend| name(&backend.to) == *wanted).expect("a backend");
            assert_eq!(Some(backend.weight as f64 / total as f64), share.as_f64(), "{id}: {wanted}");
        }
    }
}

#[test]
fn policies_are_merged_as_the_cases_say() {
    for case in cases("merge") {
        let others = [&case["proxy"]["service"], &case["destination"]];
        let snapshot = snapshot(&case["resources"], &others, &Value::Null);
        let Routing::Http(routes) = between(&snapshot, &case["proxy"], &case["destination"]) else {
            panic!("HTTP")
        };
        let own = routes.rules().filter(|rule| rule.origin.policy.is_some());
        let rules: Vec<Value> = own.map(|rule| rule_value(&rule.rule)).collect();
        assert_eq!(Value::from(rules), case["expect_rules"], "{}", case["id"]);
    }
}
