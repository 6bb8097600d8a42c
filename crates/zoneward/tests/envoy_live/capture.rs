//! A sidecar that the kernel feeds: `mesh bootstrap --capture`, clients that know of nothing, and Services of both
//! families.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use fixtures::eventually;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::json;

use crate::envoy_live::control::{Control, Load, envoy};
use crate::mesh_live::world::{Machine, Upstream, add_address, ask, body, route, way_out};
use crate::namespace::{run, run_with};

/// The guide's redirect. There is one user in this namespace, so Envoy's own connections are told by where they go, and
/// those of a client to elsewhere by where they come from.
const REDIRECT: &str = "
table ip mesh {
    chain out {
        type nat hook output priority -100;
        ip daddr 10.96.0.0/16 meta l4proto tcp redirect to :15001
        ip saddr 10.9.0.77 meta l4proto tcp redirect to :15001
    }
}
table ip6 mesh {
    chain out {
        type nat hook output priority -100;
        ip6 daddr fd00::/8 ip6 daddr != fd00:1::/64 meta l4proto tcp redirect to :15001
    }
}
";

/// Repeats what it hears.
fn repeater(at: &str) {
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut from = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut from, &mut stream);
            });
        }
    });
}

fn repeats(mut stream: TcpStream) -> bool {
    let mut bytes = [0; 5];
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let sent = stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut bytes));
    sent.is_ok() && bytes == *b"hello"
}

/// A connection from an address of the own choice.
fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> nix::Result<TcpStream> {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(socket))
}

#[test]
fn connections_that_the_kernel_redirects_find_their_way() {
    toolbox::in_own_namespaces!();
    way_out();
    run("ip", &["address", "add", "10.9.0.77/32", "dev", "out0"]);
    let (one, two) = (Upstream::start("one", "10.1.0.1"), Upstream::start("two", "fd00:1::2"));
    let machine = Machine::up("envoy-capture", &["--no-mesh"]);
    machine.expose("backend", &[one.address.clone(), two.address.clone()]);
    let control = Control::start(&machine, &[]);
    let envoy = envoy(&["--from", "frontend", "--capture"]);
    envoy.wait_for("127.0.0.1:15001".parse().unwrap());
    envoy.wait_for("[::1]:15001".parse().unwrap());
    let vips = machine.vips("backend");
    assert_eq!(vips.len(), 2, "both families: {vips:?}");
    assert!(vips[0].starts_with("10.96."), "the range of the guide: {vips:?}");
    run_with("nft", &["-f", "-"], REDIRECT);
    for vip in &vips {
        eventually("an answer by the Service's address", || body(vip, "/").is_some());
    }
    let load = Load::start(vips[0].parse().unwrap());
    // Routes count.
    let teapot = json!([{"matches": [{"path": {"type": "Prefix", "value": "/tea"}}], "default": {"filters": [
        {"type": "DirectResponse", "directResponse": {"status": 418}}]}}]);
    machine.apply(&route("tea", "backend", teapot));
    for vip in &vips {
        eventually("the route", || {
            ask(vip, "backend", "/tea", "").is_some_and(|answer| answer.status == 418)
        });
    }
    // A port that speaks no HTTP is carried whole, and a Service that comes later is found.
    repeater("10.1.0.1:9000");
    let listeners = || control.metric("zoneward_xds_resources_accepted_total{kind=\"listener\"}");
    let before = listeners();
    machine.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "raw"},
        "spec": {"ports": [{"name": "tcp", "port": 80}]}}));
    machine.apply(
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "raw-1", "labels": {"kubernetes.io/service-name": "raw"}},
        "ports": [{"name": "tcp", "port": 9000}], "endpoints": [{"addresses": ["10.1.0.1"]}]}),
    );
    let raw = machine.vips("raw").remove(0);
    // Whoever connects earlier is passed on by Envoy, and in this namespace redirected to it again and again.
    eventually("the listener", || listeners() > before);
    std::thread::sleep(Duration::from_millis(300));
    eventually("bytes both ways", || TcpStream::connect(&raw).is_ok_and(repeats));
    // What is for no Service goes where it was going.
    add_address("10.2.0.5".parse().unwrap());
    repeater("10.2.0.5:7000");
    let elsewhere = SocketAddrV4::new([10, 2, 0, 5].into(), 7000);
    let before = passed();
    let stream = connect_from([10, 9, 0, 77].into(), elsewhere).unwrap();
    assert!(repeats(stream.try_clone().unwrap()));
    // While it is open: a closed connection is in the table for a while, or not at all.
    assert!(passed() > before, "by way of Envoy: {}", run("nft", &["list", "ruleset"]));
    drop(stream);
    load.wait_for(50);
    assert!(load.end() > 50);
    assert_eq!(control.metric("zoneward_xds_resources_refused"), 0);
}

/// Connections that Envoy has opened or has to the place that is no Service.
fn passed() -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Little endian: 10.2.0.5, port 7000.
    table.lines().filter(|line| line.contains("0500020A:1B58")).count()
}
