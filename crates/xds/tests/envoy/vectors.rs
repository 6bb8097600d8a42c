//! The L7 cases through a real Envoy: one Envoy, a port for each fixture.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use fixtures::eventually;
use serde_json::Value;
use xds::render::{Rendered, render};
use xds::resource::{ResourceSet, ResourceType};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Echo, Log, Message, request};
use crate::world::{Places, gateway_input, items, sidecar_input, snapshot};
use toolbox::ports::free_port;

fn file() -> Value {
    let path = format!("{}/../../vectors/l7-routing.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every fixture in a namespace and on a port of its own, in one set.
struct Fixtures {
    resources: Arc<ResourceSet>,
    ports: BTreeMap<String, SocketAddr>,
    log: Log,
    _backends: Vec<Echo>,
}

impl Fixtures {
    fn new(all: &Value) -> Self {
        let (mut ports, mut union, log) = (BTreeMap::new(), ResourceSet::default(), Log::default());
        let (mut backends, mut places) = (BTreeMap::<String, Echo>::new(), Places::new());
        for (name, fixture) in all["fixtures"].as_object().unwrap() {
            let at = free_port();
            ports.insert(name.clone(), at);
            let resources = items(&fixture["resources"]);
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let (client, destination) = (text(&fixture["client"]["service"]), text(&fixture["destination"]));
            let others: Vec<&str> =
                [&client, &destination].into_iter().filter_map(|name| name.as_deref()).collect();
            let world = snapshot(name, &resources, &others, &fixture["listeners"]);
            for (service, _) in world.services() {
                let service = service.key.name.to_string();
                let echo = backends.entry(service.clone()).or_insert_with(|| Echo::start(&service, &log));
                places.insert(service, vec![(echo.address, "a", 1.0)]);
            }
            let input = match (&client, &destination) {
                (Some(client), Some(destination)) => {
                    let tags = fixture["client"]["tags"].as_object().into_iter().flatten();
                    let tags = tags.map(|(key, value)| (key.as_str(), value.as_str().unwrap())).collect();
                    sidecar_input(&world, name, (client, &tags), destination, at, &places)
                }
                _ => gateway_input(&world, name, &[(8080, at)], &places),
            };
            add(&mut union, &render(input, None));
        }
        Self { resources: Arc::new(union), ports, log, _backends: backends.into_values().collect() }
    }
}

fn add(union: &mut ResourceSet, rendered: &Rendered) {
    assert_eq!(rendered.notices, []);
    for kind in ResourceType::ALL {
        rendered.resources.of(kind).values().for_each(|resource| union.put(kind, resource.clone()));
    }
}

fn send(to: SocketAddr, asked: &Value) -> Message {
    let text = |name: &str| asked[name].as_str().unwrap();
    let pairs = asked["headers"].as_object().into_iter().flatten();
    let mut headers: Vec<(String, String)> =
        pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    if asked["backend_sets_response_headers"].is_object() {
        headers.push(("x-echo".to_owned(), asked["backend_sets_response_headers"].to_string()));
    }
    request(to, text("method"), text("host"), text("path"), &headers).unwrap()
}

#[test]
fn requests_through_a_real_envoy_go_where_the_cases_say() {
    let all = file();
    let fixtures = Fixtures::new(&all);
    let control = Control::start(&fixtures.resources);
    let proxy = envoy(&bootstrap(control.address));
    fixtures.ports.values().for_each(|at| proxy.wait_for(*at));
    let cases: Vec<Value> =
        items(&all["cases"]).into_iter().filter(|case| case["kind"] == "request").collect();
    let mut failures = Vec::new();
    for case in &cases {
        let to = fixtures.ports[case["fixture"].as_str().unwrap()];
        let expect = &case["expect"];
        if expect["distribution"].is_object() {
            failures.extend(distribution(case, to));
            continue;
        }
        fixtures.log.lock().unwrap().clear();
        let answer = send(to, &case["request"]);
        failures.extend(changed_names(expect, &answer).into_iter().map(|d| format!("{}: {d}", case["id"])));
        for mirror in items(&expect["mirrors"]) {
            let name = mirror.as_str().unwrap().to_owned();
            let what = format!("{}: a copy for {name}", case["id"]);
            eventually(&what, || fixtures.log.lock().unwrap().contains_key(&name));
        }
    }
    assert_eq!(failures, [""; 0], "of {} cases; Envoy says: {}", cases.len(), proxy.log());
    assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
    assert!(cases.len() >= 50, "{} cases", cases.len());
}

fn distribution(case: &Value, to: SocketAddr) -> Vec<String> {
    let expect = &case["expect"];
    let requests = expect["requests"].as_u64().unwrap();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..requests {
        let answer = send(to, &case["request"]);
        *seen.entry(answer.backend().unwrap_or(format!("status:{}", answer.status()))).or_default() += 1;
    }
    let tolerance = expect["tolerance"].as_f64().unwrap();
    let off = |(name, share): (&String, &Value)| {
        let got = seen.get(name).copied().unwrap_or(0) as f64 / requests as f64;
        let wanted = share.as_f64().unwrap();
        ((got - wanted).abs() > tolerance).then(|| format!("{}: {name} has {got}, not {wanted}", case["id"]))
    };
    expect["distribution"].as_object().unwrap().iter().filter_map(off).collect()
}

fn changed_names(expect: &Value, answer: &Message) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, got: Value, wanted: &Value| {
        if !wanted.is_null() && got != *wanted {
            found.push(format!("{what} is {got}, not {wanted}"));
        }
    };
    check("status", answer.status().into(), &expect["status"]);
    // HEAD has no body to say it in.
    check("backend", answer.backend().map(Value::from).unwrap_or_default(), &expect["backend"]);
    let echoed = answer.json();
    check("path", echoed["path"].clone(), &expect["upstream"]["path"]);
    let lines = |name: &str| {
        let name = name.to_ascii_lowercase();
        let all = items(&echoed["headers"]);
        let values: Vec<String> = all
            .iter()
            .filter(|pair| pair[0] == *name)
            .map(|pair| pair[1].as_str().unwrap().to_owned())
            .collect();
        if values.is_empty() { Value::Null } else { values.join(",").into() }
    };
    for (name, wanted) in expect["upstream"]["headers"].as_object().into_iter().flatten() {
        check(name, lines(name), wanted);
    }
    for name in items(&expect["upstream"]["absent_headers"]) {
        check(name.as_str().unwrap(), lines(name.as_str().unwrap()).is_null().into(), &true.into());
    }
    for (name, wanted) in expect["response"]["headers"].as_object().into_iter().flatten() {
        check(name, answer.joined(name).map(Value::from).unwrap_or_default(), wanted);
    }
    for name in items(&expect["response"]["absent_headers"]) {
        check(name.as_str().unwrap(), answer.joined(name.as_str().unwrap()).is_none().into(), &true.into());
    }
    check("body", String::from_utf8_lossy(&answer.body).into(), &expect["body"]);
    let wanted = &expect["location"];
    if wanted.is_object() {
        let location = answer.header("location").unwrap_or_default();
        let [scheme, host, path] = ["scheme", "host", "path"].map(|part| wanted[part].as_str().unwrap());
        let port = wanted["port"].as_u64().unwrap();
        let with_port = format!("{scheme}://{host}:{port}{path}");
        let is_default = matches!((scheme, port), ("http", 80) | ("https", 443));
        if location != with_port && !(is_default && location == format!("{scheme}://{host}{path}")) {
            found.push(format!("location is {location}, not {with_port}"));
        }
    }
    found
}
