//! The examples of routes, run as a newcomer would, and held against what their comments and the README say.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

fn answer(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(args)
        .args(["-o", "json"])
        .current_dir(root())
        .output()
        .expect("the program can be started");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {errors}"))
}

fn rules(file: &str) -> Value {
    let file = format!("examples/routes/{file}.yaml");
    let plan = answer(&["plan", "routes", "-f", &file, "--from", "frontend", "--to", "backend"]);
    assert_eq!(plan["notices"], json!([]), "{file}");
    plan["rules"].clone()
}

fn trace(file: &str, whose: &[&str], request: &str) -> Value {
    let file = format!("examples/routes/{file}.yaml");
    let request = format!("examples/routes/requests/{request}.request");
    answer(&[&["trace", "http", "-f", &file, "--request", &request], whose].concat())
}

const IN_MESH: &[&str] = &["--from", "frontend", "--to", "backend"];

// Seed 004, "Proposal". The rules of the policy that wins go first: docs/differences.md says why.
#[test]
fn rules_with_the_same_matches_are_merged_part_by_part() {
    let rules = rules("seed-merge");
    let paths: Vec<&Value> =
        rules.as_array().unwrap().iter().map(|rule| &rule["matches"][0]["path"]["value"]).collect();
    assert_eq!(paths, ["/v2", "/v1"]);
    assert_eq!(rules[0]["from"]["filters"], "MeshHTTPRoute default/consumer");
    assert_eq!(rules[0]["from"]["backendRefs"], "MeshHTTPRoute default/owner");
    assert_eq!(rules[0]["backendRefs"][0]["tags"], json!({"version": "v2"}));
    assert_eq!(rules[1].get("filters"), None);
    let trace = trace("seed-merge", IN_MESH, "v2");
    assert_eq!(trace["matched"], json!({"policy": "MeshHTTPRoute default/consumer", "rule": 0, "match": 0}));
    assert_eq!(trace["response"]["headers"], json!({"env": "dev"}));
    assert_eq!(trace["request"]["path"], "/v2/items?page=2");
}

#[test]
fn an_empty_list_clears_what_a_lower_policy_says() {
    for rule in rules("seed-override").as_array().unwrap() {
        assert_eq!((&rule["filters"], &rule["backendRefs"]), (&json!([]), &json!([])));
    }
    let trace = trace("seed-override", IN_MESH, "v2");
    assert_eq!(
        trace["backends"],
        json!([{"kind": "MeshService", "namespace": "default", "name": "backend", "tags": {}, "port": 80, "weight": 1}])
    );
}

#[test]
fn the_lists_of_the_client_take_the_place_of_the_owners() {
    let rules = rules("seed-owner-and-consumer");
    assert_eq!(rules.as_array().map(Vec::len), Some(1));
    assert_eq!(rules[0]["filters"][0]["type"], "RequestHeaderModifier");
    assert_eq!(rules[0]["backendRefs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_canary_gets_its_tenth() {
    let trace = trace("canary", IN_MESH, "v2");
    let weights: Vec<(&Value, &Value)> =
        trace["backends"].as_array().unwrap().iter().map(|b| (&b["tags"]["version"], &b["weight"])).collect();
    assert_eq!(weights, [(&json!("v1"), &json!(90)), (&json!("v2"), &json!(10))]);
}

#[test]
fn a_header_goes_before_a_bare_path() {
    let tester = trace("header-routing", IN_MESH, "tester");
    assert_eq!(tester["backends"][0]["tags"]["version"], "v2");
    assert_eq!(trace("header-routing", IN_MESH, "v2")["backends"][0]["tags"]["version"], "v1");
}

#[test]
fn a_mirror_gets_copies_and_the_request_goes_where_it_was_going() {
    let trace = trace("mirror", IN_MESH, "orders");
    assert_eq!(
        (&trace["mirrors"][0]["name"], &trace["mirrors"][0]["percentage"]),
        (&json!("backend-next"), &json!(5.0))
    );
    assert_eq!(trace["backends"][0]["name"], "backend");
}

#[test]
fn redirects_rewrites_and_answers_at_a_gateway() {
    let moved = trace("redirect", &["--gateway", "edge:inside"], "old-path");
    assert_eq!(moved["status"], 308);
    assert_eq!(moved["response"]["headers"]["location"], "http://shop.example.com:8081/shop/hats");
    let secure = trace("redirect", &["--gateway", "edge:http"], "old-path");
    assert_eq!(secure["status"], 301);
    assert_eq!(secure["response"]["headers"]["location"], "https://shop.example.com/old/hats");
}

#[test]
fn two_hosts_at_one_port_have_their_own_rules() {
    let api = trace("gateway-tls", &["--gateway", "edge"], "api");
    assert_eq!(api["backends"][0]["name"], "api");
    assert_eq!(api["request"]["headers"], json!({"authorization": "Bearer x", "x-gateway": "edge"}));
    let other = trace("gateway-tls", &["--gateway", "edge"], "v2");
    assert_eq!(other["status"], 404, "no listener is for that host");
    let plan = answer(&["plan", "routes", "-f", "examples/routes/gateway-tls.yaml", "--gateway", "edge"]);
    let hosts: Vec<&Value> = plan["hosts"].as_array().unwrap().iter().map(|part| &part["host"]).collect();
    assert_eq!(hosts, ["shop.example.com", "*.api.example.com"]);
}

#[test]
fn an_invalid_policy_is_told_and_the_others_count() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("invalid-route.yaml");
    let good = std::fs::read_to_string(root().join("examples/routes/canary.yaml")).unwrap();
    let bad = "---\napiVersion: zoneward.dev/v1alpha1\nkind: MeshHTTPRoute\nmetadata: {name: bad}\nspec:\n  to:\n  - targetRef: {kind: MeshService, name: backend}\n    default: {rules: []}\n";
    std::fs::write(&file, good + bad).unwrap();
    let file = file.to_str().unwrap();
    let plan = answer(&["plan", "routes", "-f", file, "--from", "frontend", "--to", "backend"]);
    assert_eq!(plan["rules"].as_array().map(Vec::len), Some(1));
    let message = plan["notices"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("spec.to[0].default: `default` belongs in each rule"), "{message}");
}

/// A world of two namespaces, written to a file.
fn two_namespaces(name: &str, rules: Value) -> String {
    let service = |namespace: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
    };
    let policy = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"namespace": "shop", "name": "owner"}, "spec": {"targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "MeshService", "name": "cart"}, "rules": rules}]}});
    let items = [service("shop", "cart"), service("shop", "next"), service("bank", "teller"), policy];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = format!("{}/two-namespaces-{name}.json", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&file, list.to_string()).expect("the target folder can be written");
    file
}

fn pattern() -> Value {
    json!({"matches": [{"path": {"type": "RegularExpression", "value": "/v[0-9]+/.*"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "next"}]}})
}

#[test]
fn a_pattern_of_the_owner_is_hit_by_a_client_of_another_namespace() {
    let file = two_namespaces("names", json!([pattern()]));
    for (from, to, rest) in [
        ("bank/teller", "shop/cart", &[][..]),
        ("svc/bank/teller", "service/shop/cart:80", &[]),
        ("bank/teller", "svc/cart", &["-n", "shop"]),
        ("svc/cart", "svc/cart", &["-n", "shop"]),
    ] {
        let request = "examples/routes/requests/v2.request";
        let words = ["trace", "http", "-f", &file, "--from", from, "--to", to, "--request", request];
        let trace = answer(&[&words[..], rest].concat());
        let matched = json!({"policy": "MeshHTTPRoute shop/owner", "rule": 0, "match": 0});
        assert_eq!(trace["matched"], matched, "{from} {to}");
        assert_eq!(trace["backends"][0]["namespace"], "shop");
        assert_eq!(trace["backends"][0]["name"], "next");
        let plan = answer(&[&["plan", "routes", "-f", &file, "--from", from, "--to", to], rest].concat());
        assert_eq!(plan["rules"].as_array().map(Vec::len), Some(1), "{from} {to}");
        assert_eq!(plan["order"][1], json!({"policy": null, "field": null}), "the implied rule goes last");
    }
}

#[test]
fn client_with_an_unknown_name_is_warned_of_with_the_nearest_one() {
    let run = |from: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["trace", "http", "-f", "examples/routes/seed-merge.yaml", "-o", "json"])
            .args(["--to", "backend", "--request", "examples/routes/requests/v2.request", "--from", from])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "a client needs no Service");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run("fronted");
    assert!(
        said.contains("Service default/fronted") && said.contains("did you mean \"frontend\"?"),
        "{said}"
    );
    assert!(!run("frontend").contains("UnknownClient"));
}

#[test]
fn an_unknown_service_is_told_with_the_nearest_one() {
    let file = two_namespaces("unknown", json!([pattern()]));
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "routes", "-f", &file, "--from", "bank/teller", "--to", "shop/crat"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("there is no Service shop/crat; did you mean \"shop/cart\"?"), "{said}");
}

#[test]
fn rules_that_no_request_can_hit_are_told_by_plan_validate_and_plan_routes() {
    let file = two_namespaces("dead", json!([pattern(), pattern()]));
    let reason = "spec.to[0].rules[1] has the same matches as spec.to[0].rules[0], which has precedence, so it has no effect";
    let checked = answer(&["plan", "validate", "-f", &file]);
    assert_eq!(checked["accepted"], true);
    let warning = &checked["warnings"][0];
    assert_eq!(
        (&warning["object"], &warning["field"]),
        (&json!("MeshHTTPRoute shop/owner"), &json!("spec.to[0].rules[1]"))
    );
    assert!(warning["reason"].as_str().unwrap().starts_with(reason), "{warning}");
    let plan = answer(&["plan", "routes", "-f", &file, "--from", "bank/teller", "--to", "shop/cart"]);
    let notice = &plan["notices"][0];
    assert_eq!(notice["reason"], "RuleNeverMatches", "{notice}");
}

/// The request that a trace reads from standard input.
fn trace_of(request: &Value, flags: &[&str]) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["trace", "http", "-f", "examples/routes/redirect.yaml", "--gateway", "edge:inside"])
        .args(["--request", "-", "-o", "json"])
        .args(flags)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    child.stdin.take().expect("piped").write_all(request.to_string().as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_trace_follows_the_settings_of_the_edge() {
    let disguised = json!({"host": "a.example", "path": "/x%2f..%2fold/a?q=1"});
    let trace = trace_of(&disguised, &[]);
    assert_eq!(
        (&trace["status"], &trace["response"]["headers"]["location"]),
        (&json!(307), &json!("/old/a?q=1"))
    );
    assert_eq!(trace_of(&disguised, &["--escaped-slashes", "reject"])["status"], 400);
    assert_eq!(trace_of(&disguised, &["--escaped-slashes", "unescape-and-forward"])["status"], 308);
    let lying = json!({"host": "a.example", "path": "/shop", "client": "10.0.0.1",
        "headers": {"x-forwarded-for": "192.0.2.7"}});
    let client = |flags: &[&str]| trace_of(&lying, flags)["request"]["headers"]["x-real-ip"].clone();
    assert_eq!(client(&[]), "10.0.0.1");
    assert_eq!(client(&["--trusted-proxies", "10.0.0.0/8,fd00::/8"]), "192.0.2.7");
}
