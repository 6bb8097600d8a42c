//! `zoneward node --accelerate=on` as a process of its own, on the real kernel, with a cgroup and a BPF file system of the
//! test.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "../../dataplane/tests/accelerator/place.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod place;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod plain_namespace;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "node_live/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

/// What the other modules of tests use, with another way in.
mod namespace {
    pub(crate) use crate::place::enter;
}

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};

use dataplane::accelerator::{AcceleratorKernel, PinnedAccelerator, pinned_folder};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;

use place::Cgroup;
use plain_namespace::run;
use world::{World, service, slice};

const TESTS: &[runner::Test] = &[(
    "sockets_are_connected_by_the_node_proxy_until_it_starts_without_the_flag",
    sockets_are_connected_by_the_node_proxy_until_it_starts_without_the_flag,
)];

fn main() -> ExitCode {
    runner::run(TESTS)
}

/// Connections that the attached program made.
fn counted() -> u64 {
    let counts = PinnedAccelerator::attached(pinned_folder()).and_then(|mut maps| maps.counts());
    counts.map_or(0, |counts| counts.iter().map(|count| count.connections).sum())
}

fn sockets_are_connected_by_the_node_proxy_until_it_starts_without_the_flag() {
    // In the mount namespace of this test.
    let none: Option<&str> = None;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).unwrap();
    let cgroup = Cgroup::enter("node");
    run("ip", &["address", "add", "10.1.0.9/32", "dev", "lo"]);
    // A connection to a cluster IP needs a route before the rules see it.
    run("ip", &["route", "add", "10.96.0.0/16", "dev", "lo"]);
    let _server = TcpListener::bind("10.1.0.9:8080").unwrap();
    let world = World::new("accelerated");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put_node("n1", "za");
    world.put(service("web", &["10.96.0.7"]));
    world.put(slice("web", &[("10.1.0.9", "")]));
    let path = cgroup.path.display().to_string();
    let mut node =
        world.node("n1", &["--proxy-mode=nftables", "--accelerate=on", "--accelerate-cgroup", &path]);
    let web: SocketAddr = "10.96.0.7:80".parse().unwrap();
    world.until("an accelerated connection", || {
        TcpStream::connect(web).is_ok_and(|stream| stream.peer_addr().unwrap() == web) && counted() > 0
    });
    assert!(world.log().contains("the eBPF accelerator is loaded"), "{}", world.log());
    let trace = ["trace", "packet", "--live", "--packet", "tcp 10.1.0.9:40000 -> 10.96.0.7:80"];
    let said = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(trace).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("socket:"), "{said}");
    assert_eq!(node.signal(Signal::SIGTERM), Some(0));
    assert!(TcpStream::connect(web).is_ok(), "while it restarts");
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("the end of the program", || !pinned_folder().exists());
}
