//! The conformance cases of the Gateway API by `trace http` and `plan status`. The objects have no creation times: the
//! order of the file counts. `crates/plan/tests/gateway_api.rs` compares every detail; here, the command line counts.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{items, zoneward};

fn cases() -> Vec<Value> {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let text = text.replace("\"UNUSABLE\"", "\"192.0.2.9\"").replace("\"USABLE\"", "\"127.0.0.1\"");
    items(&serde_json::from_str::<Value>(&text).expect("the vectors are JSON")["cases"])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

fn certificate(certificate: &Value) -> Value {
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n");
    let metadata = json!({"name": certificate["name"], "namespace": certificate["namespace"]});
    match text(&certificate["kind"]) {
        "Secret" => {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": certificate["type"],
            "stringData": {"tls.crt": pem("CERTIFICATE"), "tls.key": pem("PRIVATE KEY")}})
        }
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"ca.crt": pem("CERTIFICATE")}}),
    }
}

fn name_of(object: &Value) -> String {
    format!(
        "{}/{}",
        object["metadata"]["namespace"].as_str().unwrap_or_default(),
        text(&object["metadata"]["name"])
    )
}

/// Calls `check` with the objects of every step.
fn walk(case: &Value, mut check: impl FnMut(&[Value], &Value)) {
    let mut objects = vec![json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "conformance"}, "spec": {"controllerName": "zoneward.dev/gateway"}})];
    objects.extend(items(&case["certificates"]).iter().map(certificate));
    objects.extend(items(&case["objects"]));
    check(&objects, case);
    for step in items(&case["steps"]) {
        if step["create"].is_object() {
            objects.push(step["create"].clone());
        }
        for object in &mut objects {
            let new = &step["replace"];
            if new["kind"] == object["kind"] && name_of(new) == name_of(object) {
                *object = new.clone();
            }
        }
        let gone = &step["delete"];
        objects.retain(|object| {
            object["kind"] != gone["kind"] || Some(name_of(object).as_str()) != gone["name"].as_str()
        });
        check(&objects, &step);
    }
}

fn trace(id: &str, objects: &[Value], request: &Value) -> Value {
    let is_grpc = request["protocol"] == "grpc";
    let mut sent =
        json!({"host": request["host"].as_str().unwrap_or("192.0.2.1"), "headers": request["headers"]});
    for field in ["scheme", "sni", "protocol"] {
        if request[field].is_string() {
            sent[field] = request[field].clone();
        }
    }
    match request["service"].as_str() {
        Some(service) => sent["path"] = format!("/{service}/{}", text(&request["method"])).into(),
        None => sent["path"] = request["path"].as_str().unwrap_or("/").into(),
    }
    if !is_grpc && request["method"].is_string() {
        sent["method"] = request["method"].clone();
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{id}.request.json"));
    std::fs::write(&path, sent.to_string()).expect("the file can be written");
    let path = path.to_str().expect("UTF-8");
    if let Some(gateway) = request["gateway"].as_str() {
        let port = request["port"].to_string();
        return zoneward(
            &["trace", "http", "--gateway", gateway, "--port", &port, "--request", path],
            objects,
        );
    }
    let from = text(&request["from"]);
    let namespace = from.split('/').next().expect("a namespace");
    let to = text(&request["to"]);
    let to = if to.contains('/') { to.to_owned() } else { format!("{namespace}/{to}") };
    let to = if to.contains(':') { to } else { format!("{to}:80") };
    zoneward(&["trace", "http", "--from", from, "--to", &to, "--request", path], objects)
}

#[test]
fn trace_http_sends_the_requests_of_the_conformance_cases_where_they_belong() {
    for case in cases() {
        let id = text(&case["id"]);
        walk(&case, |objects, step| {
            for request in items(&step["requests"]) {
                let (answer, expect) = (trace(id, objects, &request), &request["expect"]);
                let statuses = match &expect["status"] {
                    Value::Array(all) => all.clone(),
                    one => vec![one.clone()],
                };
                // A status of the backend, or one that depends on time, is null.
                let is_own =
                    |status: &Value| status.as_u64().is_some_and(|status| !matches!(status, 101 | 200 | 504));
                if statuses.iter().any(is_own) {
                    assert!(statuses.contains(&answer["status"]), "{id}: {request}: {answer:#}");
                } else if expect["grpcStatus"] == "Unimplemented" {
                    assert_eq!(answer["response"]["headers"]["grpc-status"], "12", "{id}: {answer:#}");
                } else {
                    assert_eq!(answer["status"], Value::Null, "{id}: {request}: {answer:#}");
                }
                assert_eq!(
                    answer["closed"] == true,
                    expect["failure"].is_string(),
                    "{id}: {request}: {answer:#}"
                );
                if expect["backend"].is_string() {
                    let backend = &answer["backends"][0];
                    let namespace = expect["namespace"].as_str().unwrap_or("gateway-conformance-");
                    assert!(text(&backend["namespace"]).starts_with(namespace), "{id}: {answer:#}");
                    assert_eq!(
                        backend["kind"],
                        if case["kind"] == "mesh" && answer["matched"].is_null() {
                            "MeshService"
                        } else {
                            "Service"
                        },
                        "{id}: {answer:#}"
                    );
                }
            }
        });
    }
}

#[test]
fn plan_status_shows_the_statuses_of_the_conformance_cases() {
    for case in cases() {
        let id = text(&case["id"]);
        walk(&case, |objects, step| {
            let wanted = items(&step["statuses"]);
            if wanted.is_empty() {
                return;
            }
            let all = items(&zoneward(&["plan", "status"], objects)["statuses"]);
            for wanted in wanted {
                let of = |own: &&Value| {
                    own["kind"] == wanted["kind"]
                        && format!("{}/{}", text(&own["namespace"]), text(&own["name"]))
                            == text(&wanted["name"])
                };
                let namespaced: Vec<Value> =
                    all.iter().filter(|own| own["namespace"].is_string()).cloned().collect();
                let Some(own) = namespaced.iter().find(of) else {
                    assert_eq!(wanted["noAcceptedParents"], true, "{id}: {wanted}");
                    continue;
                };
                assert_eq!(own["apiVersion"], "gateway.networking.k8s.io/v1");
                let parents =
                    items(&own["status"]["parents"]).into_iter().chain(items(&own["status"]["ancestors"]));
                let lists: Vec<Vec<Value>> = std::iter::once(items(&own["status"]["conditions"]))
                    .chain(parents.map(|parent| items(&parent["conditions"])))
                    .collect();
                let holds = |list: &Vec<Value>| {
                    items(&wanted["conditions"]).iter().all(|wanted| {
                        list.iter().any(|own| {
                            own["type"] == wanted["type"]
                                && own["status"] == wanted["status"]
                                && (wanted["reason"].is_null() || own["reason"] == wanted["reason"])
                        })
                    })
                };
                assert!(lists.iter().any(holds), "{id}: {wanted}: {own:#}");
            }
        });
    }
}

#[test]
fn plan_validate_refuses_what_the_admission_cases_refuse() {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let content = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&content).expect("the vectors are JSON");
    for (channel, other, count) in [("standard", "experimental", 60), ("experimental", "standard", 71)] {
        let is_own = |case: &&Value| {
            case["channel"] != other && case["object"]["apiVersion"] == "gateway.networking.k8s.io/v1"
        };
        let all = items(&file["admission"]);
        let cases: Vec<&Value> = all.iter().filter(is_own).collect();
        assert_eq!(cases.len(), count);
        let named = |(i, case): (usize, &&Value)| {
            let mut object = case["object"].clone();
            object["metadata"] = json!({"name": format!("case-{i}"), "namespace": "default"});
            object
        };
        let objects: Vec<Value> = cases.iter().enumerate().map(named).collect();
        let answer = zoneward(&["plan", "validate", "--gateway-api-channel", channel], &objects);
        let violations = items(&answer["violations"]);
        for (i, case) in cases.iter().enumerate() {
            let of = |violation: &&Value| text(&violation["object"]).ends_with(&format!("/case-{i}"));
            let own: Vec<&Value> = violations.iter().filter(of).collect();
            assert_eq!(own.is_empty(), case["valid"] == true, "{channel}: {}: {own:?}", case["id"]);
        }
    }
}
