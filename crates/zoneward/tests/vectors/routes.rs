//! The L7 cases as an operator would ask: `trace http`, `plan routes` and `plan validate`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{items, zoneward};

fn file() -> Value {
    let path = format!("{}/../../vectors/l7-routing.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn cases(kind: &str) -> Vec<Value> {
    items(&file()["cases"]).into_iter().filter(|case| case["kind"] == kind).collect()
}

fn wrapped(resource: &Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": resource["type"],
        "metadata": {"name": resource["name"], "namespace": "default"}, "spec": resource["spec"]})
}

/// Every name that stands beside a kind of Service.
fn services_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let is_service =
                map.get("kind").and_then(Value::as_str).is_some_and(|k| k.starts_with("MeshService"));
            if let Some(name) = map.get("name").and_then(Value::as_str).filter(|_| is_service) {
                names.insert(name.to_owned());
            }
            map.values().for_each(|inner| services_in(inner, names));
        }
        Value::Array(list) => list.iter().for_each(|inner| services_in(inner, names)),
        _ => {}
    }
}

/// The policies, a Service for every name but `missing`, and the gateway `edge`.
fn objects(resources: &Value, others: &[&Value], listeners: &Value) -> Vec<Value> {
    let mut names = BTreeSet::new();
    services_in(resources, &mut names);
    names.extend(others.iter().filter_map(|name| name.as_str()).map(str::to_owned));
    names.retain(|name| !name.starts_with("missing"));
    let service = |name: &String| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
    };
    let mut objects: Vec<Value> = names.iter().map(service).collect();
    objects.extend(items(resources).iter().map(wrapped));
    if listeners.is_array() {
        objects.push(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
            "metadata": {"name": "edge", "namespace": "default"}, "spec": {"listeners": listeners}}));
    }
    objects
}

fn client(proxy: &Value) -> String {
    let tags = proxy["tags"].as_object().into_iter().flatten();
    let tags = tags.map(|(key, value)| format!(",{key}={}", value.as_str().expect("a text")));
    format!("{}{}", proxy["service"].as_str().expect("a Service"), tags.collect::<String>())
}

/// Header lines of one name and a comma list are the same; case does not count.
fn headers(value: &Value) -> BTreeMap<String, String> {
    let lines = |value: &Value| match value {
        Value::Array(lines) => {
            lines.iter().map(|l| l.as_str().expect("a text")).collect::<Vec<_>>().join(",")
        }
        one => one.as_str().expect("a text").to_owned(),
    };
    value.as_object().into_iter().flatten().map(|(k, v)| (k.to_lowercase(), lines(v))).collect()
}

fn check_headers(id: &str, answer: &Value, expect: &Value) {
    let got = headers(&answer["headers"]);
    for (name, value) in headers(&expect["headers"]) {
        assert_eq!(got.get(&name), Some(&value), "{id}: header {name}: {answer}");
    }
    for name in items(&expect["absent_headers"]) {
        let name = name.as_str().expect("a name").to_lowercase();
        assert!(!got.contains_key(&name), "{id}: {name} is gone: {answer}");
    }
}

fn location(id: &str, answer: &Value, expect: &Value) {
    let text = headers(&answer["response"]["headers"])["location"].clone();
    let scheme = expect["scheme"].as_str().expect("a scheme");
    let rest = text.strip_prefix(&format!("{scheme}://")).unwrap_or_else(|| panic!("{id}: {text}"));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let default = if scheme == "https" { 443 } else { 80 };
    let (host, port) = authority
        .split_once(':')
        .map_or((authority, default), |(host, port)| (host, port.parse().expect("a port")));
    assert_eq!(
        json!([host, port, path]),
        json!([expect["host"], expect["port"], expect["path"]]),
        "{id}: {text}"
    );
}

fn names(list: &Value) -> Vec<Value> {
    items(list).iter().map(|entry| entry["name"].clone()).collect()
}

fn check(id: &str, answer: &Value, expect: &Value) {
    // Status 200 is the echo server's; ours is null then.
    let status = if expect["status"] == 200 { Value::Null } else { expect["status"].clone() };
    if expect.get("status").is_some() {
        assert_eq!(answer["status"], status, "{id}: {answer:#}");
    }
    if expect.get("backend").is_some() {
        assert_eq!(names(&answer["backends"]), [expect["backend"].clone()], "{id}: {answer:#}");
    }
    if expect.get("mirrors").is_some() {
        assert_eq!(Value::from(names(&answer["mirrors"])), expect["mirrors"], "{id}");
    }
    if let Some(upstream) = expect.get("upstream") {
        if let Some(path) = upstream.get("path") {
            assert_eq!(answer["request"]["path"], *path, "{id}: {answer:#}");
        }
        check_headers(id, &answer["request"], upstream);
    }
    if let Some(wanted) = expect.get("location") {
        location(id, answer, wanted);
    }
    if expect.get("body").is_some() {
        assert_eq!(answer["response"]["body"], expect["body"], "{id}");
    }
    check_headers(id, &answer["response"], &expect["response"]);
    if let Some(distribution) = expect["distribution"].as_object() {
        let backends = items(&answer["backends"]);
        let total: f64 = backends.iter().filter_map(|b| b["weight"].as_f64()).sum();
        let got: BTreeMap<String, f64> = backends
            .iter()
            .map(|b| {
                let error = || format!("status:{}", b["status"]);
                let name = b["name"].as_str().map_or_else(error, str::to_owned);
                (name, b["weight"].as_f64().expect("a weight") / total)
            })
            .collect();
        assert_eq!(json!(got), json!(distribution), "{id}");
    }
    assert!(!items(&answer["why"]).is_empty(), "{id}: an answer comes with its reason");
}

#[test]
fn trace_http_sends_the_requests_of_l7_routing_where_they_belong() {
    let all = file();
    for case in cases("request") {
        let id = case["id"].as_str().expect("an id");
        let fixture = &all["fixtures"][case["fixture"].as_str().expect("a fixture")];
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{id}.request.json"));
        let mut request = case["request"].clone();
        if let Some(map) = request.as_object_mut() {
            let set = map.remove("backend_sets_response_headers").unwrap_or_default();
            map.insert("upstreamResponseHeaders".to_owned(), set);
        }
        std::fs::write(&path, request.to_string()).expect("the request can be written");
        let file = path.to_str().expect("a path in UTF-8");
        let (from, to) = (&fixture["client"], fixture["destination"].as_str());
        let objects = objects(
            &fixture["resources"],
            &[&from["service"], &fixture["destination"]],
            &fixture["listeners"],
        );
        let answer = match to {
            Some(to) => {
                let from = client(from);
                zoneward(&["trace", "http", "--from", &from, "--to", to, "--request", file], &objects)
            }
            None => zoneward(&["trace", "http", "--gateway", "edge", "--request", file], &objects),
        };
        let _ = std::fs::remove_file(&path);
        check(id, &answer, &case["expect"]);
    }
}

#[test]
fn plan_routes_merges_as_l7_routing_does() {
    for case in cases("merge") {
        let (id, proxy) = (&case["id"], &case["proxy"]);
        let objects = objects(&case["resources"], &[&proxy["service"], &case["destination"]], &Value::Null);
        let to = case["destination"].as_str().expect("a destination");
        let answer = zoneward(&["plan", "routes", "--from", &client(proxy), "--to", to], &objects);
        let mut rules = items(&answer["rules"]);
        for rule in &mut rules {
            let from = rule.as_object_mut().and_then(|rule| rule.remove("from")).expect("a source");
            assert!(from["matches"].is_string(), "{id}: {from}");
        }
        assert_eq!(Value::from(rules), case["expect_rules"], "{id}");
    }
}

#[test]
fn plan_validate_refuses_what_l7_routing_refuses() {
    for case in cases("validation") {
        let (id, accept) = (&case["id"], &case["accept"]);
        let answer = zoneward(&["plan", "validate"], &[wrapped(&case["resource"])]);
        assert_eq!(answer["accepted"], *accept, "{id}: {answer}");
        if *accept == false {
            let fields: Vec<Value> =
                items(&answer["violations"]).iter().map(|violation| violation["field"].clone()).collect();
            assert_eq!(fields, [case["violation_path"].clone()], "{id}: {answer}");
        }
    }
}
