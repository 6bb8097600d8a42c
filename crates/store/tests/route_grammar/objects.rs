//! Random routes: valid ones with every field and spelling, crossed with each other, grown to and beyond every bound, and
//! broken.

use model::random::Random;
use serde_json::{Map, Value, json};

/// One of some valid objects, with a few changes.
pub fn changed(valid: &[Value], random: &mut Random) -> Value {
    let mut object = valid[random.below(valid.len())].clone();
    for _ in 0..random.below(4) {
        let donor = &valid[random.below(valid.len())]["spec"];
        change(&mut object["spec"], donor, random);
    }
    object
}

/// Objects of every kind that the parser of routes knows.
pub fn valid() -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"namespace": "default", "name": name},
            "spec": spec})
    };
    let to_backend = |rules: Value| json!({"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]});
    let gateway = json!({"kind": "MeshGateway", "name": "edge", "tags": {"port": "public"}});
    let tcp = json!([{"default": {"backendRefs": backends()}}]);
    vec![
        object("MeshHTTPRoute", "seed-merge", to_backend(seed_merge())),
        object("MeshHTTPRoute", "rules", to_backend(rules())),
        object(
            "MeshHTTPRoute",
            "other-namespace",
            json!({
            "targetRef": {"kind": "MeshServiceSubset", "name": "frontend", "tags": {"version": "v1"}},
            "to": [{"targetRef": {"kind": "MeshService", "name": "backend", "namespace": "other"},
                "rules": [{"matches": [{}], "default": {"backendRefs": backends()}}]}]}),
        ),
        object(
            "MeshGatewayHTTPRoute",
            "rules",
            json!({"targetRef": gateway, "hostnames": ["a.io", "*.a.io", "*"],
            "rules": rules()}),
        ),
        object(
            "MeshGatewayHTTPRoute",
            "override",
            json!({"targetRef": gateway, "rules": [
            {"matches": [{"path": {"prefix": "/"}}], "default": {}, "override": {"backendRefs": backends()}}]}),
        ),
        object(
            "MeshTCPRoute",
            "mesh",
            json!({"targetRef": {"kind": "MeshSubset", "tags": {"a": "b"}}, "to": [
            {"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": tcp}]}),
        ),
        object(
            "MeshTCPRoute",
            "gateway",
            json!({"targetRef": gateway, "to": [{"targetRef": {"kind": "Mesh"}, "rules": tcp}]}),
        ),
        object("MeshGateway", "edge", json!({"listeners": listeners()})),
        object("MeshRouteFilter", "subset", json!({"subset": {"tags": {"version": "v2"}}})),
        object(
            "MeshRouteFilter",
            "response",
            json!({"directResponse": {"status": 418, "body": {"filename": "/etc/motd"}}}),
        ),
        object(
            "MeshLoadBalancing",
            "lb",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "to": [
            {"targetRef": {"kind": "Mesh"}, "default": load_balancing()}]}),
        ),
    ]
}

/// The example of seed 004 for merged filters, as it is written there: a match without a list, and short names.
pub fn seed_merge() -> Value {
    json!([
        {"matches": [{"path": {"prefix": "/v1"}}], "merge": {"filters": [
            {"responseHeader": {"add": [{"name": "X-Some-Header", "value": "something"}]}},
            {"requestHeader": {"add": [{"name": "X-Client", "value": null}]}}]}},
        {"matches": {"path": {"prefix": "/v2"}}, "default": {"backendRefs": [
            {"weight": 100, "kind": "MeshServiceSubset", "name": "backend", "tags": {"version": "v2"}}]}},
    ])
}

fn backends() -> Value {
    json!([{"kind": "MeshServiceSubset", "name": "backend", "tags": {"version": "v1"}, "port": 80, "weight": 90,
            "filters": []},
        {"kind": "MeshService", "name": "other", "weight": 0}])
}

fn rules() -> Value {
    let headers =
        json!({"set": [{"name": "a", "value": "1"}], "add": [{"name": "b", "value": ""}], "remove": ["c"]});
    let mirror =
        json!({"backendRef": {"kind": "MeshService", "name": "other", "port": 80}, "percentage": "0.5"});
    let with_filters = json!([{"kind": "MeshService", "name": "backend", "filters": [
        {"requestHeader": headers}, {"type": "ResponseHeaderModifier", "responseHeaderModifier": headers},
        {"urlRewrite": {"path": {"replacePrefixMatch": "/x"}}}]}]);
    json!([
        {"matches": [{"path": {"type": "Prefix", "value": "/v1"}, "method": "GET",
            "headers": [{"type": "RegularExpression", "name": "x", "value": "v[0-9]+"}, {"type": "Absent", "name": "y"},
                {"name": "z", "value": "1"}, {"type": "Present", "name": "present"}],
            "queryParams": [{"type": "Exact", "name": "q", "value": "1"}, {"name": "p", "value": ""}]}],
         "default": {"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": headers},
            {"type": "ResponseHeaderModifier", "responseHeader": headers},
            {"urlRewrite": {"hostname": "a.io", "path": {"replacePrefixMatch": "/v2"}}}, {"requestMirror": mirror}],
            "backendRefs": with_filters}},
        {"matches": [{"path": {"regex": "/[a-z]+"}}, {"path": {"exact": "/e"}}, {"path": {"type": "Exact", "value": "/f"}}],
         "default": {"filters": [{"requestRedirect": {"scheme": "https", "hostname": "b.io", "port": 8443,
            "statusCode": 301, "path": {"replaceFullPath": "/x"}}}]},
         "merge": {"filters": [{"requestMirror": mirror}, {"requestHeader": headers}]}},
        {"matches": {"path": {"prefix": "/d"}},
         "default": {"filters": [{"directResponse": {"status": 418, "body": {"inlineBytes": "aGVsbG8="}}}]}},
        {"matches": [{}], "override": {"filters": [{"directResponse": {"status": 200, "body": {"environmentVariable": "A"}}}],
            "backendRefs": []}},
    ])
}

fn listeners() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.a.io", "tags": {"t": "1"}},
        {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRef": {"name": "cert"}}},
        {"name": "two", "port": 444, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "rsa"}, {"name": "ec"}]}},
        {"name": "tls", "port": 445, "protocol": "TLS"}, {"name": "raw", "port": 90, "protocol": "TCP"}])
}

fn load_balancing() -> Value {
    json!({
        "localities": [{"from": ["a"], "priorities": [{"zones": [{"type": "Same", "weight": 3}, {"name": "b"}]}]},
            {"priorities": [{"zones": [{"type": "Other"}]}]}],
        "algorithm": {"type": "LeastRequest"},
        "slowStart": {"window": "30s", "minWeightPercent": 10, "aggression": "1.5"},
        "outlierDetection": {"consecutiveFailures": 3, "baseEjectionTime": "10s", "maxEjectionPercent": 10},
        "panicThreshold": 40, "circuitBreakers": {"maxRequests": 9, "maxRetries": 0},
        "retries": {"attempts": 2, "codes": [503], "backoff": "25ms", "budget": {"percent": 20, "minConcurrent": 3}},
        "timeouts": {"connect": "1s", "request": "5s", "backendRequest": "1.5s"},
        "rateLimit": {"requests": 10, "interval": "1m"},
        "faults": {"delay": {"duration": "5ms", "percentage": 5}, "abort": {"status": 503, "percentage": "0.5"}},
    })
}

/// Changes one place, chosen evenly from all of them.
fn change(spec: &mut Value, donor: &Value, random: &mut Random) {
    let mut pointers = Vec::new();
    pointers_below(spec, String::new(), &mut pointers);
    let pointer = &pointers[random.below(pointers.len())];
    let key = pointer.rsplit('/').next().unwrap_or_default();
    let found = found(donor, key);
    let place = spec.pointer_mut(pointer).expect("the place is there");
    match random.below(12) {
        0 => *place = Value::Null,
        1 | 2 if !found.is_empty() => *place = found[random.below(found.len())].clone(),
        3 => *place = other_value(random),
        4 => wrap_or_unwrap(place),
        _ => change_inside(place, random),
    }
}

fn change_inside(place: &mut Value, random: &mut Random) {
    match place {
        Value::Object(map) if !map.is_empty() => change_members(map, random),
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            match random.below(3) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => grow(items, BOUNDS[random.below(BOUNDS.len())]),
            }
        }
        Value::String(_) => {
            *place = TEXTS[random.below(TEXTS.len())].repeat(REPEATS[random.below(REPEATS.len())]).into()
        }
        _ => *place = other_value(random),
    }
}

fn change_members(map: &mut Map<String, Value>, random: &mut Random) {
    const SPELLINGS: [(&str, &str); 6] = [
        ("requestHeaderModifier", "requestHeader"),
        ("responseHeaderModifier", "responseHeader"),
        ("value", "prefix"),
        ("default", "override"),
        ("default", "merge"),
        ("certificateRef", "certificateRefs"),
    ];
    let key = map.keys().nth(random.below(map.len())).cloned().unwrap_or_default();
    match random.below(5) {
        0 => drop(map.remove(&key)),
        1 => drop(map.insert("misspelled".to_owned(), json!("x"))),
        // With its new name, as well or instead.
        2 | 3 => {
            let spelled = SPELLINGS.iter().find_map(|(long, short)| match key.as_str() {
                key if key == *long => Some(*short),
                key if key == *short => Some(*long),
                _ => None,
            });
            let value = if random.below(2) == 0 { map.remove(&key) } else { map.get(&key).cloned() };
            map.insert(spelled.unwrap_or("name").to_owned(), value.unwrap_or_default());
        }
        _ => {
            for i in 0..[31, 32, 33][random.below(3)] {
                map.insert(format!("k{i}"), json!("v"));
            }
        }
    }
}

/// Copies that differ in every text, so that names are unique.
fn grow(items: &mut Vec<Value>, count: usize) {
    let first = items[0].clone();
    for i in items.len()..count {
        let mut item = first.clone();
        match &mut item {
            Value::Object(map) => {
                for name in ["name", "port"] {
                    match map.get_mut(name) {
                        Some(Value::String(text)) => *text += &i.to_string(),
                        Some(Value::Number(port)) if name == "port" => *port = (1_000 + i).into(),
                        _ => {}
                    }
                }
            }
            Value::String(text) => text.insert_str(0, &format!("x{i}")),
            _ => {}
        }
        items.push(item);
    }
}

/// A list of one item for a value, and the first item for a list.
fn wrap_or_unwrap(place: &mut Value) {
    *place = match place.take() {
        Value::Array(mut items) if !items.is_empty() => items.remove(0),
        value => json!([value]),
    };
}

fn pointers_below(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| !name.contains(['/', '~']))
            .for_each(|(name, value)| pointers_below(value, format!("{pointer}/{name}"), pointers)),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, value)| pointers_below(value, format!("{pointer}/{i}"), pointers));
        }
        _ => {}
    }
    pointers.push(pointer);
}

/// The values of a member anywhere in an object.
fn found<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    let inner: Vec<(&str, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.as_str(), value)).collect(),
        Value::Array(items) => items.iter().map(|value| ("", value)).collect(),
        _ => Vec::new(),
    };
    let below = inner.iter().flat_map(|(_, value)| found(value, key));
    inner
        .iter()
        .filter(|(name, _)| *name == key && !key.is_empty())
        .map(|(_, value)| *value)
        .chain(below)
        .collect()
}

/// Below, at and above the bounds of lists.
const BOUNDS: [usize; 14] = [2, 8, 9, 16, 17, 32, 33, 64, 65, 256, 257, 1024, 1025, 3];
/// Of texts.
const REPEATS: [usize; 14] = [1, 1, 1, 1, 1, 1, 1, 32, 63, 64, 253, 254, 257, 4097];
const TEXTS: &[&str] = &[
    "",
    "/",
    "/a",
    "/a/",
    "//",
    "/a?b",
    "/a b",
    "a",
    "A",
    "*",
    "*.a.io",
    "a.io",
    "10.0.0.1",
    "a_b",
    "é",
    "\n",
    "(",
    "[a-z]+",
    "Mesh",
    "MeshSubset",
    "MeshService",
    "MeshServiceSubset",
    "MeshGateway",
    "Prefix",
    "Exact",
    "RegularExpression",
    "Present",
    "Absent",
    "GET",
    "get",
    "HTTP",
    "HTTPS",
    "TCP",
    "TLS",
    "URLRewrite",
    "RequestRedirect",
    "DirectResponse",
    "RingHash",
    "SourceIP",
    "http",
    "https",
    "0",
    "0.5",
    "1e1",
    "101",
    "1s",
    "1500us",
    "1.s",
    "5",
    "aGVsbG8=",
    "aGVsbG9=",
    "%",
];

fn other_value(random: &mut Random) -> Value {
    match random.below(20) {
        0 => Value::Null,
        1 => json!([]),
        2 => json!({}),
        3 => json!(true),
        4 => json!(-1),
        5 => json!(0),
        6 => json!(1),
        7 => json!(0.5),
        8 => json!(5.0),
        9 => json!(100),
        10 => json!(101),
        11 => json!(204),
        12 => json!(301),
        13 => json!(600),
        14 => json!(65_535),
        15 => json!(65_536),
        16 => json!(u32::MAX),
        17 => json!(u64::from(u32::MAX) + 1),
        18 => json!(u64::MAX),
        _ => json!("text"),
    }
}
