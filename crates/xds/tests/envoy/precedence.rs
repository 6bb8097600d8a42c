//! What a real Envoy does with patterns, with a bare `/` that is rewritten, with policies of other namespaces, and which
//! text its errors have.

use std::net::SocketAddr;
use std::sync::Arc;

use model::route::RouteTable;
use model::{Labels, Snapshot};
use plan::routes::{MeshClient, outbound};
use serde_json::{Value, json};
use xds::render::{EnvoyListeners, RenderInput, render};
use xds::resource::{ResourceSet, ResourceType};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Echo, Log, Message, request};
use crate::load_balancing::embedded;
use crate::world::{Places, gateway_input, key, sidecar_input, snapshot, table};
use toolbox::ports::free_port;

const BACKENDS: [&str; 2] = ["one", "two"];

struct Running {
    _echoes: Vec<Echo>,
    _control: Control,
    _envoy: crate::process::Envoy,
}

fn places(log: &Log) -> (Vec<Echo>, Places) {
    let echoes: Vec<Echo> = BACKENDS.iter().map(|name| Echo::start(name, log)).collect();
    let place = |(name, echo): (&&str, &Echo)| ((*name).to_owned(), vec![(echo.address, "a", 1.0)]);
    let places = BACKENDS.iter().zip(&echoes).map(place).collect();
    (echoes, places)
}

fn run(inputs: Vec<RenderInput>, at: &[SocketAddr], echoes: Vec<Echo>) -> Running {
    let mut union = ResourceSet::default();
    for input in inputs {
        let rendered = render(input, None);
        assert_eq!(rendered.notices, []);
        for kind in ResourceType::ALL {
            rendered.resources.of(kind).values().for_each(|resource| union.put(kind, resource.clone()));
        }
    }
    let control = Control::start(&Arc::new(union));
    let proxy = envoy(&bootstrap(control.address));
    at.iter().for_each(|at| proxy.wait_for(*at));
    assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
    Running { _echoes: echoes, _control: control, _envoy: proxy }
}

fn to_one(rules: Value) -> Value {
    json!({"type": "MeshHTTPRoute", "name": "p", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "one"}, "rules": rules}]}})
}

fn get(at: SocketAddr, path: &str) -> Message {
    request(at, "GET", "svc.test", path, &[]).unwrap()
}

fn text(answer: &Message) -> (u16, String) {
    (answer.status(), String::from_utf8_lossy(&answer.body).into_owned())
}

#[test]
fn envoy_asks_patterns_before_the_implied_catch_all_and_says_why_it_refuses() {
    let log = Log::default();
    let (echoes, places) = places(&log);
    let [patterns, roots, many, edge] = [free_port(), free_port(), free_port(), free_port()];
    let others = [&BACKENDS[..], &["client"]].concat();
    let sidecar = |namespace: &str, rules: Value, at: SocketAddr| {
        let world = snapshot(namespace, &[to_one(rules)], &others, &json!(null));
        sidecar_input(&world, namespace, ("client", &Labels::EMPTY), "one", at, &places)
    };
    let two = json!([{"kind": "MeshService", "name": "two"}]);
    let pattern = json!({"matches": [{"path": {"type": "RegularExpression", "value": "/v[0-9]+/.*"}}],
        "default": {"backendRefs": two}});
    let root = json!({"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {
        "filters": [{"type": "URLRewrite", "urlRewrite": {"path": {"replacePrefixMatch": "/root"}}}]}});
    let lost = json!({"matches": [{"path": {"type": "Prefix", "value": "/lost"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "missing"}]}});
    // Long lists become a tree.
    let mut long: Vec<Value> = (0..150)
        .map(|i| json!({"matches": [{"path": {"type": "Prefix", "value": format!("/p{i}")}}]}))
        .collect();
    long.push(pattern.clone());
    let gateway = json!({"type": "MeshGatewayHTTPRoute", "name": "g", "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/here"}}], "default": {"backendRefs": two}}]}});
    let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
    let world = snapshot("edge", &[gateway], &BACKENDS, &listeners);
    let inputs = vec![
        sidecar("patterns", json!([pattern, lost]), patterns),
        sidecar("roots", json!([root]), roots),
        sidecar("many", long.into(), many),
        gateway_input(&world, "edge", &[(8080, edge)], &places),
    ];
    let _running = run(inputs, &[patterns, roots, many, edge], echoes);
    for at in [patterns, many] {
        assert_eq!(get(at, "/v7/items").backend().as_deref(), Some("two"));
        assert_eq!(get(at, "/other").backend().as_deref(), Some("one"));
    }
    for (path, wanted) in [("/", "/root"), ("/x", "/root/x"), ("/?q=1", "/root?q=1"), ("/x/", "/root/x/")] {
        assert_eq!(get(roots, path).json()["path"], wanted, "{path}");
    }
    let unresolved = (500, "a backend of the route cannot be resolved".to_owned());
    assert_eq!(text(&get(patterns, "/lost")), unresolved);
    assert_eq!(text(&get(edge, "/nowhere")), (404, "no route for this host and path".to_owned()));
    assert_eq!(get(edge, "/here").backend().as_deref(), Some("two"));
}

fn objects(values: &[Value]) -> Snapshot {
    fixtures::snapshot(values)
}

#[test]
fn envoys_of_every_namespace_obey_the_owner_of_a_service_and_no_third_namespace() {
    let log = Log::default();
    let (echoes, places) = places(&log);
    let service = |namespace: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
    };
    let policy = |namespace: &str, path: &str| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
            "metadata": {"namespace": namespace, "name": "p"}, "spec": {"targetRef": {"kind": "Mesh"}, "to": [{
                "targetRef": {"kind": "MeshService", "name": "one", "namespace": "owner"},
                "rules": [{"matches": [{"path": {"type": "Prefix", "value": path}}],
                    "default": {"backendRefs": [{"kind": "MeshService", "name": "two"}]}}]}]}})
    };
    let world = objects(&[
        service("owner", "one"),
        service("owner", "two"),
        service("third", "two"),
        policy("owner", "/owners"),
        policy("third", "/thirds"),
    ]);
    let (owner, one) = (key("owner", "one"), world.service(&key("owner", "one")).unwrap());
    let at = [free_port(), free_port()];
    let input = |(namespace, at): (&str, SocketAddr)| {
        let client = MeshClient { namespace: namespace.into(), services: Vec::new(), tags: Labels::EMPTY };
        let mut routes = RouteTable::default();
        routes.put_outbound(outbound(&world, &client, one, &one.ports[0]).unwrap().0.into());
        let listeners =
            EnvoyListeners::Sidecar { capture: None, outbounds: [(at, (owner.clone(), 80))].into() };
        let tiers = vec![Arc::new(table(&routes, &places))];
        RenderInput {
            tiers,
            routes: Arc::new(routes),
            certificates: Arc::default(),
            authorities: Arc::default(),
            listeners,
            allowlist: Arc::default(),
            edge: Arc::default(),
            retries: model::route::RetryLimits::DEFAULT,
        }
    };
    // Two clients of different namespaces have different routes to one Service: an Envoy for each.
    let mut running = Vec::new();
    let mut echoes = Some(echoes);
    for (namespace, at) in ["caller", "third"].into_iter().zip(at) {
        running.push(run(vec![input((namespace, at))], &[at], echoes.take().unwrap_or_default()));
    }
    let backend = |at: SocketAddr, path: &str| get(at, path).backend().unwrap_or_default();
    assert_eq!((backend(at[0], "/owners"), backend(at[0], "/thirds")), ("two".to_owned(), "one".to_owned()));
    assert_eq!((backend(at[1], "/owners"), backend(at[1], "/thirds")), ("two".to_owned(), "two".to_owned()));
}

/// The rule of a policy for all requests to `web`.
fn to_web(name: &str, target: Value, parts: Value) -> Value {
    let mut rule = json!({"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {}});
    for (part, value) in parts.as_object().into_iter().flatten() {
        rule[part.as_str()] = value.clone();
    }
    json!({"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": target,
        "to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": [rule]}]}})
}

/// The backend of a request, and the values of its header `x-by` there, by the policies, at Envoy and at the embedded proxy.
fn at_both(policies: &[Value]) -> [(String, String); 2] {
    let log = Log::default();
    let (echoes, places) = places(&log);
    let world = snapshot("ns", policies, &["web", "client", "one", "two"], &json!(null));
    let at = free_port();
    let input = sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places);
    let (_runtime, _proxy, beside) = embedded(&input);
    let _running = run(vec![input], &[at], echoes);
    [at, beside].map(|at| {
        let answer = get(at, "/");
        let echoed = answer.json();
        let headers = echoed["headers"].as_array().cloned().unwrap_or_default();
        let own = headers.iter().filter(|header| header[0] == "x-by").filter_map(|header| header[1].as_str());
        let values: Vec<&str> = own.flat_map(|line| line.split(',')).map(str::trim).collect();
        (answer.backend().unwrap_or_default(), values.join(" "))
    })
}

// Seed 004: "maybe the owner wants final say over backendRefs", "can tolerate additional filters".
#[test]
fn the_owner_overrides_backends_and_both_merge_filters() {
    let to = |name: &str| json!([{"kind": "MeshService", "name": name}]);
    let adds = |by: &str| json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "x-by", "value": by}]}}]);
    let (everyone, client) =
        (|| json!({"kind": "Mesh"}), || json!({"kind": "MeshService", "name": "client"}));
    let both = |backend: &str, by: &str| [(); 2].map(|()| (backend.to_owned(), by.to_owned()));

    let consumer_says = json!({"default": {"backendRefs": to("two"), "filters": adds("default")},
        "merge": {"filters": adds("consumer")}});
    let consumer = to_web("consumer", client(), consumer_says);
    let weak = json!({"default": {"backendRefs": to("one"), "filters": adds("owner")}});
    let owner = to_web("owner", everyone(), weak);
    assert_eq!(at_both(&[owner, consumer.clone()]), both("two", "default consumer"), "the consumer wins");

    let strong = json!({"override": {"backendRefs": to("one")}, "merge": {"filters": adds("owner")}});
    let owner = to_web("owner", everyone(), strong);
    assert_eq!(at_both(&[owner.clone(), consumer.clone()]), both("one", "default owner consumer"));

    // A response of the consumer does not take the requests away.
    let responds =
        json!({"default": {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}});
    let consumer_responds = to_web("consumer", client(), responds);
    assert_eq!(at_both(&[owner.clone(), consumer_responds]), both("one", "owner"));

    // Of two overrides, that of the less specific policy counts; `[]` takes filters away.
    let clears = to_web("owner", everyone(), json!({"override": {"backendRefs": to("one"), "filters": []}}));
    let narrow = json!({"override": {"backendRefs": to("two")}, "default": {"filters": adds("default")}});
    assert_eq!(at_both(&[clears, to_web("narrow", client(), narrow)]), both("one", ""));
}
