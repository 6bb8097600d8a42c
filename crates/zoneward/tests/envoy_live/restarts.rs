//! Who begins anew: the server of Envoys, an Envoy beside another, and an Envoy that hands over to the next.

use std::process::Command;

use fixtures::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::envoy_live::control::{Control, Load, bootstrap, envoy};
use crate::mesh_live::world::{Machine, Upstream, body, route};
use crate::process::Envoy;

const AT: &str = "127.0.0.1:8081";
const OTHER: &str = "127.0.0.1:8082";

fn answers(name: &str) -> serde_json::Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/who"}}], "default": {"filters": [
        {"type": "DirectResponse", "directResponse": {"status": 200, "body": {"inlineString": name}}}]}}])
}

#[test]
fn mesh_control_begins_anew_and_nothing_fails_or_is_sent_again() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("envoy-control", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    machine.apply(&route("who", "backend", answers("first")));
    let mut control = Control::start(&machine, &[]);
    let envoy = envoy(&["--from", "frontend", "--outbound", "8081=backend"]);
    envoy.wait_for(AT.parse().unwrap());
    eventually("the first answer", || body(AT, "/").is_some());
    assert_eq!(control.sent(), 4, "a cluster, its endpoints, a listener, its routes");
    let load = Load::start(AT.parse().unwrap());
    for (signal, next) in [(Signal::SIGKILL, "second"), (Signal::SIGTERM, "third")] {
        control.running.signal(signal);
        control.running.child.wait().unwrap();
        load.wait_for(100);
        control = Control::start(&machine, &[]);
        eventually("the stream again", || control.streams() == 1);
        load.wait_for(200);
        assert_eq!(control.sent(), 0, "{signal}: it has everything");
        // A change reaches it, and nothing else goes with it.
        machine.apply(&route("who", "backend", answers(next)));
        eventually("the change", || body(AT, "/who").as_deref() == Some(next));
        assert_eq!(control.sent(), 1, "{signal}: the changed routes");
    }
    assert!(load.end() > 600);
}

#[test]
fn an_envoy_begins_anew_with_everything_once_and_the_other_notices_nothing() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("envoy-again", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    machine.apply(&route("who", "backend", answers("first")));
    let control = Control::start(&machine, &[]);
    let start = |port: &str| envoy(&["--from", "frontend", "--outbound", port, "--id", port]);
    let (first, second) = (start("8081=backend"), start("8082=backend"));
    first.wait_for(AT.parse().unwrap());
    second.wait_for(OTHER.parse().unwrap());
    eventually("both", || body(AT, "/").is_some() && body(OTHER, "/").is_some());
    assert_eq!(control.sent(), 8);
    let load = Load::start(OTHER.parse().unwrap());
    drop(first);
    eventually("one stream", || control.streams() == 1);
    // What changed while it was away is what it gets.
    machine.apply(&route("who", "backend", answers("second")));
    eventually("the other's change", || body(OTHER, "/who").as_deref() == Some("second"));
    assert_eq!(control.sent(), 9);
    let first = start("8081=backend");
    first.wait_for(AT.parse().unwrap());
    assert_eq!(body(AT, "/who").as_deref(), Some("second"));
    assert_eq!(body(AT, "/").as_deref(), Some("one"));
    load.wait_for(100);
    assert_eq!(control.sent(), 13, "everything once, for the one that came; nothing for the other");
    assert!(load.end() > 100);
}

#[test]
fn an_envoy_hands_its_ports_to_the_next_one_without_a_failed_request() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("envoy-handover", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    machine.apply(&route("who", "backend", answers("first")));
    let control = Control::start(&machine, &[]);
    let bootstrap = bootstrap(&["--from", "frontend", "--outbound", "8081=backend"]);
    // One number for both, and for nobody else on this machine.
    let base = (std::process::id() % 60_000).to_string();
    let start = |epoch: &str| {
        let words = ["--base-id", &base, "--restart-epoch", epoch, "--parent-shutdown-time-s", "2"];
        Envoy::start_by(Command::new(Envoy::program()), &bootstrap, "yaml", &words)
    };
    let mut old = start("0");
    old.wait_for(AT.parse().unwrap());
    eventually("the first answer", || body(AT, "/").is_some());
    let load = Load::start(AT.parse().unwrap());
    let next = start("1");
    eventually("the end of the old one", || old.is_over());
    eventually("one stream", || control.streams() == 1);
    load.wait_for(100);
    machine.apply(&route("who", "backend", answers("second")));
    next.wait("the change", || body(AT, "/who").as_deref() == Some("second"));
    assert_eq!(control.sent(), 9, "everything once for each, and the change");
    assert!(load.end() > 200);
}
