//! Tests of reading policies: short forms, and every refusal with the field that it names.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::route::rule_value;

fn read(kind: &str, spec: Value) -> ParsedPolicy {
    let object =
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec});
    mesh_object(&object, &mut Interner::default())
}

fn to_backend(rule: Value) -> Value {
    json!({"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [rule]}]})
}

fn refused(rule: Value) -> Vec<String> {
    let mut fields: Vec<String> =
        read("MeshHTTPRoute", to_backend(rule)).errors.into_iter().map(|p| p.field).collect();
    let cut = |field: &mut String| *field = field.replace("spec.to[0].rules[0].", "");
    fields.iter_mut().for_each(cut);
    fields
}

/// A rule for `/` with this default.
fn with(default: Value) -> Value {
    json!({"matches": [{"path": {"prefix": "/"}}], "default": default})
}

fn filter(filter: Value) -> Vec<String> {
    refused(with(json!({"filters": [filter]})))
}

#[test]
fn ambiguous_overrides_and_merges_are_refused() {
    let header = json!([{"requestHeaderModifier": {"remove": ["x"]}}]);
    let rule = |rest: Value| {
        let mut rule = rest;
        rule["matches"] = json!([{"path": {"prefix": "/"}}]);
        refused(rule)
    };
    let to = json!([{"kind": "MeshService", "name": "b"}]);
    assert_eq!(rule(json!({"default": {"filters": header}, "override": {"backendRefs": to}})), [""; 0]);
    assert_eq!(
        rule(json!({"default": {"filters": header}, "override": {"filters": []}})),
        ["override.filters"]
    );
    assert_eq!(rule(json!({"override": {}})), ["override"]);
    assert_eq!(rule(json!({"merge": {"filters": []}})), ["merge.filters"]);
    assert_eq!(rule(json!({"merge": {"filters": [{"directResponse": {"status": 200}}]}})), ["merge.filters"]);
    assert_eq!(rule(json!({"merge": {"backendRefs": to}}))[0], "merge.backendRefs");
    let mirror =
        json!([{"kind": "MeshService", "name": "b", "filters": [{"requestMirror": {"backendRef": to[0]}}]}]);
    assert_eq!(rule(json!({"default": {"backendRefs": mirror}})), ["default.backendRefs[0].filters"]);
    let mut foreign =
        to_backend(json!({"matches": [{"path": {"prefix": "/"}}], "override": {"backendRefs": to}}));
    foreign["to"][0]["targetRef"]["namespace"] = "elsewhere".into();
    let fields: Vec<String> = read("MeshHTTPRoute", foreign).errors.into_iter().map(|e| e.field).collect();
    assert_eq!(fields, ["spec.to[0].rules[0].override"], "only the owner");
}

fn balancing(default: Value) -> Value {
    json!({"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "default": default}]})
}

#[test]
fn load_balancing_is_read_and_written_again() {
    let default = json!({
        "algorithm": {"type": "RingHash", "hashOn": {"type": "Cookie", "name": "Session"}},
        "outlierDetection": {"consecutiveFailures": 3, "baseEjectionTime": "30s", "maxEjectionPercent": 20},
        "panicThreshold": 40,
        "circuitBreakers": {"maxConnections": 1, "maxPendingRequests": 2, "maxRequests": 3, "maxRetries": 0},
        "retries": {"codes": [503], "attempts": 2, "backoff": "10ms", "budget": {"percent": 20, "minConcurrent": 5}},
        "timeouts": {"connect": "1s", "request": "10s", "backendRequest": "3s"},
        "rateLimit": {"requests": 100, "interval": "1m0s"},
        "faults": {"delay": {"duration": "200ms", "percentage": 5}, "abort": {"status": 503, "percentage": "0.5"}},
    });
    let reading = read("MeshLoadBalancing", balancing(default.clone()));
    assert_eq!(reading.errors, []);
    let Some(Object::MeshLoadBalancing(policy)) = reading.object else { panic!("a policy") };
    assert_eq!(policy.to[0].settings.value(), default);
}

#[test]
fn load_balancing_is_refused_with_its_field() {
    let hash = json!({"type": "Maglev", "hashOn": {"type": "SourceIP"}});
    for (default, field) in [
        (json!({}), ""),
        (json!({"algorithm": {"type": "Random"}}), ".algorithm.type"),
        (json!({"algorithm": {"type": "Maglev"}}), ".algorithm.hashOn"),
        (json!({"algorithm": {"type": "RoundRobin", "hashOn": {"type": "SourceIP"}}}), ".algorithm.hashOn"),
        (json!({"algorithm": {"type": "Maglev", "hashOn": {"type": "Header"}}}), ".algorithm.hashOn.name"),
        (json!({"algorithm": hash, "slowStart": {"window": "30s"}}), ".slowStart"),
        (json!({"slowStart": {}}), ".slowStart"),
        (json!({"slowStart": {"window": "1s", "minWeightPercent": 0}}), ".slowStart.minWeightPercent"),
        (json!({"slowStart": {"window": "1s", "aggression": "0"}}), ".slowStart.aggression"),
        (json!({"localities": []}), ".localities"),
        (json!({"localities": [{"from": ["a"]}]}), ".localities[0].priorities"),
        (json!({"localities": [{"priorities": [{"zones": []}]}]}), ".localities[0].priorities[0].zones"),
        (
            json!({"localities": [{"priorities": [{"zones": [{"name": "a", "weight": 0}]}]}]}),
            ".localities[0].priorities[0].zones[0].weight",
        ),
        (
            json!({"localities": [{"priorities": [{"zones": [{"name": "a"}]}, {"zones": [{"name": "a"}]}]}]}),
            ".localities[0].priorities[1].zones[0]",
        ),
        (
            json!({"localities": [{"priorities": [{"zones": [{"type": "Same", "name": "a"}]}]}]}),
            ".localities[0].priorities[0].zones[0].name",
        ),
        (
            json!({"localities": [{"priorities": [{"zones": [{"name": "*"}]}]}]}),
            ".localities[0].priorities[0].zones[0].name",
        ),
        (
            json!({"localities": [{"priorities": [{"zones": [{"name": "a"}]}]},
                {"from": ["b"], "priorities": [{"zones": [{"name": "a"}]}]}]}),
            ".localities",
        ),
        (json!({"slowStart": {"window": "0s"}}), ".slowStart.window"),
        (json!({"outlierDetection": {"maxEjectionPercent": 0}}), ".outlierDetection.maxEjectionPercent"),
        (json!({"panicThreshold": 101}), ".panicThreshold"),
        (json!({"circuitBreakers": {"maxRequests": 0}}), ".circuitBreakers.maxRequests"),
        (json!({"retries": {"attempts": 0}}), ".retries.attempts"),
        (json!({"retries": {"codes": [200]}}), ".retries.codes[0]"),
        (json!({"retries": {"budget": {"minConcurrent": 1}}}), ".retries.budget.percent"),
        (json!({"timeouts": {"request": "1s", "backendRequest": "2s"}}), ".timeouts.backendRequest"),
        (json!({"timeouts": {"connect": "soon"}}), ".timeouts.connect"),
        (json!({"rateLimit": {"requests": 1, "interval": "10ms"}}), ".rateLimit.interval"),
        (json!({"rateLimit": {"interval": "1s"}}), ".rateLimit.requests"),
        (json!({"faults": {"abort": {"status": 200}}}), ".faults.abort.status"),
        (json!({"faults": {"delay": {"percentage": 5}}}), ".faults.delay.duration"),
        (json!({"lightning": {}}), ".lightning"),
    ] {
        let errors = read("MeshLoadBalancing", balancing(default)).errors;
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert!(fields.contains(&&*format!("spec.to[0].default{field}")), "{field}: {errors:?}");
    }
    let mut gateway = balancing(json!({"rateLimit": {"requests": 1}}));
    gateway["targetRef"] = json!({"kind": "MeshGateway", "name": "edge", "tags": {"a": "b"}});
    let fields: Vec<String> =
        read("MeshLoadBalancing", gateway).errors.into_iter().map(|error| error.field).collect();
    assert_eq!(fields, ["spec.targetRef.tags"]);
}

#[test]
fn short_forms_become_long_ones() {
    let short = json!({"matches": {"path": {"prefix": "/v1"}, "headers": [{"name": "X-A", "value": "1"}]},
        "default": {"filters": [{"responseHeader": {"add": [{"name": "env", "value": null}]}}]}});
    let reading = read("MeshHTTPRoute", to_backend(short));
    assert_eq!(reading.errors, []);
    let Some(Object::MeshHttpRoute(route)) = reading.object else { panic!("an HTTP route") };
    let long = json!({
        "matches": [{"path": {"type": "Prefix", "value": "/v1"},
            "headers": [{"type": "Exact", "name": "x-a", "value": "1"}]}],
        "filters": [{"type": "ResponseHeaderModifier",
            "responseHeaderModifier": {"add": [{"name": "env", "value": ""}]}}]});
    assert_eq!(rule_value(&route.to[0].rules[0]), long);
    let mut again = long.clone();
    let filters = again["filters"].take();
    let again = json!({"matches": again["matches"], "default": {"filters": filters}});
    let Some(Object::MeshHttpRoute(second)) = read("MeshHTTPRoute", to_backend(again)).object else {
        panic!("an HTTP route")
    };
    assert_eq!(second.to, route.to, "what is shown can be read again");
}

#[test]
fn default_around_the_rules_is_refused_with_the_right_form() {
    let spec = json!({"to": [{"targetRef": {"kind": "MeshService", "name": "b"}, "default": {"rules": []}}]});
    let errors = read("MeshHTTPRoute", spec).errors;
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].field, "spec.to[0].default");
    assert!(errors[0].message.contains("rules: [{matches: [...], default: {backendRefs: [...]}}]"));
}

#[test]
fn matches_are_refused_by_field() {
    let on = |on: Value| refused(json!({"matches": [on], "default": {}}));
    assert_eq!(on(json!({"path": {"type": "Prefix", "value": "v1"}})), ["matches[0].path.value"]);
    assert_eq!(on(json!({"path": {"type": "Prefix", "value": "/v1/"}})), ["matches[0].path.value"]);
    assert_eq!(on(json!({"path": {"type": "Exact", "value": ""}})), ["matches[0].path.value"]);
    assert_eq!(on(json!({"path": {"type": "Glob", "value": "/"}})), ["matches[0].path.type"]);
    assert_eq!(
        on(json!({"path": {"prefix": "/", "exact": "/"}})),
        ["matches[0].path.prefix", "matches[0].path.exact", "matches[0].path.type"]
    );
    assert_eq!(on(json!({"path": {"regex": "("}})), ["matches[0].path.regex"]);
    assert_eq!(on(json!({"method": "get"})), ["matches[0].method"]);
    let absent = json!({"headers": [{"type": "Absent", "name": "a", "value": "x"}]});
    assert_eq!(on(absent), ["matches[0].headers[0].value"]);
    assert_eq!(on(json!({"headers": [{"name": "a b", "value": "x"}]})), ["matches[0].headers[0].name"]);
    let twice = json!({"queryParams": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]});
    assert_eq!(on(twice), ["matches[0].queryParams[1].name"]);
    assert_eq!(on(json!({"queryParam": []})), ["matches[0].queryParam"]);
    assert_eq!(refused(json!({"matches": [], "default": {}})), ["matches"]);
    assert_eq!(refused(json!({"default": {}})), ["matches"]);
    assert_eq!(refused(json!({"matches": "x"})), ["matches"]);
}

#[test]
fn a_header_that_is_asked_for_twice_is_told_and_accepted() {
    let twice = json!([{"name": "a", "value": "1"}, {"name": "A", "value": "2"}]);
    let reading = read("MeshHTTPRoute", to_backend(json!({"matches": [{"headers": twice}]})));
    assert!(reading.object.is_some() && reading.ignored.len() == 1);
}

#[test]
fn filters_are_refused_by_field() {
    assert_eq!(filter(json!({"type": "URLRewrite"})), ["default.filters[0].urlRewrite"]);
    assert_eq!(filter(json!({})), ["default.filters[0]"]);
    assert_eq!(filter(json!({"requestHeaderModifier": {}})), ["default.filters[0].requestHeaderModifier"]);
    let twice = json!({"requestHeaderModifier": {"set": [{"name": "a", "value": "1"}], "remove": ["A"]}});
    assert_eq!(filter(twice), ["default.filters[0].requestHeaderModifier.remove[0]"]);
    let smuggled = json!({"requestHeaderModifier": {"set": [{"name": "a", "value": "1\r\nb: 2"}]}});
    assert_eq!(filter(smuggled), ["default.filters[0].requestHeaderModifier.set[0].value"]);
    let host = |host: &str| filter(json!({"requestRedirect": {"hostname": host}}));
    assert_eq!(host("UPPER.example"), ["default.filters[0].requestRedirect.hostname"]);
    assert_eq!(host("10.0.0.1").len() + host("*.a.io").len() + host("a:80").len() + host("").len(), 4);
    assert_eq!(
        filter(json!({"requestRedirect": {"statusCode": 200}})),
        ["default.filters[0].requestRedirect.statusCode"]
    );
    assert_eq!(filter(json!({"requestRedirect": {"port": 0}})), ["default.filters[0].requestRedirect.port"]);
    assert_eq!(filter(json!({"requestMirror": {}})), ["default.filters[0].requestMirror.backendRef"]);
    let percentage = |p: Value| {
        filter(
            json!({"requestMirror": {"backendRef": {"kind": "MeshService", "name": "m"}, "percentage": p}}),
        )
    };
    assert!(percentage(json!(5)).is_empty() && percentage(json!("0.5")).is_empty());
    assert_eq!(percentage(json!(101)), ["default.filters[0].requestMirror.percentage"]);
    assert_eq!(
        percentage(json!("-1")).len() + percentage(json!("inf")).len() + percentage(json!([])).len(),
        3
    );
    let body = |body: Value| filter(json!({"directResponse": {"status": 200, "body": body}}));
    assert!(body(json!({"inlineBytes": "aGVsbG8="})).is_empty());
    assert_eq!(body(json!({"inlineBytes": "%"})), ["default.filters[0].directResponse.body.inlineBytes"]);
    assert_eq!(body(json!({})), ["default.filters[0].directResponse.body"]);
    assert_eq!(body(json!({"filename": "/a/../b"})), ["default.filters[0].directResponse.body.filename"]);
}

#[test]
fn what_excludes_each_other_is_refused() {
    let refs = json!([{"kind": "MeshService", "name": "b"}]);
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"statusCode": 301}});
    let direct = json!({"type": "DirectResponse", "directResponse": {"status": 200}});
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}});
    let both = |filters: Value, refs: &Value| refused(with(json!({"filters": filters, "backendRefs": refs})));
    assert_eq!(both(json!([redirect]), &refs), ["default.backendRefs"]);
    assert_eq!(both(json!([direct]), &refs), ["default.backendRefs"]);
    assert_eq!(both(json!([redirect]), &json!([])), [""; 0], "an empty list clears and is no conflict");
    assert_eq!(both(json!([redirect, rewrite]), &json!([])), ["default.filters"]);
    assert_eq!(both(json!([rewrite]), &refs), [""; 0]);
    let prefix = json!({"requestRedirect": {"path": {"replacePrefixMatch": "/y"}}});
    let rule = json!({"matches": [{"method": "GET"}], "default": {"filters": [prefix]}});
    assert_eq!(refused(rule), ["default.filters[0].requestRedirect.path.replacePrefixMatch"]);
}

#[test]
fn targets_are_refused_by_field() {
    let fields = |kind: &str, target: Value| {
        let mut spec = to_backend(with(json!({})));
        spec["targetRef"] = target;
        read(kind, spec).errors.into_iter().map(|p| p.field).collect::<Vec<_>>()
    };
    assert_eq!(
        fields("MeshHTTPRoute", json!({"kind": "MeshGateway", "name": "edge"})),
        ["spec.targetRef.kind"]
    );
    assert_eq!(fields("MeshHTTPRoute", json!({"kind": "Mesh", "name": "x"})), ["spec.targetRef.name"]);
    assert_eq!(fields("MeshHTTPRoute", json!({"kind": "MeshService"})), ["spec.targetRef.name"]);
    assert_eq!(fields("MeshHTTPRoute", json!({"kind": "MeshSubset"})), ["spec.targetRef.tags"]);
    let number = json!({"kind": "MeshSubset", "tags": {"version": 1}});
    assert!(fields("MeshHTTPRoute", number).contains(&"spec.targetRef.tags[version]".to_owned()));
    assert_eq!(fields("MeshHTTPRoute", json!({"kind": "MeshSubset", "tags": {"a": "b"}})), [""; 0]);
    let spec = json!({"to": [{"targetRef": {"kind": "Mesh"}, "rules": [with(json!({}))]}]});
    assert_eq!(read("MeshHTTPRoute", spec).errors[0].field, "spec.to[0].targetRef.kind");
}

#[test]
fn gateway_rules_and_listeners_are_refused_by_field() {
    let spec = json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": ["a.io", "A.io", "*.b.io", "*"],
        "rules": [with(json!({}))]});
    let fields: Vec<String> =
        read("MeshGatewayHTTPRoute", spec).errors.into_iter().map(|p| p.field).collect();
    assert_eq!(fields, ["spec.hostnames[1]", "spec.rules[0].default.backendRefs"]);
    let listeners = |list: Value| {
        let errors = read("MeshGateway", json!({"listeners": list})).errors;
        errors.into_iter().map(|p| p.field.replace("spec.listeners", "")).collect::<Vec<_>>()
    };
    let http =
        |name: &str, host: &str| json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": host});
    assert_eq!(listeners(json!([http("a", "a.io"), http("b", "b.io")])), [""; 0]);
    assert_eq!(listeners(json!([http("a", "a.io"), http("a", "a.io")])), ["[1].name", "[1].hostname"]);
    assert_eq!(
        listeners(json!([{"name": "a", "port": 443, "protocol": "HTTPS"}])),
        ["[0].tls.certificateRef"]
    );
    let tls = |tls: Value| listeners(json!([{"name": "a", "port": 443, "protocol": "TLS", "tls": tls}]));
    assert_eq!(tls(Value::Null), [""; 0], "the server behind it ends TLS");
    assert_eq!(tls(json!({})), ["[0].tls.certificateRef"]);
    let (one, two) = (json!({"name": "one"}), json!({"name": "two"}));
    assert_eq!(tls(json!({"certificateRefs": [one, two]})), [""; 0]);
    assert_eq!(tls(json!({"certificateRefs": []})), ["[0].tls.certificateRefs"]);
    assert_eq!(tls(json!({"certificateRefs": [one, two, one]})), ["[0].tls.certificateRefs[2]"]);
    assert_eq!(tls(json!({"certificateRef": one, "certificateRefs": [two]})), ["[0].tls.certificateRef"]);
    let wrong = tls(json!({"certificateRefs": [{}, "two"]}));
    for at in ["[0].tls.certificateRefs[0]", "[0].tls.certificateRefs[1]"] {
        assert!(wrong.iter().any(|field| field.starts_with(at)), "{at}: {wrong:?}");
    }
    let many: Vec<Value> = (0..65).map(|i| json!({"name": format!("s{i}")})).collect();
    assert_eq!(tls(json!({"certificateRefs": many})), ["[0].tls.certificateRefs"]);
    assert_eq!(listeners(json!([{"name": "a"}])), ["[0].port", "[0].protocol"]);
    assert_eq!(listeners(json!([])), [""]);
}

#[test]
fn tcp_routes_need_one_rule_with_backends() {
    let fields = |rules: Value| {
        let spec = json!({"to": [{"targetRef": {"kind": "MeshService", "name": "b"}, "rules": rules}]});
        read("MeshTCPRoute", spec).errors.into_iter().map(|p| p.field).collect::<Vec<_>>()
    };
    let good = json!({"default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}});
    assert_eq!(fields(json!([good])), [""; 0]);
    assert_eq!(fields(json!([good, good])), ["spec.to[0].rules"]);
    assert_eq!(fields(json!([{"default": {}}])), ["spec.to[0].rules[0].default.backendRefs"]);
}

fn good_rule(path: usize) -> Value {
    json!({"matches": [{"path": {"type": "Prefix", "value": format!("/r{path}")}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}})
}

/// Valid and invalid rules, and rules with ignored entries.
fn any_rule() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => (0..40usize).prop_map(good_rule),
        1 => Just(json!({"matches": [{"path": {"type": "Prefix", "value": "no-slash"}}], "default": {}})),
        1 => Just(json!({"matches": [], "colour": "red"})),
        1 => Just(json!({"matches": [{"headers": [{"name": "A", "value": "1"}, {"name": "a", "value": "2"}]}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}})),
        1 => Just(Value::Null),
        1 => Just(json!(["a", 1, 2.5, true, {"b": null}])),
    ]
}

#[derive(Clone, Debug)]
enum Edit {
    Replace(prop::sample::Index, Value),
    Insert(prop::sample::Index, Value),
    Remove(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        3 => (at(), any_rule()).prop_map(|(at, rule)| Edit::Replace(at, rule)),
        1 => (at(), any_rule()).prop_map(|(at, rule)| Edit::Insert(at, rule)),
        1 => at().prop_map(Edit::Remove),
        1 => (at(), at()).prop_map(|(a, b)| Edit::Swap(a, b)),
    ]
}

fn apply(rules: &mut Vec<Value>, edit: Edit) {
    match edit {
        Edit::Insert(at, rule) => rules.insert(at.index(rules.len() + 1), rule),
        _ if rules.is_empty() => {}
        Edit::Replace(at, rule) => {
            let at = at.index(rules.len());
            rules[at] = rule;
        }
        Edit::Remove(at) => drop(rules.remove(at.index(rules.len()))),
        Edit::Swap(a, b) => {
            let (a, b) = (a.index(rules.len()), b.index(rules.len()));
            rules.swap(a, b);
        }
    }
}

fn policy(kind: &str, rules: &[Value]) -> Value {
    let spec = match kind {
        "MeshGatewayHTTPRoute" => {
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": ["a.example.com"], "rules": rules})
        }
        _ => {
            let (first, second) = rules.split_at(rules.len() / 2);
            let to = |name: &str, rules: &[Value]| json!({"targetRef": {"kind": "MeshService", "name": name}, "rules": rules});
            json!({"targetRef": {"kind": "Mesh"}, "to": [to("a", first), to("b", second)]})
        }
    };
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_errors_of_an_update_of_a_valid_policy_are_those_of_the_new_one(
        first in prop::collection::vec((0..40usize).prop_map(good_rule), 0..20),
        edits in prop::collection::vec(edit(), 0..6),
    ) {
        for kind in ["MeshGatewayHTTPRoute", "MeshHTTPRoute"] {
            let old = policy(kind, &first);
            let mut rules = first.clone();
            edits.iter().cloned().for_each(|edit| apply(&mut rules, edit));
            let new = policy(kind, &rules);
            let expected = mesh_object(&new, &mut Interner::default()).errors;
            // A policy without rules is not valid.
            if mesh_object(&old, &mut Interner::default()).errors.is_empty() {
                prop_assert_eq!(mesh_errors(&new, Some(&old)), expected.clone());
            }
            prop_assert_eq!(mesh_errors(&new, None), expected);
        }
    }

    #[test]
    fn any_text_gives_an_object_or_a_notice(text in "[\\[\\]{}\",:a-z0-9 ]{0,40}") {
        let (object, notices) =
            crate::parse::text("zoneward.dev/v1alpha1", "MeshHTTPRoute", &text, &mut Interner::default());
        prop_assert_eq!(object, None);
        let is_map = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object());
        prop_assert!(!is_map || !notices.is_empty());
    }
}
