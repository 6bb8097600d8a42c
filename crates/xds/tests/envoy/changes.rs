//! Everything around a working Envoy changes, and no request fails: endpoints a hundred times a second, the server
//! goes and comes, a push is bad, Envoy itself begins anew.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::Labels;
use serde_json::json;
use xds::render::{RenderInput, Rendered, render};
use xds::resource::{ResourceSet, ResourceType, XdsResource};
use xds::server::{XdsServerSettings, XdsServerTls};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log, request};
use crate::world::{Places, sidecar_input, snapshot};
use toolbox::ports::free_port;

/// Requests without a pause until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(at: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = |_| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                let mut connection = Connection::open(at).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    match connection.send("GET", "web", "/load", &[]) {
                        Ok(answer) if answer.status() == 200 => {
                            // Envoy says so when a connection is not to be used again.
                            if answer.header("connection") == Some("close") {
                                connection = Connection::open(at).unwrap();
                            }
                        }
                        Ok(answer) => failures.push(format!(
                            "{} {:?}",
                            answer.first,
                            String::from_utf8_lossy(&answer.body)
                        )),
                        Err(error) => {
                            failures.push(error.to_string());
                            connection = Connection::open(at).unwrap();
                        }
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(500));
                }
                failures
            })
        };
        let threads = (0..3).map(thread).collect();
        Self { stop, done, threads }
    }

    /// How many requests there were, and what failed of them.
    fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::SeqCst);
        let failures = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (self.done.load(Ordering::SeqCst), failures)
    }
}

struct World {
    at: SocketAddr,
    echoes: Vec<Echo>,
}

impl World {
    fn new(backends: usize) -> Self {
        let log = Log::default();
        let echoes = (0..backends).map(|i| Echo::start(&format!("e{i}"), &log)).collect();
        Self { at: free_port(), echoes }
    }

    /// The way to `web`, whose endpoints are these.
    fn input(&self, endpoints: impl Iterator<Item = usize>) -> RenderInput {
        let world = snapshot("ns", &[], &["web", "client"], &json!(null));
        let zones = ["a", "b", "c"];
        let places = endpoints.map(|i| (self.echoes[i].address, zones[i % 3], 1.0)).collect();
        let places: Places = [("web".to_owned(), places)].into();
        sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", self.at, &places)
    }

    fn all(&self) -> Rendered {
        render(self.input(0..self.echoes.len()), None)
    }
}

/// What CI has time for; the soak says more.
fn seconds() -> u64 {
    std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[test]
fn soak_a_hundred_changes_of_endpoints_each_second_cost_no_request_and_one_resource_each() {
    let world = World::new(6);
    let mut rendered = world.all();
    let control = Control::start(&rendered.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(world.at);
    let before = control.sent();
    let load = Load::start(world.at);
    let (start, mut changes) = (Instant::now(), 0u64);
    while start.elapsed() < Duration::from_secs(seconds()) {
        let left_out = changes as usize % 6;
        let mut input = world.input((0..6).filter(|i| *i != left_out));
        // The routes are as they were: only a new table of backends came.
        input.routes = rendered.routes().clone();
        rendered = render(input, Some(&rendered));
        control.publish(&rendered.resources);
        changes += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let (requests, failures) = load.end();
    let after = control.sent();
    eprintln!(
        "{changes} changes, {requests} requests, {} failed; sent {before:?}, then {after:?}",
        failures.len()
    );
    assert_eq!(failures, [""; 0], "of {requests}");
    assert!(requests > 500 && changes > 20 * seconds(), "{requests} requests, {changes} changes");
    for kind in [ResourceType::Cluster, ResourceType::Listener, ResourceType::Routes] {
        assert_eq!(after.get(&kind), before.get(&kind), "{kind}: unchanged, and not sent again");
    }
    assert!(after[&ResourceType::Endpoints] <= before[&ResourceType::Endpoints] + changes);
    assert!(after[&ResourceType::Endpoints] > changes / 4, "changes arrive: {after:?}");
    assert_eq!(control.streams.notices(), []);
}

#[test]
fn a_server_that_goes_and_comes_costs_nothing_and_an_envoy_that_begins_anew_gets_everything() {
    let world = World::new(2);
    let rendered = world.all();
    let control = Control::start(&rendered.resources);
    let address = control.address;
    let settings = bootstrap(address);
    let proxy = envoy(&settings);
    proxy.wait_for(world.at);
    let load = Load::start(world.at);
    drop(control);
    std::thread::sleep(Duration::from_millis(700));
    let control = Control::start_at(address, &rendered.resources, XdsServerSettings::default());
    proxy.wait("a stream", || !control.streams.streams().is_empty());
    // It says what it has, and changes reach it again.
    let fewer = render(world.input(0..1), Some(&rendered));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(control.sent(), [].into(), "nothing unchanged is sent again");
    control.publish(&fewer.resources);
    proxy.wait("one changed resource", || control.sent() == [(ResourceType::Endpoints, 1)].into());
    let (requests, failures) = load.end();
    assert_eq!(failures, [""; 0], "of {requests}");
    drop(proxy);
    let again = envoy(&bootstrap(address));
    again.wait_for(world.at);
    assert_eq!(request(world.at, "GET", "web", "/", &[]).unwrap().backend().as_deref(), Some("e0"));
    let sent = control.sent();
    assert_eq!(
        (sent[&ResourceType::Cluster], sent[&ResourceType::Listener], sent[&ResourceType::Routes]),
        (1, 1, 1)
    );
}

#[test]
fn a_server_that_does_not_know_yet_what_is_wanted_takes_nothing_back() {
    for whole in [false, true] {
        let world = World::new(2);
        let rendered = world.all();
        let control = Control::start(&rendered.resources);
        let address = control.address;
        let mut settings = bootstrap(address);
        settings.state_of_the_world = whole;
        let proxy = envoy(&settings);
        proxy.wait_for(world.at);
        let load = Load::start(world.at);
        drop(control);
        let control = Control::start_without(address);
        proxy.wait("a stream", || !control.streams.streams().is_empty());
        std::thread::sleep(Duration::from_millis(500));
        let counts = control.streams.counters();
        assert!(counts.values().all(|count| count.responses == 0), "nothing is said: {counts:?}");
        control.publish(&rendered.resources);
        std::thread::sleep(Duration::from_millis(300));
        let (requests, failures) = load.end();
        assert_eq!(failures, [""; 0], "of {requests}, state_of_the_world: {whole}");
        assert_eq!(
            control.sent().values().sum::<u64>(),
            0,
            "it has what it is to have, state_of_the_world: {whole}"
        );
    }
}

#[test]
fn a_bad_push_is_refused_in_envoys_words_and_what_worked_goes_on() {
    let world = World::new(2);
    let rendered = world.all();
    let control = Control::start(&rendered.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(world.at);
    let load = Load::start(world.at);
    let mut bad = ResourceSet::clone(&rendered.resources);
    // A routes message with a virtual host for no domain, and a listener without an address, beside a good cluster.
    bad.put(
        ResourceType::Routes,
        XdsResource::new("ns/web:80", b"\x0a\x09ns/web:80\x12\x03\x0a\x01x".to_vec()),
    );
    bad.put(ResourceType::Listener, XdsResource::new("broken", b"\x0a\x06broken".to_vec()));
    control.publish(&Arc::new(bad));
    proxy.wait("two refusals", || control.streams.notices().len() == 2);
    std::thread::sleep(Duration::from_millis(300));
    let notices: Vec<String> = control.streams.notices().iter().map(ToString::to_string).collect();
    assert!(
        notices[0].contains("Envoy ns/envoy-1: ConfigurationRefused: rejected listener broken"),
        "{notices:?}"
    );
    assert!(notices[0].contains("ddress"), "Envoy's own words: {notices:?}");
    assert!(notices[1].contains("rejected routes ns/web:80"), "{notices:?}");
    let refused: u64 = control.streams.counters().values().map(|count| count.refused).sum();
    assert!((2..=4).contains(&refused), "no hot loop: {refused}");
    control.publish(&rendered.resources);
    proxy.wait("the refused routes forgotten", || control.streams.notices().is_empty());
    let (requests, failures) = load.end();
    assert_eq!(failures, [""; 0], "of {requests}");
}

#[test]
fn the_older_protocol_serves_as_well() {
    let world = World::new(1);
    let rendered = world.all();
    let control = Control::start(&rendered.resources);
    let mut settings = bootstrap(control.address);
    settings.state_of_the_world = true;
    let proxy = envoy(&settings);
    proxy.wait_for(world.at);
    assert_eq!(request(world.at, "GET", "web", "/", &[]).unwrap().status(), 200);
    assert_eq!(control.streams.streams()[0].protocol, "whole");
}

#[test]
fn a_token_or_a_certificate_lets_in_and_nothing_else_does() {
    let world = World::new(1);
    let rendered = world.all();
    let settings = XdsServerSettings { token: Some("open sesame".into()), ..XdsServerSettings::default() };
    let control = Control::start_at(free_port(), &rendered.resources, settings);
    let nobody = envoy(&bootstrap(control.address));
    nobody.wait("a client that is turned away", || control.streams.streams_opened().1 > 0);
    assert!(control.streams.streams().is_empty());
    drop(nobody);
    let mut settings = bootstrap(control.address);
    settings.token = Some("open sesame".to_owned());
    let proxy = envoy(&settings);
    proxy.wait_for(world.at);
    drop(proxy);
    assert!(XdsServerTls::new(b"nothing", b"nothing", None).is_err());
}
