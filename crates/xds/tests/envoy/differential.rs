//! The embedded proxy and a real Envoy side by side: random policies, random requests, the same answers.
//!
//! What differs for a reason is normalised here, under the name that docs/differences.md gives it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::Labels;
use serde_json::{Value, json};
use xds::render::{RenderInput, render};
use xds::resource::{ResourceSet, ResourceType};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log, Message};
use crate::world::{Places, gateway_input, items, key, sidecar_input, snapshot};
use toolbox::ports::free_port;

/// Numbers that only look random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'t>(&mut self, among: &[&'t str]) -> &'t str {
        among[self.below(among.len())]
    }

    fn status(&mut self, among: &[u16]) -> u16 {
        among[self.below(among.len())]
    }

    fn some(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> Value) -> Vec<Value> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }
}

const SEGMENTS: &[&str] = &["a", "b", "v1", "v2", "ab", "a%20b", "x.html"];
const NAMES: &[&str] = &["x-one", "X-Two", "x-three"];
const VALUES: &[&str] = &["1", "2", "12", "one two", "50%"];
const HOSTS: &[&str] = &["a.example.com", "b.example.com", "example.com", "deep.a.example.com", "other.org"];
const BACKENDS: &[&str] = &["one", "two", "three"];

fn path(dice: &mut Dice) -> String {
    let segments: Vec<&str> = (0..dice.below(4)).map(|_| dice.pick(SEGMENTS)).collect();
    format!("/{}", segments.join("/"))
}

fn path_match(dice: &mut Dice) -> Value {
    match dice.below(6) {
        0 | 1 => json!({"type": "Exact", "value": path(dice)}),
        2 => json!({"type": "RegularExpression",
            "value": dice.pick(&["/a.*", "/(a|b)/[^/]+", r"/v\d(/.*)?", "/[a-z]{1,2}", ".*html", "/é?b"])}),
        _ => json!({"type": "Prefix", "value": path(dice)}),
    }
}

fn a_match(dice: &mut Dice) -> Value {
    let mut on = json!({});
    if !dice.one_in(5) {
        on["path"] = path_match(dice);
    }
    if dice.one_in(4) {
        on["method"] = dice.pick(&["GET", "POST"]).into();
    }
    let headers = dice.some(2, |dice| {
        let name = dice.pick(NAMES);
        match dice.below(5) {
            0 => json!({"type": "Present", "name": name}),
            1 => json!({"type": "Absent", "name": name}),
            2 => json!({"type": "Prefix", "name": name, "value": dice.pick(&["1", "o", ""])}),
            3 => json!({"type": "RegularExpression", "name": name, "value": dice.pick(&["[0-9]+", ".*t.*", "1|2"])}),
            _ => json!({"type": "Exact", "name": name, "value": dice.pick(VALUES)}),
        }
    });
    if dice.one_in(2) && !headers.is_empty() {
        on["headers"] = headers.into();
    }
    if dice.one_in(4) {
        on["queryParams"] = json!([match dice.below(2) {
            0 => json!({"type": "Exact", "name": "q", "value": dice.pick(VALUES)}),
            _ => json!({"type": "RegularExpression", "name": "q", "value": "[12]+"}),
        }]);
    }
    if on == json!({}) {
        on["path"] = path_match(dice);
    }
    on
}

fn modifier(dice: &mut Dice) -> Value {
    let mut names: Vec<&str> = NAMES.iter().copied().chain(["x-new", "x-old"]).collect();
    let mut changes = json!({});
    for list in ["set", "add", "remove"] {
        if names.is_empty() || dice.one_in(2) {
            continue;
        }
        let name = names.remove(dice.below(names.len()));
        changes[list] = match list {
            "remove" => json!([name]),
            _ => json!([{"name": name, "value": dice.pick(VALUES)}]),
        };
    }
    if changes == json!({}) {
        changes = json!({"set": [{"name": "x-new", "value": "1"}]});
    }
    changes
}

fn change_of_path(dice: &mut Dice, all_prefixes: bool) -> Value {
    match dice.below(2) {
        0 if all_prefixes => json!({"replacePrefixMatch": dice.pick(&["/", "/n", "/n/", "/n/m"])}),
        _ => json!({"replaceFullPath": dice.pick(&["/full", "/a\\1b", "/"])}),
    }
}

/// All requests are copied or none: of shares in between each proxy tosses its own coins.
fn mirror(dice: &mut Dice) -> Value {
    let name = if dice.one_in(10) { "missing" } else { dice.pick(BACKENDS) };
    let mut mirror = json!({"backendRef": {"kind": "MeshService", "name": name}});
    match dice.below(6) {
        0 => mirror["percentage"] = 0.into(),
        1 => mirror["percentage"] = "100".into(),
        _ => {}
    }
    json!({"type": "RequestMirror", "requestMirror": mirror})
}

fn matches(dice: &mut Dice) -> Vec<Value> {
    let mut matches = vec![a_match(dice)];
    matches.extend(dice.some(1, a_match));
    matches
}

/// "copies of a request to a backend with filters": a world has either, mirrors or these filters.
fn rule(dice: &mut Dice, matches: Vec<Value>, has_mirrors: bool) -> Value {
    let all_prefixes = matches.iter().all(|on| on["path"]["type"] == "Prefix");
    let mut filters = Vec::new();
    if dice.one_in(2) {
        filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": modifier(dice)}));
    }
    if dice.one_in(3) {
        filters.push(json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier(dice)}));
    }
    let mut rule = json!({"matches": matches, "default": {}});
    match dice.below(8) {
        0 => {
            let mut redirect = json!({"statusCode": dice.status(&[301, 302, 303, 307, 308])});
            if dice.one_in(2) {
                redirect["scheme"] = dice.pick(&["http", "https"]).into();
            }
            if dice.one_in(2) {
                redirect["hostname"] = "new.example.org".into();
                // Without a port of its own, see "a redirect to another host".
                redirect["port"] = 8443.into();
            }
            if dice.one_in(2) {
                redirect["path"] = change_of_path(dice, all_prefixes);
            }
            filters.push(json!({"type": "RequestRedirect", "requestRedirect": redirect}));
        }
        1 => filters.push(json!({"type": "DirectResponse",
            "directResponse": {"status": dice.status(&[200, 404, 418, 503]), "body": {"inlineString": "said here"}}})),
        _ => {
            if dice.one_in(3) {
                let mut rewrite = json!({"path": change_of_path(dice, all_prefixes)});
                if dice.one_in(2) {
                    rewrite["hostname"] = "inside.example".into();
                }
                filters.push(json!({"type": "URLRewrite", "urlRewrite": rewrite}));
            }
            for _ in 0..[0, 0, 1, 2][dice.below(4)] {
                if has_mirrors {
                    filters.push(mirror(dice));
                }
            }
            let name = if dice.one_in(10) { "missing" } else { dice.pick(BACKENDS) };
            let mut backend = json!({"kind": "MeshService", "name": name});
            if !has_mirrors && dice.one_in(2) {
                backend["filters"] = json!([
                    {"type": "RequestHeaderModifier", "requestHeaderModifier": modifier(dice)},
                    {"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier(dice)}]);
            }
            rule["default"]["backendRefs"] = json!([backend]);
        }
    }
    if !filters.is_empty() {
        rule["default"]["filters"] = filters.into();
    }
    if dice.one_in(4) {
        rule["override"] = rule["default"].take();
        rule["default"] = json!({});
    }
    if dice.one_in(4) {
        let added = match dice.below(3) {
            0 if has_mirrors => mirror(dice),
            1 => json!({"type": "RequestHeaderModifier", "requestHeaderModifier": modifier(dice)}),
            _ => json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier(dice)}),
        };
        rule["merge"] = json!({"filters": [added]});
    }
    rule
}

/// Policies whose rules may have the same matches.
fn rules(dice: &mut Dice, policies: usize) -> Vec<Vec<Value>> {
    let mut all: Vec<Vec<Value>> = Vec::new();
    let has_mirrors = !dice.one_in(3);
    for _ in 0..policies {
        let mut own = Vec::new();
        for _ in 0..1 + dice.below(6) {
            let known =
                all.first().filter(|_| dice.one_in(3)).map(|first| first[dice.below(first.len())].clone());
            let matches = match known {
                Some(known) => items(&known["matches"]),
                None => matches(dice),
            };
            own.push(rule(dice, matches, has_mirrors));
        }
        all.push(own);
    }
    all
}

/// A world of policies, at a gateway or in the mesh.
fn world(dice: &mut Dice, namespace: &str, at: SocketAddr, places: &Places) -> RenderInput {
    if dice.one_in(3) {
        let count = 1 + dice.below(2);
        let policies: Vec<Value> = (0..count)
            .zip(rules(dice, count))
            .map(|(i, rules)| {
                json!({"type": "MeshHTTPRoute", "name": format!("p{i}"), "spec": {"targetRef": {"kind": "Mesh"},
                    "to": [{"targetRef": {"kind": "MeshService", "name": "one"}, "rules": rules}]}})
            })
            .collect();
        let others = [BACKENDS, &["client"]].concat();
        let world = snapshot(namespace, &policies, &others, &json!(null));
        return sidecar_input(&world, namespace, ("client", &Labels::EMPTY), "one", at, places);
    }
    let count = 1 + dice.below(3);
    let policies: Vec<Value> = (0..count)
        .zip(rules(dice, count))
        .map(|(i, rules)| {
            let mut spec = json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules});
            let hosts =
                dice.some(2, |dice| dice.pick(&["a.example.com", "*.example.com", "example.com"]).into());
            if !hosts.is_empty() {
                spec["hostnames"] = hosts.into();
            }
            json!({"type": "MeshGatewayHTTPRoute", "name": format!("g{i}"), "spec": spec})
        })
        .collect();
    let mut listeners = vec![json!({"name": "all", "port": 8080, "protocol": "HTTP"})];
    if dice.one_in(2) {
        listeners.push(json!({"name": "own", "port": 8080, "protocol": "HTTP", "hostname": "*.example.com"}));
    }
    let world = snapshot(namespace, &policies, BACKENDS, &listeners.into());
    gateway_input(&world, namespace, &[(8080, at)], places)
}

struct Asked {
    method: &'static str,
    host: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

fn asked(dice: &mut Dice) -> Asked {
    let mut headers = Vec::new();
    for name in NAMES {
        for _ in 0..dice.below(3) {
            headers.push(((*name).to_owned(), dice.pick(VALUES).to_owned()));
        }
    }
    if dice.one_in(2) {
        let sent = json!({dice.pick(NAMES): dice.pick(VALUES), "x-old": "gone"});
        headers.push(("x-echo".to_owned(), sent.to_string()));
    }
    let mut target = path(dice);
    if dice.one_in(6) {
        target += dice.pick(&[
            "/",
            "/../a",
            "/./b",
            "/%61",
            "//a",
            "/%2e%2e/b",
            "%2fa",
            "%2F..%2fb",
            r"\..\a",
            "%5cb",
            "/..;/a",
            "/.;x/b",
            "/..%3b/a",
            "/%2e%2e;/a",
            "/;x/a",
            "%00",
        ]);
    }
    if dice.one_in(3) {
        target += &format!("?{}", dice.pick(&["q=1", "q=2&q=1", "r=1", "q", "q=one%20two", "q=12&x=y"]));
    }
    let port = dice.pick(&["", "", ":8080", ":80"]);
    let method = ["GET", "GET", "POST", "PUT", "HEAD", "OPTIONS"][dice.below(6)];
    let has_body = matches!(method, "POST" | "PUT") && dice.one_in(2);
    let body = if has_body { "something ".repeat(dice.below(3_000)) } else { String::new() };
    let host = format!("{}{port}", dice.pick(HOSTS));
    Asked { method, host, path: target, headers, body }
}

/// "headers of the proxies' own": who carries a request says so in its own way.
const OWN: &[&str] = &[
    "x-forwarded-proto",
    "x-forwarded-for",
    "x-envoy-internal",
    "x-envoy-external-address",
    "x-request-id",
    "connection",
    "keep-alive",
    "date",
    "server",
    "content-length",
    "transfer-encoding",
    "via",
    "content-type",
    "x-envoy-upstream-service-time",
    "x-echo",
    "forwarded",
    "user-agent",
    SIDE,
];

/// Which proxy a request was sent to, and the number of the request: copies are told apart by them.
const SIDE: &str = "x-side";
const SERIAL: &str = "x-serial";

fn lines(headers: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers.filter(|(name, _)| !OWN.contains(&name.as_str())) {
        joined.entry(name).and_modify(|held| *held = format!("{held},{value}")).or_insert(value);
    }
    joined
}

/// Bodies of a 400 for a path: of Envoy, and of the embedded proxy.
const ENVOYS_400: &[&str] = &["", "malformed request"];
const OUR_400: &[&str] = &[
    "malformed request",
    "the path contains an escaped slash",
    "the path contains an escaped zero byte or a doubly escaped dot",
    "the path contains a doubly escaped slash",
    "the path contains an escaped dot segment with a parameter",
    "the path contains a parameter",
    "the path consists of slashes",
];

/// What is compared of an answer.
fn essence(answer: &Message, texts_of_400: &[&str]) -> Value {
    let echoed = answer.json();
    let echoed_headers = echoed["headers"].as_array().cloned().unwrap_or_default();
    let pair = |pair: &Value| {
        (pair[0].as_str().unwrap_or_default().to_owned(), pair[1].as_str().unwrap_or_default().to_owned())
    };
    let mut response = lines(answer.headers.iter().cloned());
    if let Some(location) = response.get_mut("location") {
        // "a port that goes without saying": http://host:80 and https://host:443 are what they are without it.
        for (scheme, port) in [("http://", ":80/"), ("https://", ":443/")] {
            if location.starts_with(scheme) {
                *location = location.replacen(port, "/", 1);
            }
        }
    }
    let mut body =
        if echoed.is_null() { String::from_utf8_lossy(&answer.body).into_owned() } else { String::new() };
    if answer.status() == 400 && echoed.is_null() {
        // "the body of a 400 for a path": each has its own, and no other than these.
        assert!(texts_of_400.contains(&body.trim_end()), "body of a 400: {body:?}");
        body.clear();
        // "headers of a 400 for a path"
        response.clear();
    }
    json!({"status": answer.status(), "backend": echoed["backend"], "path": echoed["path"],
        "sent": echoed["body"], "method": echoed["method"],
        "upstream": lines(echoed_headers.iter().map(pair)), "response": response, "body": body})
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// One seed in CI, as many as there is time for in a soak.
#[test]
fn soak_the_embedded_proxy_and_envoy_give_the_same_answers() {
    let (first, worlds) = (number("ZONEWARD_SEED", 4), number("ZONEWARD_WORLDS", 30));
    let (start, time) = (Instant::now(), Duration::from_secs(number("ZONEWARD_SOAK_SECONDS", 0)));
    for seed in first.. {
        compare(seed, worlds);
        if start.elapsed() >= time {
            return;
        }
    }
}

fn compare(seed: u64, worlds: u64) {
    eprintln!("seed {seed}, {worlds} worlds; again with ZONEWARD_SEED={seed}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let log = Log::default();
    let echoes: Vec<Echo> = BACKENDS.iter().map(|name| Echo::start(name, &log)).collect();
    let places: Places = BACKENDS
        .iter()
        .zip(&echoes)
        .map(|(name, echo)| ((*name).to_owned(), vec![(echo.address, "a", 1.0)]))
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut union = ResourceSet::default();
    let mut pairs: Vec<(SocketAddr, SocketAddr)> = Vec::new();
    for i in 0..worlds {
        let (namespace, at) = (format!("w{i}"), free_port());
        let input = world(&mut dice, &namespace, at, &places);
        let rendered = render(input.clone(), None);
        assert_eq!(rendered.notices, []);
        for kind in ResourceType::ALL {
            rendered.resources.of(kind).values().for_each(|resource| union.put(kind, resource.clone()));
        }
        pairs.push((at, embedded(&runtime, &namespace, &input)));
    }
    let control = Control::start(&Arc::new(union));
    let proxy = envoy(&bootstrap(control.address));
    pairs.iter().for_each(|(at, _)| proxy.wait_for(*at));
    assert_eq!(control.streams.notices(), []);
    let (mut changed_names, mut requests) = (Vec::new(), 0);
    for (i, (at, own)) in pairs.iter().enumerate() {
        let (mut there, mut here) = (Connection::open(*at).unwrap(), Connection::open(*own).unwrap());
        for _ in 0..40 {
            let asked = asked(&mut dice);
            requests += 1;
            let send = |to: SocketAddr, connection: &mut Connection, side: &str| {
                let mut headers = asked.headers.clone();
                headers.push((SIDE.to_owned(), side.to_owned()));
                headers.push((SERIAL.to_owned(), requests.to_string()));
                let Asked { method, host, path, body, .. } = &asked;
                let answer = connection.send_body(method, host, path, &headers, body).or_else(|_| {
                    *connection = Connection::open(to)?;
                    connection.send_body(method, host, path, &headers, body)
                })?;
                // Who answers before a body has come ends the connection, and says so.
                if answer.header("connection") == Some("close") {
                    *connection = Connection::open(to)?;
                }
                std::io::Result::Ok(answer)
            };
            let envoys = essence(&send(*at, &mut there, "envoy").unwrap(), ENVOYS_400);
            let ours = essence(
                &send(*own, &mut here, "ours").unwrap(),
                if asked.method == "HEAD" { &[""] } else { OUR_400 },
            );
            if envoys != ours {
                let Asked { method, host, path, headers, .. } = &asked;
                changed_names.push(format!(
                    "world {i}: {method} {host} {path} {headers:?}\n  envoy {envoys}\n  ours  {ours}"
                ));
            }
        }
    }
    let answers = changed_names.len();
    let (copies, differing) = compare_copies(&log);
    changed_names.extend(differing);
    eprintln!(
        "{requests} requests, {answers} answers differ; {copies} copies, {} differ",
        changed_names.len() - answers
    );
    assert!(copies as u64 > worlds, "{copies} copies");
    let shown: Vec<&String> = changed_names.iter().take(10).collect();
    assert!(changed_names.is_empty(), "{} of {requests}, seed {seed}: {shown:#?}", changed_names.len());
}

/// The copies that mirrors got by one of the proxies, in order. A copy says so behind its host.
fn copies(log: &Log, side: &str) -> Vec<String> {
    let log = log.lock().unwrap();
    let is_copy = |message: &&Message| {
        message.header("host").is_some_and(|host| host.contains("-shadow"))
            && message.header(SIDE) == Some(side)
    };
    let mut found = Vec::new();
    for (name, messages) in log.iter() {
        for message in messages.iter().filter(is_copy) {
            let first = message.first.trim_end_matches(" HTTP/1.1");
            let serial: u64 = message.header(SERIAL).unwrap_or_default().parse().unwrap();
            let headers = lines(message.headers.iter().cloned());
            found.push((serial, format!("{name}: {first} {headers:?} {} bytes", message.body.len())));
        }
    }
    found.sort();
    found.into_iter().map(|(serial, copy)| format!("{serial} {copy}")).collect()
}

/// How many copies there were, and which only one of the proxies sent. Nobody waits for copies, so they take a moment.
fn compare_copies(log: &Log) -> (usize, Vec<String>) {
    let start = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let (envoys, ours) = (copies(log, "envoy"), copies(log, "ours"));
        if envoys == ours {
            return (ours.len(), Vec::new());
        }
        if start.elapsed() > Duration::from_secs(30) {
            let only = |side: &str, mine: &[String], others: &[String]| {
                let mut rest = others.to_vec();
                let mut found = Vec::new();
                for copy in mine {
                    match rest.iter().position(|other| other == copy) {
                        Some(at) => drop(rest.swap_remove(at)),
                        None => found.push(format!("a copy of {side} alone: {copy}")),
                    }
                }
                found
            };
            let found = [only("envoy", &envoys, &ours), only("ours", &ours, &envoys)].concat();
            return (ours.len(), found);
        }
    }
}

/// The embedded proxy on the same tables.
pub fn embedded(runtime: &tokio::runtime::Runtime, namespace: &str, input: &RenderInput) -> SocketAddr {
    let options = proxy::ProxyOptions { edge: input.edge.as_ref().clone(), ..proxy::ProxyOptions::default() };
    let tables = proxy::ProxyTables {
        routes: input.routes.clone(),
        backends: input.tiers[0].clone(),
        ..proxy::ProxyTables::default()
    };
    let listeners = match &input.listeners {
        xds::render::EnvoyListeners::Gateway { .. } => proxy::ListenerKind::Gateway { port: 8080 },
        xds::render::EnvoyListeners::Sidecar { .. } => {
            proxy::ListenerKind::Outbound { service: key(namespace, "one"), port: 80 }
        }
    };
    let proxy = proxy::Proxy::new(options, tables);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { proxy.serve(listener, listeners, std::future::pending()).await });
    address
}
