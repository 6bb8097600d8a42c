//! The examples with `zoneward up`: plain processes are the endpoints, requests go through the proxies.

use std::collections::{BTreeMap, BTreeSet};

use fixtures::eventually;

use crate::mesh_live::world::{Machine, Upstream, ask, body};

const SIDECAR: &str = "127.0.0.1:8081";
const SIDECAR_METRICS: &str = "127.0.0.1:10280";
const SIDECAR_FLAG: [&str; 2] = ["--sidecar", "frontend:8081=backend"];

/// Two versions of backend behind a sidecar of frontend.
fn two_versions(name: &str, example: &str) -> (Machine, Upstream, Upstream) {
    let (one, two) = (Upstream::start("v1", "10.1.0.1"), Upstream::start("v2", "10.1.0.2"));
    let machine = Machine::up(name, &SIDECAR_FLAG);
    machine.example(example);
    let targets = [format!("{},version=v1", one.address), format!("{},version=v2", two.address)];
    machine.expose("backend", &targets);
    (machine, one, two)
}

// Seed 004, "Merging behavior".
#[test]
fn seed_examples_route_as_they_say() {
    toolbox::in_own_namespaces!();
    let (machine, ..) = two_versions("seed", "seed-merge");
    let version = |path: &str| body(SIDECAR, path).unwrap_or_default();
    eventually("both versions", || version("/v1/x") == "v1" && version("/v2/x") == "v2");
    let answer = ask(SIDECAR, "backend", "/v2/x", "").unwrap();
    assert_eq!(answer.headers.get("env").map(String::as_str), Some("dev"), "the consumer's filter");
    assert_eq!(ask(SIDECAR, "backend", "/v1/x", "").unwrap().headers.get("env"), None);
    machine.example("seed-override");
    let both = |path: &str| {
        let seen: BTreeSet<String> = (0..40).map(|_| version(path)).collect();
        seen.len() == 2
    };
    eventually("the cleared rules", || both("/v1/x") && both("/v2/x"));
    machine.example("seed-owner-and-consumer");
    eventually("the consumer's own rule", || (0..40).all(|_| version("/x") == "v1"));
}

/// Requests that the sidecar has counted for the rules of a route.
fn requests_of(route: &str) -> u64 {
    let metrics = ask(SIDECAR_METRICS, "x", "/metrics", "").map(|answer| answer.body).unwrap_or_default();
    let start = format!("zoneward_proxy_route_requests_total{{route=\"{route} ");
    let lines = metrics.lines().filter(|line| line.starts_with(&start));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn canary_gets_a_tenth() {
    toolbox::in_own_namespaces!();
    let (_machine, ..) = two_versions("canary", "canary");
    // The proxy may know the route before the endpoints of both versions, or them before it.
    eventually("answers of both versions by the route", || {
        let before = requests_of("MeshHTTPRoute default/canary");
        let answers: Option<BTreeSet<String>> = (0..60).map(|_| body(SIDECAR, "/")).collect();
        answers.is_some_and(|versions| versions.len() == 2)
            && requests_of("MeshHTTPRoute default/canary") >= before + 50
    });
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    const REQUESTS: u32 = 2_000;
    for _ in 0..REQUESTS {
        *counts.entry(body(SIDECAR, "/").unwrap()).or_default() += 1;
    }
    // Six standard deviations of a fair tenth.
    let share = f64::from(counts["v2"]) / f64::from(REQUESTS);
    assert!((0.06..0.14).contains(&share), "{counts:?}");
}

#[test]
fn testers_get_the_next_version() {
    toolbox::in_own_namespaces!();
    let (_machine, ..) = two_versions("header", "header-routing");
    let version = |more: &str| ask(SIDECAR, "x", "/", more).map(|answer| answer.body).unwrap_or_default();
    eventually("both versions", || version("") == "v1" && version("x-version: next\r\n") == "v2");
    assert_eq!(version("X-Version: other\r\n"), "v1");
    assert_eq!(version("X-VERSION: next\r\n"), "v2");
}

#[test]
fn mirror_gets_copies_and_nobody_notices() {
    toolbox::in_own_namespaces!();
    let (one, next) = (Upstream::start("backend", "10.1.0.1"), Upstream::start("next", "10.1.0.2"));
    let machine = Machine::up("mirror", &SIDECAR_FLAG);
    machine.example("mirror");
    machine.expose("backend", std::slice::from_ref(&one.address));
    machine.expose("backend-next", std::slice::from_ref(&next.address));
    eventually("the first answer", || body(SIDECAR, "/orders").is_some());
    const REQUESTS: usize = 1_000;
    let before = one.seen().len();
    for _ in 0..REQUESTS {
        assert_eq!(body(SIDECAR, "/orders").as_deref(), Some("backend"));
    }
    assert_eq!(one.seen().len() - before, REQUESTS);
    // One in twenty; six standard deviations.
    eventually("the last copies", || next.seen().len() > 8);
    let copies = next.seen();
    assert!((8..100).contains(&copies.len()), "{}", copies.len());
    assert!(copies.iter().all(|copy| copy.path == "/orders"));
}

#[test]
fn gateway_redirects_rewrites_and_answers() {
    toolbox::in_own_namespaces!();
    let shop = Upstream::start("shop", "10.1.0.1");
    let machine = Machine::up("redirect", &["--mesh-bind", "127.0.0.1"]);
    machine.example("redirect");
    machine.expose("shop", std::slice::from_ref(&shop.address));
    let (plain, inside) = ("127.0.0.1:8080", "127.0.0.1:8081");
    let get = |at: &str, path: &str| ask(at, "shop.example.com", path, "");
    eventually("the gateway", || get(inside, "/old/hats").is_some_and(|answer| answer.status == 308));
    let moved = get(inside, "/old/hats?size=7").unwrap();
    assert_eq!(moved.headers["location"], "http://shop.example.com:8081/shop/hats?size=7");
    let secure = get(plain, "/old/hats").unwrap();
    assert_eq!(
        (secure.status, secure.headers["location"].as_str()),
        (301, "https://shop.example.com/old/hats")
    );
    eventually("the shop", || get(inside, "/shop/hats").is_some_and(|answer| answer.body == "shop"));
    let seen = shop.seen().pop().unwrap();
    assert_eq!(seen.path, "/hats", "the prefix is taken off");
    assert_eq!(get(inside, "/healthz").unwrap().body, "ok\n");
    assert_eq!(get(inside, "/elsewhere").unwrap().status, 404);
}
