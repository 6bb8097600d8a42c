//! The conformance cases of the Gateway API through the library: requests by the decision that `trace http` shows, and
//! statuses by the function that the controller calls.

mod statuses;

use std::collections::BTreeMap;
use std::time::Duration;

use model::gateway_api::{CONTROLLER, RouteKind};
use model::route::{BackendTarget, EdgeSettings, RequestTimeouts, RouteRetry};
use model::{GoDuration, Interner, Labels, Name, ObjectKey, Protocol, ServiceKey, Snapshot, parse};
use plan::gateway_api::{
    ArrivingRequest, AssignedAddresses, ObjectStatus, gateway_table, trace_at_gateway, trace_in_mesh,
};
use plan::routes::{MeshClient, RequestTrace, TracedRequest, outbound};
use serde_json::{Value, json};
use statuses::{check_object, items, key, text};

const USABLE: &str = "192.0.2.1";
const UNUSABLE: &str = "192.0.2.99";

fn cases() -> Vec<Value> {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let text =
        text.replace("\"UNUSABLE\"", &format!("{UNUSABLE:?}")).replace("\"USABLE\"", &format!("{USABLE:?}"));
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    items(&file["cases"])
}

/// The objects of a case, as an API server has them.
struct World {
    snapshot: Snapshot,
    interner: Interner,
    /// Generation and creation time by kind and name.
    stored: BTreeMap<(String, ObjectKey), (i64, usize)>,
}

impl World {
    fn new(case: &Value) -> Self {
        let mut world =
            Self { snapshot: Snapshot::default(), interner: Interner::default(), stored: BTreeMap::new() };
        world.put(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "conformance"}, "spec": {"controllerName": CONTROLLER}}));
        for certificate in items(&case["certificates"]) {
            world.put(certificate_object(&certificate));
        }
        for object in items(&case["objects"]) {
            world.put(object);
        }
        world
    }

    fn put(&mut self, mut object: Value) {
        let about = parse::object_ref(&object);
        let id = (about.kind.to_string(), ObjectKey::new(&about.namespace, &about.name));
        let count = self.stored.len();
        let (generation, created) = self.stored.entry(id).or_insert((0, count));
        *generation += 1;
        object["metadata"]["generation"] = (*generation).into();
        object["metadata"]["creationTimestamp"] =
            format!("2026-11-01T00:{:02}:{:02}Z", *created / 60, *created % 60).into();
        let (parsed, notices) = parse::object(&object, &mut self.interner);
        assert_eq!(notices, [], "{object}");
        self.snapshot.apply(parsed.unwrap_or_else(|| panic!("a known kind: {object}")));
    }

    fn delete(&mut self, kind: &str, name: &str) {
        match kind {
            "ReferenceGrant" => self.snapshot.remove_reference_grant(&key(name)),
            "Gateway" => self.snapshot.remove_gateway(&key(name)),
            kind => self
                .snapshot
                .remove_route(RouteKind::parse(kind).unwrap_or_else(|| panic!("{kind}")), &key(name)),
        }
    }

    fn generation(&self, kind: &str, name: &str) -> i64 {
        self.stored[&(kind.to_owned(), key(name))].0
    }
}

fn certificate_object(certificate: &Value) -> Value {
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n");
    let metadata = json!({"name": certificate["name"], "namespace": certificate["namespace"]});
    match text(&certificate["kind"]) {
        "Secret" => {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": certificate["type"],
            "stringData": {"tls.crt": pem("CERTIFICATE"), "tls.key": pem("PRIVATE KEY")}})
        }
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {text(&certificate["key"]): pem("CERTIFICATE")}}),
    }
}

fn traced_request(request: &Value) -> TracedRequest {
    let is_grpc = request["protocol"] == "grpc";
    let or = |name: &str, otherwise: &str| request[name].as_str().unwrap_or(otherwise).to_owned();
    let mut headers = headers_of(&request["headers"]);
    if is_grpc {
        headers.push(("content-type".into(), "application/grpc".into()));
    }
    let path = match request["service"].as_str() {
        Some(service) => format!("/{service}/{}", text(&request["method"])),
        None => or("path", if is_grpc { "/proto.EchoTestService/Echo" } else { "/" }),
    };
    TracedRequest {
        method: if is_grpc { "POST".to_owned() } else { or("method", "GET") },
        host: or("host", "192.0.2.1"),
        path,
        headers,
        client: None,
        response_headers: headers_of(&request["backendSets"]),
    }
}

fn headers_of(value: &Value) -> Vec<(Name, Name)> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.as_str().into(), text(value).into())).collect()
}

/// Sends a request; `check` gets what the decision says.
fn send<T>(world: &World, request: &Value, check: impl FnOnce(&RequestTrace<'_>) -> T) -> T {
    let incoming = traced_request(request);
    let (edge, is_grpc) = (EdgeSettings::default(), request["protocol"] == "grpc");
    let snapshot = &world.snapshot;
    if let Some(gateway) = request["gateway"].as_str() {
        let gateway = snapshot.gateway(&key(gateway)).expect("the Gateway");
        let (table, _) = gateway_table(snapshot, gateway);
        let at = ArrivingRequest {
            port: u16::try_from(request["port"].as_u64().expect("a port")).expect("a port"),
            is_udp: request["scheme"] == "udp",
            sni: request["sni"].as_str().map(str::to_owned),
            is_grpc,
        };
        return check(&trace_at_gateway(&table, &at, &incoming, &edge));
    }
    let from = key(text(&request["from"]));
    let (to, port) = text(&request["to"]).split_once(':').unwrap_or((text(&request["to"]), "80"));
    let to = match to.split_once('/') {
        Some((namespace, name)) => ServiceKey::new(&namespace.into(), &name.into()),
        None => ServiceKey::new(&from.namespace, &to.into()),
    };
    let client =
        MeshClient::of_service(snapshot, &ServiceKey::new(&from.namespace, &from.name), &Labels::EMPTY);
    let service = snapshot.service(&to).unwrap_or_else(|| panic!("{to}"));
    let port = service.ports.iter().find(|own| own.port.to_string() == port && own.protocol == Protocol::Tcp);
    let (outbound, _) = outbound(snapshot, &client, service, port.expect("the port")).expect("TCP");
    let incoming =
        TracedRequest { host: request["host"].as_str().unwrap_or(&to.name).to_owned(), ..incoming };
    check(&trace_in_mesh(&outbound.routing, &incoming, &edge, is_grpc))
}

/// The status that a client gets, with timeouts and retries as a proxy obeys them, by virtual time.
fn final_status(traced: &RequestTrace<'_>, request: &Value) -> u64 {
    if let Some(status) = traced.outcome.status {
        return status.into();
    }
    let answer = if request["protocol"] == "websocket" { 101 } else { 200 };
    let Some(hit) = &traced.hit else { return answer };
    let RequestTimeouts { request: limit, backend_request } = hit.rule.action.timeouts;
    let RouteRetry { codes, attempts, .. } = hit.rule.action.retry.clone().unwrap_or_default();
    let duration = |value: &str| value.parse::<GoDuration>().expect("a duration").0;
    let query = text(request.get("path").unwrap_or(&json!("/")))
        .split_once("delay=")
        .map(|(_, delay)| duration(delay));
    let behaves = &request["backendBehaves"];
    let failures = behaves["failures"].as_u64().unwrap_or(0);
    let slow = behaves["delayPerFailure"].as_str().map(duration).unwrap_or_default();
    let mut elapsed = Duration::ZERO;
    for attempt in 0..=u64::from(attempts.unwrap_or(0)) {
        let fails = attempt < failures;
        let wanted = if fails { slow } else { query.unwrap_or_default() };
        let is_late = backend_request.is_some_and(|limit| wanted > limit);
        elapsed += if is_late { backend_request.unwrap_or_default() } else { wanted };
        if limit.is_some_and(|limit| elapsed >= limit && !elapsed.is_zero()) {
            return 504;
        }
        let status = match (is_late, fails) {
            (true, _) => 504,
            (false, true) => behaves["failWith"].as_u64().expect("a status"),
            (false, false) => return answer,
        };
        let is_retried = is_late || codes.iter().any(|code| u64::from(*code) == status);
        if !is_retried || attempt == u64::from(attempts.unwrap_or(0)) {
            return status;
        }
    }
    answer
}

/// What differs from the expectation of a request.
fn check_request(case: &Value, world: &World, request: &Value) -> Result<(), String> {
    let expect = &request["expect"];
    send(world, request, |traced| {
        let outcome = &traced.outcome;
        let fail = |what: &str| Err(format!("{what}: {outcome:?}"));
        if expect["failure"].is_string() {
            return if outcome.is_closed { Ok(()) } else { fail("not closed") };
        }
        if outcome.is_closed {
            return fail("closed");
        }
        let status = final_status(traced, request);
        let wanted: Vec<u64> = match &expect["status"] {
            Value::Array(all) => all.iter().filter_map(Value::as_u64).collect(),
            one => one.as_u64().into_iter().collect(),
        };
        if !wanted.is_empty() && !wanted.contains(&status) {
            return fail(&format!("status {status}"));
        }
        if let Some(grpc) = expect["grpcStatus"].as_str() {
            let code = outcome.response_headers.iter().find(|(name, _)| name == "grpc-status");
            let code = match code.map(|(_, value)| value.as_str()) {
                None => "OK",
                Some("12") => "Unimplemented",
                Some("14") => "Unavailable",
                Some(other) => other,
            };
            if code != grpc {
                return fail(code);
            }
        }
        if let Some(workload) = expect["backend"].as_str() {
            let default =
                if case["kind"] == "mesh" { "gateway-conformance-mesh" } else { "gateway-conformance-infra" };
            let namespace = expect["namespace"].as_str().unwrap_or(default);
            if !leads_to(case, world, traced, namespace, workload) {
                return fail(&format!("not to {workload}"));
            }
        }
        check_seen(request, traced)?;
        check_redirect(request, traced)?;
        for (name, value) in expect["responseHeaders"].as_object().into_iter().flatten() {
            let found = outcome.response_headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
            if found.map(|(_, value)| value.as_str()) != value.as_str() {
                return fail(name);
            }
        }
        for name in items(&expect["responseAbsentHeaders"]) {
            if outcome.response_headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(text(&name))) {
                return fail(text(&name));
            }
        }
        Ok(())
    })
}

/// Whether all requests go to Services that select the workload.
fn leads_to(case: &Value, world: &World, traced: &RequestTrace<'_>, namespace: &str, workload: &str) -> bool {
    let of = |value: &Value| value["name"] == workload && value["namespace"] == namespace;
    let workloads = items(&case["workloads"]);
    let labels = workloads.iter().find(|value| of(value)).expect("the workload")["labels"].clone();
    let labels: Labels =
        labels.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), text(v))).collect();
    let is_backend = |to: &BackendTarget| match to {
        BackendTarget::Backend(id) => {
            let service = world.snapshot.service(&id.service).expect("resolved");
            // Services without a selector have hand-made slices with the pods of the workload.
            id.service.namespace == namespace
                && service.selector.as_ref().is_none_or(|selector| selector.selects(&labels))
        }
        BackendTarget::Error(_) => false,
    };
    !traced.outcome.backends.is_empty()
        && traced.outcome.backends.iter().all(|backend| is_backend(&backend.to))
}

fn check_seen(request: &Value, traced: &RequestTrace<'_>) -> Result<(), String> {
    let (seen, outcome) = (&request["expect"]["seen"], &traced.outcome);
    if !seen.is_object() {
        return Ok(());
    }
    for (field, own) in [("path", &outcome.path), ("host", &outcome.host)] {
        if seen[field].as_str().is_some_and(|wanted| wanted != own) {
            return Err(format!("{field} {own:?}"));
        }
    }
    let joined = |name: &str| {
        let lines = outcome.headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
    };
    for (name, value) in seen["headers"].as_object().into_iter().flatten() {
        if joined(name) != text(value) {
            return Err(format!("{name}: {:?}", joined(name)));
        }
    }
    for name in items(&seen["absentHeaders"]) {
        if outcome.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(text(&name))) {
            return Err(format!("{name} is there"));
        }
    }
    Ok(())
}

fn check_redirect(request: &Value, traced: &RequestTrace<'_>) -> Result<(), String> {
    let redirect = &request["expect"]["redirect"];
    if !redirect.is_object() {
        return Ok(());
    }
    let location = traced.outcome.response_headers.iter().find(|(name, _)| name == "location");
    let location = location.map(|(_, value)| value.to_string()).unwrap_or_default();
    let (scheme, rest) = location.split_once("://").unwrap_or(("", &location));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    let own_scheme = request["scheme"].as_str().unwrap_or("http");
    let wanted = (redirect["scheme"].as_str().unwrap_or(own_scheme), redirect["path"].as_str());
    let own_path = text(request.get("path").unwrap_or(&json!("/"))).to_owned();
    let is_host = redirect["host"].as_str().is_none_or(|wanted| wanted == host);
    let is_port = match &redirect["port"] {
        Value::Null => port.is_none(),
        wanted => port == Some(wanted.to_string().trim_matches('"')),
    };
    if scheme == wanted.0 && path == wanted.1.unwrap_or(&own_path) && is_host && is_port {
        return Ok(());
    }
    Err(format!("location {location}, not {redirect}"))
}

fn check_status(world: &World, wanted: &Value) -> Result<(), String> {
    let addresses = AssignedAddresses::Any(vec![USABLE.parse().expect("an address")]);
    let unbound = plan::gateway_api::UnboundPorts::new();
    let all = plan::gateway_api::statuses(&world.snapshot, CONTROLLER, &addresses, &unbound);
    let (kind, name) = (text(&wanted["kind"]), text(&wanted["name"]));
    let own = all.into_iter().find(|own| own.kind == kind && own.key == key(name));
    let status = own.map(|ObjectStatus { status, .. }| status).unwrap_or_default();
    let generation = world.generation(kind, name);
    check_object(&status, wanted, generation)
}

/// Runs the steps of a case; `check` sees each step with its world.
fn walk(case: &Value, mut check: impl FnMut(&World, &Value)) {
    let mut world = World::new(case);
    check(&world, case);
    for step in items(&case["steps"]) {
        for object in [&step["create"], &step["replace"]] {
            if object.is_object() {
                world.put(object.clone());
            }
        }
        if step["delete"].is_object() {
            world.delete(text(&step["delete"]["kind"]), text(&step["delete"]["name"]));
        }
        check(&world, &step);
    }
}

#[test]
fn requests_of_the_conformance_cases_go_where_they_should() {
    let (mut count, mut failures) = (0, Vec::new());
    for case in cases() {
        walk(&case, |world, step| {
            for request in items(&step["requests"]) {
                count += 1;
                if let Err(why) = check_request(&case, world, &request) {
                    failures.push(format!("{}: {request}: {why}", case["id"]));
                }
            }
        });
    }
    assert!(failures.is_empty(), "{} of {count} requests:\n{}", failures.len(), failures.join("\n\n"));
    assert_eq!(count, 235);
}

#[test]
fn statuses_of_the_conformance_cases_are_as_they_should() {
    let (mut count, mut failures) = (0, Vec::new());
    for case in cases() {
        walk(&case, |world, step| {
            for status in items(&step["statuses"]) {
                count += 1;
                if let Err(why) = check_status(world, &status) {
                    failures.push(format!("{}: {status}: {why}", case["id"]));
                }
            }
        });
    }
    assert!(failures.is_empty(), "{} of {count} statuses:\n{}", failures.len(), failures.join("\n\n"));
    assert_eq!(count, 153);
}

#[test]
fn supported_features_are_sorted() {
    assert!(plan::gateway_api::SUPPORTED_FEATURES.is_sorted());
}
