//! MeshLoadBalancing: each feature through a real Envoy and through the embedded proxy, which have to agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::object;
use model::backend::ConsumerLocation;
use model::route::INJECTED_FAULT;
use model::{Labels, Timestamp};
use plan::FeatureGates;
use proxy::{ListenerKind, Proxy, ProxyOptions, ProxyTables};
use serde_json::{Value, json};
use xds::render::{RenderInput, render};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log, Message, request};
use crate::world::{Places, gateway_input, key, sidecar_input, snapshot};
use toolbox::ports::free_port;

fn policy(settings: &Value) -> Value {
    json!({"type": "MeshLoadBalancing", "name": "policy", "spec": {"to": [
        {"targetRef": {"kind": "MeshService", "name": "web"}, "default": settings}]}})
}

/// Checks the way of a client to `web`, with these settings and so many endpoints, at each of the proxies.
fn on_both(settings: Value, endpoints: usize, check: impl Fn(SocketAddr)) {
    let policy = policy(&settings);
    let everything = json!([{"path": {"type": "Prefix", "value": "/a"}}]);
    let set = json!([{"type": "RequestHeaderModifier", "requestHeaderModifier":
        {"set": [{"name": "x-rule", "value": "a"}]}}]);
    let route = json!({"type": "MeshHTTPRoute", "name": "route", "spec": {"to": [
        {"targetRef": {"kind": "MeshService", "name": "web"},
            "rules": [{"matches": everything, "default": {"filters": set}}]}]}});
    let world = snapshot("ns", &[policy, route], &["web", "client"], &json!(null));
    let at = free_port();
    let start = || {
        let log = Log::default();
        let echoes: Vec<Echo> = (0..endpoints).map(|i| Echo::start(&format!("e{i}"), &log)).collect();
        let places: Places =
            [("web".to_owned(), echoes.iter().map(|echo| (echo.address, "a", 1.0)).collect())].into();
        let input = sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places);
        assert_eq!(input.routes.all_load_balancing().len(), 1, "the policy applies");
        (echoes, input)
    };

    let (_echoes, input) = start();
    let rendered = render(input, None);
    assert_eq!(rendered.notices, []);
    let control = Control::start(&rendered.resources);
    let running = envoy(&bootstrap(control.address));
    running.wait_for(at);
    check(at);
    drop((running, control));

    let (_echoes, input) = start();
    let (_runtime, _proxy, embedded) = embedded(&input);
    check(embedded);
}

pub fn embedded(input: &RenderInput) -> (tokio::runtime::Runtime, Proxy, SocketAddr) {
    embedded_as(input, ListenerKind::Outbound { service: key("ns", "web"), port: 80 })
}

fn embedded_as(input: &RenderInput, kind: ListenerKind) -> (tokio::runtime::Runtime, Proxy, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let proxy = Proxy::new(ProxyOptions::default(), tables(input));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    let serving = proxy.clone();
    runtime.spawn(async move { serving.serve(listener, kind, std::future::pending()).await });
    (runtime, proxy, at)
}

pub fn tables(input: &RenderInput) -> ProxyTables {
    ProxyTables {
        routes: input.routes.clone(),
        backends: Arc::clone(&input.tiers[0]),
        ..ProxyTables::default()
    }
}

fn get(at: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Message {
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    request(at, "GET", "web", path, &headers).unwrap()
}

fn backend(at: SocketAddr, headers: &[(&str, &str)]) -> String {
    get(at, "/", headers).backend().unwrap()
}

#[test]
fn round_robin_takes_turns() {
    let settings = json!({"algorithm": {"type": "RoundRobin"}, "circuitBreakers": {"maxConnections": 100},
        "timeouts": {"connect": "2s"}, "panicThreshold": 30, "outlierDetection": {"consecutiveFailures": 0}});
    on_both(settings, 3, |at| {
        let mut connection = Connection::open(at).unwrap();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..30 {
            let answer = connection.send("GET", "web", "/", &[]).unwrap();
            *counts.entry(answer.backend().unwrap()).or_default() += 1;
        }
        assert_eq!(counts.values().copied().collect::<Vec<_>>(), [10, 10, 10]);
    });
}

/// The share of the third endpoint, soon after it was added and after the window, at each of the proxies. `input` has the
/// endpoints that there are.
fn shares_of_third(
    window: Duration,
    requests: usize,
    input: impl Fn(SocketAddr, &[Echo]) -> RenderInput,
) -> [[f64; 2]; 2] {
    let at = free_port();
    let log = Log::default();
    let echoes: Vec<Echo> = (0..3).map(|i| Echo::start(&format!("e{i}"), &log)).collect();
    let input = |endpoints: usize| input(at, &echoes[..endpoints]);
    let share = |at: SocketAddr| {
        let mut connection = Connection::open(at).unwrap();
        let name = |_| connection.send("GET", "web", "/", &[]).unwrap().backend().unwrap();
        let names: Vec<String> = (0..requests).map(name).collect();
        names.iter().filter(|name| *name == "e2").count() as f64 / requests as f64
    };
    let first = render(input(2), None);
    let control = Control::start(&first.resources);
    let running = envoy(&bootstrap(control.address));
    running.wait_for(at);
    let (_runtime, proxy, embedded) = embedded(&input(2));
    assert_eq!([share(at), share(embedded)], [0.0, 0.0]);
    // Envoy's first endpoints start slowly, too.
    std::thread::sleep(window);
    control.publish(&render(input(3), Some(&first)).resources);
    running.wait("the third endpoint", || backend(at, &[]) == "e2");
    let early_envoy = share(at);
    proxy.swap(tables(&input(3)));
    let early = [early_envoy, share(embedded)];
    std::thread::sleep(window);
    [early, [share(at), share(embedded)]]
}

/// The same for endpoints that the plan gives equal weights.
fn ramp(settings: &Value, window: Duration) -> [[f64; 2]; 2] {
    let world = snapshot("ns", &[policy(settings)], &["web", "client"], &json!(null));
    shares_of_third(window, 300, |at, echoes| {
        let places = echoes.iter().map(|echo| (echo.address, "a", 1.0)).collect();
        let places: Places = [("web".to_owned(), places)].into();
        sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places)
    })
}

#[test]
fn a_new_endpoint_starts_slowly() {
    let window = Duration::from_secs(10);
    for kind in ["RoundRobin", "LeastRequest"] {
        let settings = json!({"algorithm": {"type": kind}, "slowStart": {"window": "10s"}});
        let [early, warm] = ramp(&settings, window);
        // 0.1 of 2.1 at the beginning, then a third.
        assert!(early.iter().all(|share| *share < 0.15), "{kind}: {early:?}");
        assert!(warm.iter().all(|share| (0.2..0.47).contains(share)), "{kind}: {warm:?}");
    }
}

#[test]
fn slow_start_has_a_least_part_and_an_aggression() {
    let slow_start = json!({"window": "10s", "minWeightPercent": 60, "aggression": "1.5"});
    let settings = json!({"algorithm": {"type": "RoundRobin"}, "slowStart": slow_start});
    let [early, warm] = ramp(&settings, Duration::from_secs(10));
    // 0.6 of 2.6 at the beginning.
    assert!(early.iter().all(|share| (0.15..0.31).contains(share)), "{early:?}");
    assert!(warm.iter().all(|share| (0.2..0.47).contains(share)), "{warm:?}");
}

/// A slow start of an hour by the Service's annotation, whose third endpoint has just become ready, beside one of ten seconds
/// by a policy.
#[test]
fn a_young_endpoint_has_the_share_of_the_plan_once_and_not_its_square() {
    const NOW: i64 = 1_794_923_382;
    let settings = json!({"slowStart": {"window": "10s"}});
    let input = |at: SocketAddr, echoes: &[Echo]| {
        let mut world = snapshot("ns", &[policy(&settings)], &["web", "client"], &json!(null));
        for (i, echo) in echoes.iter().enumerate() {
            let since = if i == 2 { NOW } else { 0 };
            let annotations = json!({"zoneward.dev/warming": format!("3600s 127.0.0.1={since}")});
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"namespace": "ns", "name": format!("web-{i}"), "annotations": annotations,
                    "labels": {"kubernetes.io/service-name": "web"}},
                "ports": [{"name": "", "port": echo.address.port()}],
                "endpoints": [{"addresses": ["127.0.0.1"]}]});
            world.apply(object(&slice));
        }
        plan::capacity::advance(&mut world, Timestamp::from_seconds(NOW));
        let mut input = sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &Places::new());
        let place = ConsumerLocation::default();
        let table = plan::backends::table(&world, &input.routes, &place, FeatureGates::ALL);
        let backend = table.backends().next().expect("web");
        let weight =
            |port: u16| backend.endpoints.iter().find(|e| e.address.port() == port).map(|e| e.weight);
        if let [first, _, third] = echoes {
            let [first, third] = [first, third].map(|echo| weight(echo.address.port()).unwrap());
            assert!((third / first - 0.1).abs() < 0.001, "the plan's weights: {first} and {third}");
        }
        input.tiers = vec![Arc::new(table)];
        input
    };
    let [early, late] = shares_of_third(Duration::from_secs(10), 2_000, input);
    // 0.1 of 2.1, and no 0.01 of 2.01.
    assert!(early.iter().chain(&late).all(|share| (0.03..0.07).contains(share)), "{early:?} {late:?}");
}

#[test]
fn requests_with_the_same_header_or_cookie_meet_at_one_endpoint() {
    for kind in ["RingHash", "Maglev"] {
        for (on, header, prefix) in [
            (json!({"type": "Header", "name": "X-User"}), "x-user", ""),
            (json!({"type": "Cookie", "name": "session"}), "cookie", "other=1; session="),
        ] {
            on_both(json!({"algorithm": {"type": kind, "hashOn": on}}), 5, |at| {
                let of = |user: usize| backend(at, &[(header, &format!("{prefix}user-{user}"))]);
                let first: Vec<String> = (0..20).map(of).collect();
                let second: Vec<String> = (0..20).map(of).collect();
                assert_eq!(first, second);
                assert!(first.iter().collect::<BTreeSet<_>>().len() > 2, "{first:?}");
                let without: BTreeSet<String> = (0..40).map(|_| backend(at, &[])).collect();
                assert!(without.len() > 2, "without a key, any endpoint: {without:?}");
            });
        }
    }
}

#[test]
fn requests_of_one_address_meet_at_one_endpoint() {
    on_both(json!({"algorithm": {"type": "Maglev", "hashOn": {"type": "SourceIP"}}}), 5, |at| {
        let seen: BTreeSet<String> = (0..20).map(|_| backend(at, &[])).collect();
        assert_eq!(seen.len(), 1, "{seen:?}");
    });
}

/// Whether `e0`, which fails alone, still gets requests after it has failed often.
fn failing_endpoint_is_used(at: SocketAddr) -> bool {
    let failing = [("x-only", "e0"), ("x-status", "503")];
    let failures = |count: usize| (0..count).filter(|_| get(at, "/", &failing).status() == 503).count();
    // Ejection is decided by Envoy's main thread.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        failures(10);
        let is_used = failures(30) > 0;
        if !is_used || Instant::now() > deadline {
            return is_used;
        }
    }
}

#[test]
fn a_failing_endpoint_is_ejected_unless_too_few_are_left() {
    let settings = |panic: u8| {
        json!({"outlierDetection": {"consecutiveFailures": 2, "baseEjectionTime": "1h", "maxEjectionPercent": 100},
            "panicThreshold": panic})
    };
    on_both(settings(0), 3, |at| assert!(!failing_endpoint_is_used(at), "ejected"));
    on_both(settings(100), 3, |at| assert!(failing_endpoint_is_used(at), "panic"));
}

#[test]
fn without_outlier_detection_a_failing_endpoint_stays() {
    let settings = json!({"outlierDetection": {"consecutiveFailures": 0}});
    on_both(settings, 3, |at| assert!(failing_endpoint_is_used(at)));
}

#[test]
fn requests_above_the_circuit_breaker_get_503() {
    let settings =
        json!({"circuitBreakers": {"maxConnections": 1, "maxPendingRequests": 1, "maxRequests": 1}});
    on_both(settings, 1, |at| {
        let slow = || get(at, "/", &[("x-delay", "1500")]).status();
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..5).map(|_| scope.spawn(slow)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(statuses.contains(&200), "{statuses:?}");
        assert!(statuses.iter().filter(|status| **status == 503).count() >= 2, "{statuses:?}");
    });
}

#[test]
fn listed_statuses_are_retried_within_the_budget() {
    let failing = [("x-only", "e0"), ("x-status", "503")];
    let failures = move |at| (0..30).filter(|_| get(at, "/", &failing).status() == 503).count();
    let never = json!({"consecutiveFailures": 0});
    let retries = json!({"attempts": 3, "codes": [503], "backoff": "1ms"});
    on_both(json!({"retries": retries, "outlierDetection": never}), 2, |at| assert_eq!(failures(at), 0));
    let mut spent = retries;
    spent["budget"] = json!({"percent": 0, "minConcurrent": 0});
    on_both(json!({"retries": spent, "outlierDetection": never}), 2, |at| assert!(failures(at) > 0));
}

#[test]
fn timeouts_end_a_request_and_a_try() {
    on_both(json!({"timeouts": {"request": "300ms"}}), 1, |at| {
        assert_eq!(get(at, "/", &[("x-delay", "3000")]).status(), 504);
        assert_eq!(get(at, "/", &[]).status(), 200);
    });
    // A try that takes too long is repeated at the other endpoint.
    let settings = json!({"timeouts": {"backendRequest": "300ms"}, "retries": {"attempts": 3},
        "outlierDetection": {"consecutiveFailures": 0}});
    on_both(settings, 2, |at| {
        let slow = [("x-only", "e0"), ("x-delay", "3000")];
        assert!((0..6).all(|_| get(at, "/", &slow).status() == 200));
    });
}

#[test]
fn all_routes_to_a_destination_share_its_rate_limit() {
    on_both(json!({"rateLimit": {"requests": 4, "interval": "10h"}}), 1, |at| {
        let answers: Vec<Message> =
            ["/a", "/b"].iter().cycle().take(8).map(|path| get(at, path, &[])).collect();
        let statuses: Vec<u16> = answers.iter().map(Message::status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429, 429, 429, 429]);
    });
}

#[test]
fn faults_are_injected_into_their_share() {
    on_both(json!({"faults": {"abort": {"status": 451}}}), 1, |at| {
        let answer = get(at, "/", &[]);
        assert_eq!((answer.status(), &*String::from_utf8_lossy(&answer.body)), (451, INJECTED_FAULT));
    });
    on_both(json!({"faults": {"abort": {"status": 503, "percentage": "50"}}}), 1, |at| {
        let aborted = (0..200).filter(|_| get(at, "/", &[]).status() == 503).count();
        assert!((60..140).contains(&aborted), "{aborted}");
    });
    on_both(json!({"faults": {"delay": {"duration": "400ms"}}}), 1, |at| {
        let started = Instant::now();
        assert_eq!(get(at, "/", &[]).status(), 200);
        assert!(started.elapsed() >= Duration::from_millis(390));
    });
    on_both(json!({"faults": {"abort": {"status": 503, "percentage": 0}}}), 1, |at| {
        assert!((0..20).all(|_| get(at, "/", &[]).status() == 200));
    });
}

/// Checks a gateway with routes to `web` (`/a`, `/b`), to `other`, and to both (`/split`), with these settings for `web`.
fn at_gateways(settings: &Value, check: impl Fn(SocketAddr)) {
    let backend = |name: &str| json!({"kind": "MeshService", "name": name});
    let rule = |path: &str, backends: &[&str]| {
        let backends: Value = backends.iter().map(|name| backend(name)).collect();
        json!({"matches": [{"path": {"type": "Prefix", "value": path}}], "default": {"backendRefs": backends}})
    };
    let rules = [
        rule("/a", &["web"]),
        rule("/b", &["web"]),
        rule("/other", &["other"]),
        rule("/split", &["web", "other"]),
    ];
    let route = json!({"type": "MeshGatewayHTTPRoute", "name": "route", "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}});
    let mut policy = policy(settings);
    policy["spec"]["targetRef"] = json!({"kind": "MeshGateway", "name": "edge"});
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let world = snapshot("ns", &[policy, route], &["web", "other"], &listeners);
    let at = free_port();
    let start = || {
        let log = Log::default();
        let echoes = ["web", "other"].map(|name| Echo::start(name, &log));
        let places: Places = ["web", "other"]
            .iter()
            .zip(&echoes)
            .map(|(name, echo)| ((*name).to_owned(), vec![(echo.address, "a", 1.0)]))
            .collect();
        (echoes, gateway_input(&world, "ns", &[(80, at)], &places))
    };
    let (_echoes, input) = start();
    let rendered = render(input, None);
    assert_eq!(rendered.notices, []);
    let control = Control::start(&rendered.resources);
    let running = envoy(&bootstrap(control.address));
    running.wait_for(at);
    assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
    check(at);
    drop((running, control));

    let (_echoes, input) = start();
    let (_runtime, _proxy, embedded) = embedded_as(&input, ListenerKind::Gateway { port: 80 });
    check(embedded);
}

fn statuses(at: SocketAddr, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| get(at, path, &[]).status()).collect()
}

#[test]
fn all_rules_of_a_gateway_share_the_rate_limit_of_a_backend() {
    at_gateways(&json!({"rateLimit": {"requests": 4, "interval": "10h"}}), |at| {
        let answers = ["/a", "/b"].iter().cycle().take(8).map(|path| get(at, path, &[]).status());
        assert_eq!(answers.collect::<Vec<u16>>(), [200, 200, 200, 200, 429, 429, 429, 429]);
        assert_eq!(statuses(at, "/other", 8), [200; 8], "another backend");
        let split = statuses(at, "/split", 60);
        let limited = split.iter().filter(|status| **status == 429).count();
        assert!((10..50).contains(&limited), "the share of the limited backend: {split:?}");
    });
    // The interval is no multiple of Envoy's steps.
    at_gateways(&json!({"rateLimit": {"requests": 1, "interval": "1275ms"}}), |at| {
        assert_eq!(statuses(at, "/a", 2), [200, 429]);
        std::thread::sleep(Duration::from_millis(1600));
        assert_eq!(statuses(at, "/a", 2), [200, 429]);
    });
}

#[test]
fn faults_of_a_backend_are_injected_at_a_gateway() {
    at_gateways(&json!({"faults": {"abort": {"status": 451}}}), |at| {
        let answer = get(at, "/a", &[]);
        assert_eq!((answer.status(), &*String::from_utf8_lossy(&answer.body)), (451, INJECTED_FAULT));
        assert_eq!(statuses(at, "/other", 4), [200; 4]);
        let aborted = statuses(at, "/split", 100).iter().filter(|status| **status == 451).count();
        assert!((25..75).contains(&aborted), "{aborted}");
    });
    at_gateways(&json!({"faults": {"delay": {"duration": "400ms"}}}), |at| {
        let started = Instant::now();
        assert_eq!(get(at, "/a", &[]).status(), 200);
        assert!(started.elapsed() >= Duration::from_millis(390));
    });
}
