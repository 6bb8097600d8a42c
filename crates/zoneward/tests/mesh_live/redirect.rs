//! A sidecar that the kernel feeds: clients connect to a Service's address and know of nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fixtures::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::mesh_live::world::{Machine, Running, Seen, Upstream, ask, body, route, way_out};
use crate::namespace::run;

fn tables() -> String {
    run("nft", &["list", "tables"])
}

fn start(machine: &Machine) -> Running {
    machine.proxy("sidecar", &["--from", "frontend", "--redirect", "--node", "node-a"])
}

#[test]
fn kernel_sends_connections_to_services_into_the_sidecar() {
    toolbox::in_own_namespaces!();
    way_out();
    let (one, two) = (Upstream::start("one", "10.1.0.1"), Upstream::start("two", "fd00:1::2"));
    let machine = Machine::up("redirect-sidecar", &["--no-mesh"]);
    machine.expose("backend", &[one.address.clone(), two.address.clone()]);
    let mut sidecar = start(&machine);
    let vips = machine.vips("backend");
    assert_eq!(vips.len(), 2, "both families: {vips:?}");
    for vip in &vips {
        eventually("an answer by the Service's address", || body(vip, "/").is_some());
    }
    // Routes count, and other Services are not touched.
    let teapot = json!([{"matches": [{"path": {"type": "Prefix", "value": "/tea"}}], "default": {"filters": [
        {"type": "DirectResponse", "directResponse": {"status": 418}}]}}]);
    machine.apply(&route("tea", "backend", teapot));
    eventually("the route", || {
        ask(&vips[0], "backend", "/tea", "").is_some_and(|answer| answer.status == 418)
    });
    // A port that speaks no HTTP is carried whole.
    let echo = TcpListener::bind("10.1.0.1:9000").unwrap();
    std::thread::spawn(move || {
        for mut stream in echo.incoming().map_while(Result::ok) {
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    machine.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "raw"},
        "spec": {"ports": [{"name": "tcp", "port": 80}]}}));
    machine.apply(
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "raw-1", "labels": {"kubernetes.io/service-name": "raw"}},
        "ports": [{"name": "tcp", "port": 9000}], "endpoints": [{"addresses": ["10.1.0.1"]}]}),
    );
    let raw = machine.vips("raw").remove(0).parse().unwrap();
    eventually("bytes both ways", || {
        let Ok(mut stream) = TcpStream::connect_timeout(&raw, Duration::from_millis(500)) else {
            return false;
        };
        let mut bytes = [0; 5];
        let sent = stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut bytes));
        sent.is_ok() && bytes == *b"hello"
    });
    // A Service that goes is redirected no longer.
    let gone = machine.vips("raw").remove(0);
    machine.delete(&json!({"kind": "Service", "metadata": {"name": "raw"}}));
    let (address, _) = gone.rsplit_once(':').unwrap();
    eventually("the end of the redirect", || !run("nft", &["list", "ruleset"]).contains(address));
    assert!(tables().contains("zoneward-mesh"));
    assert_eq!(sidecar.stop(), Some(0));
    assert!(!tables().contains("zoneward-mesh"), "nothing is left: {}", tables());
}

/// The endpoint has the Service's own address and port: what the sidecar dials is what the kernel redirects. As root of its
/// namespace the sidecar shares its user with its clients, so only the mark tells the two apart.
#[test]
fn sidecars_own_connections_are_left_alone_by_their_mark() {
    toolbox::in_own_namespaces!();
    way_out();
    let machine = Machine::up("redirect-own", &["--no-mesh"]);
    machine.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"},
        "spec": {"ports": [{"name": "http", "port": 8080}]}}));
    let found = machine.read("/api/v1/namespaces/default/services/own");
    let vip = found["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let own = Upstream::start("own", &vip);
    machine.apply(
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "own-1", "labels": {"kubernetes.io/service-name": "own"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [vip]}]}),
    );
    let header = json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {"filters": [
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "x-hop", "value": "1"}]}}]}}]);
    machine.apply(&route("hop", "own", header));
    let mut sidecar = start(&machine);
    let hops = || own.seen().last().and_then(|seen| seen.headers.get("x-hop").cloned());
    eventually("an answer by way of the sidecar", || {
        body(&own.address, "/").is_some() && hops().as_deref() == Some("1")
    });
    let before = own.seen().len();
    for _ in 0..50 {
        assert_eq!(body(&own.address, "/").as_deref(), Some("own"));
    }
    assert_eq!(own.seen().len() - before, 50);
    let rules = run("nft", &["list", "ruleset"]);
    assert!(rules.contains("meta mark 0x00007a6d") && !rules.contains("skuid"), "{rules}");
    assert_eq!(sidecar.stop(), Some(0));
}

/// The collector is a Service, whose connections the kernel redirects: without the mark, each export would be a request of
/// the sidecar, with spans of its own.
#[test]
fn exports_of_spans_make_no_spans() {
    toolbox::in_own_namespaces!();
    way_out();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("redirect-spans", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    machine.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "collector"},
        "spec": {"ports": [{"name": "http", "port": 8080}]}}));
    let found = machine.read("/api/v1/namespaces/default/services/collector");
    let vip = found["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let collector = Upstream::start("collector", &vip);
    machine.apply(
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "collector-1", "labels": {"kubernetes.io/service-name": "collector"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [vip]}]}),
    );
    let endpoint = format!("http://{}", collector.address);
    let words = ["--from", "frontend", "--redirect", "--node", "node-a", "--otlp-endpoint", &endpoint];
    let mut sidecar = machine.proxy("sidecar", &words);
    // Both Services are redirected; requests by way of the sidecar belong to a trace.
    let is_traced = |seen: &[Seen]| seen.last().is_some_and(|seen| seen.headers.contains_key("traceparent"));
    let backend = machine.vips("backend").remove(0);
    eventually("a traced request", || body(&backend, "/").is_some() && is_traced(&one.seen()));
    eventually("a traced request to the collector", || {
        body(&collector.address, "/").is_some()
            && collector.seen().iter().any(|seen| is_traced(std::slice::from_ref(seen)))
    });
    let exports =
        || collector.seen().into_iter().filter(|seen| seen.path == "/v1/traces").collect::<Vec<_>>();
    eventually("an export", || !exports().is_empty());
    std::thread::sleep(Duration::from_secs(2));
    let before = exports().len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(exports().len(), before, "exports end when requests do");
    assert!(exports().iter().all(|seen| !seen.headers.contains_key("traceparent")));
    assert_eq!(sidecar.stop(), Some(0));
}

#[test]
fn cleanup_removes_what_a_killed_sidecar_left() {
    toolbox::in_own_namespaces!();
    way_out();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up("redirect-cleanup", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&one.address));
    let mut sidecar = start(&machine);
    let vip = machine.vips("backend").remove(0);
    eventually("an answer by the Service's address", || body(&vip, "/").is_some());
    sidecar.signal(Signal::SIGKILL);
    sidecar.child.wait().unwrap();
    assert!(tables().contains("zoneward-mesh"));
    // Whoever starts again goes on with what is there.
    let mut again = start(&machine);
    eventually("an answer after the kill", || body(&vip, "/").is_some());
    again.signal(Signal::SIGKILL);
    again.child.wait().unwrap();
    let mut cleanup = std::process::Command::new(env!("CARGO_BIN_EXE_zoneward"));
    let cleaned = cleanup.arg("cleanup").env("PATH", toolbox::search_path()).output().unwrap();
    assert!(cleaned.status.success(), "{cleaned:?}");
    let said = String::from_utf8_lossy(&cleaned.stdout).into_owned();
    assert!(said.contains("removed nftables table ip zoneward-mesh"), "{said}");
    assert!(!tables().contains("zoneward-mesh"));
}
