//! What the nftables data plane costs: the full load beside its floor and beside kube-proxy's layout, one changed
//! endpoint, memory, and a connection through a VIP.
//!
//! Run it with `cargo xtask bench nftables`. Each measurement is a process of its own in its own user and network
//! namespaces, without root; no rule of the machine is touched. Processor time is the figure to trust, and ratios
//! within one run more than any figure.

#![allow(unreachable_pub)]
#![allow(missing_docs, reason = "a bench")]

mod allocation;
mod changes;
mod kubeproxy;
mod load;
mod memory;
#[path = "../../tests/namespace.rs"]
mod namespace;
#[path = "../../tests/packetflow/net.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod net;
mod packets;
mod report;
mod restart;
mod usage;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::Kernel;
use kubeproxy::Layout;
use nix::sched::{CloneFlags, unshare};
use usage::Cost;
use world::{ENDPOINTS, Shape, World};

#[global_allocator]
static COUNTING: allocation::Counting = allocation::Counting;

const USE: &str = "\
cargo xtask bench nftables [-- [load] [changes] [restart] [memory] [connections] [--kube-proxy-10000]]
    without a name, all five; --kube-proxy-10000 loads kube-proxy's layout at 10,000 Services too (minutes)";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["--child", name, number] = words[..] {
        let (name, shape) = name.split_once('/').unwrap_or((name, "ipv4"));
        let shape = Shape::ALL.into_iter().find(|known| known.as_str() == shape).expect("a shape");
        child(name, shape, number.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let known =
        |word: &&str| *word == "--kube-proxy-10000" || report::SECTIONS.iter().any(|(n, _)| n == word);
    if let Some(word) = words.iter().find(|word| !known(word)) {
        eprintln!("`{word}` is not known\n{USE}");
        return ExitCode::from(2);
    }
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        count();
    } else {
        report::run(&words);
    }
    ExitCode::SUCCESS
}

/// Our own side alone, each part once, for callgrind.
fn count() {
    let wanted = std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|n| n.parse().ok());
    let services: usize = wanted.unwrap_or(1_000);
    let mut world = World::new(services);
    println!("world: {services} services, {} endpoints", services * ENDPOINTS);
    let mut sink = load::Sink::default();
    let (mut renderer, _) = load::phase_load(&mut sink, &world);
    println!("{} bytes of messages", sink.bytes);
    for (service, new) in changes::new_frontends(changes::Kind::Replaced, &mut world) {
        changes::phase_one_change(&mut renderer, &world, service, &new);
    }
    println!("one_change is {} changes", changes::CHANGES);
}

/// One measurement, in this process. What it prints, `report` reads.
fn child(name: &str, shape: Shape, number: usize) {
    if let Some(layout) = Layout::ALL.into_iter().find(|layout| layout.measurement() == name) {
        say(&kube_proxy(layout, number), &[]);
        return until_input_ends();
    }
    namespace::enter();
    match name {
        "ours" | "floor" => {
            let load = if name == "ours" { load::ours } else { load::floor };
            let loaded = load(number, shape);
            let [own, swept] = [loaded.own.cpu(), loaded.swept].map(|time| time.as_micros() as usize);
            say(&loaded.cost, &[loaded.elements, loaded.transactions, own, swept]);
            until_input_ends();
        }
        "changes" => {
            for (kind, timed) in changes::run(number, shape) {
                report::change(number, shape, kind, &timed);
            }
        }
        "restart" => report::restart(number, &restart::run(number)),
        "memory" => report::memory(&memory::run(number)),
        "connections" => report::connections(&packets::measure()),
        _ => panic!("no such measurement: {name}"),
    }
}

/// nft wants to send all in one piece and for that a buffer that only the machine's root gets; it has a network
/// namespace of its own then, too. Without root, the Services go in pieces that fit.
fn kube_proxy(layout: Layout, services: usize) -> Cost {
    const BYTES_PER_SERVICE: usize = 16 << 10;
    let longest = || NetlinkSocket::open().map_or(0, |socket| socket.longest_batch());
    if unshare(CloneFlags::CLONE_NEWNET).is_err() || longest() < 32 << 20 {
        namespace::enter();
        return kubeproxy::load(layout, services, (longest() / BYTES_PER_SERVICE).max(1));
    }
    kubeproxy::load(layout, services, services)
}

/// The namespace and what was loaded into it stay as long as `report` wants.
fn until_input_ends() {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("input can be read");
}

fn say(cost: &Cost, more: &[usize]) {
    let micros = |time: Duration| time.as_micros() as usize;
    let figures = [micros(cost.wall), micros(cost.user), micros(cost.system)];
    let words: Vec<String> = figures.iter().chain(more).map(usize::to_string).collect();
    println!("{}", words.join(" "));
}
