//! What mode iptables costs in both flavours, beside kube-proxy's layout in the same run: load, one changed endpoint, a new
//! connection through a VIP and past all rules.
//!
//! Run it with `cargo xtask bench iptables`, as root: in a user namespace the programs of the nft flavour cannot enlarge
//! their send buffer, and the kernel refuses what they send. Each measurement is a process of its own in its own network
//! namespace. Processor time is the figure to trust, and ratios within one run more than any figure.

#![allow(unreachable_pub)]
#![allow(missing_docs, reason = "a bench")]

mod connections;
mod kubeproxy;
#[path = "../../tests/namespace.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod namespace;
#[path = "../../tests/packetflow/net.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod net;
#[path = "../nftables/usage.rs"]
#[allow(dead_code, reason = "the bench of nftables uses the rest")]
mod usage;
#[path = "../nftables/world.rs"]
#[allow(dead_code, reason = "the bench of nftables uses the rest")]
mod world;

use std::process::{Command, ExitCode};
use std::time::Duration;

use dataplane::backend::NodeBackend;
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesCommands, IptablesFlavour, IptablesPrograms};
use dataplane::iptables::render::KernelFeatures;
use model::Family;
use model::forward::ForwardingMode;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use usage::{Cost, cost, cost_of_children, ms};
use world::World;

const FLAVOURS: [IptablesFlavour; 2] = [IptablesFlavour::Legacy, IptablesFlavour::Nft];
const SIZES: [usize; 2] = [1_000, 10_000];
/// Changes of one endpoint in a measurement.
const CHANGES: usize = 5;

const USE: &str = "cargo xtask bench iptables [-- [load] [connections]]; without a name, both";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if !Uid::effective().is_root() {
        eprintln!(
            "bench iptables needs root: without it, the programs of the nft flavour cannot enlarge their send buffer"
        );
        return ExitCode::FAILURE;
    }
    match words[..] {
        ["--child", what, flavour, services] => {
            let flavour = FLAVOURS.into_iter().find(|known| known.as_str() == flavour).expect("a flavour");
            child(what, flavour, services.parse().expect("a number"));
        }
        [] => {
            loads();
            all_connections();
        }
        ["load"] => loads(),
        ["connections"] => all_connections(),
        _ => {
            eprintln!("{USE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The programs of a flavour, in the namespaces of this process.
pub(crate) fn programs(flavour: IptablesFlavour) -> IptablesPrograms {
    IptablesPrograms::of(flavour, vec![toolbox::Toolbox::own().bin()]).expect("the tools are installed")
}

pub(crate) fn world(services: usize) -> World {
    let mut world = World::new(services);
    world.table.node.mode = ForwardingMode::Iptables;
    world
}

/// Processor time of this process and of the programs that it runs.
fn all_cost(run: impl FnOnce()) -> Cost {
    let (((), children), own) = cost(|| cost_of_children(run));
    Cost { wall: own.wall, user: own.user + children.user, system: own.system + children.system }
}

/// One measurement, in this process; what it prints, the parent reads: microseconds of load and of one change.
fn child(what: &str, flavour: IptablesFlavour, services: usize) {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("root may make namespaces");
    namespace::run("ip", &["link", "set", "lo", "up"]);
    if what == "connections" {
        return connections::run(flavour, services);
    }
    let mut world = world(services);
    let (load, change) = match what {
        "ours" => ours(flavour, &mut world),
        "kube-proxy" => theirs(flavour, &mut world),
        other => panic!("no such measurement: {other}"),
    };
    println!("{} {}", load.cpu().as_micros(), (change.cpu() / CHANGES as u32).as_micros());
}

fn ours(flavour: IptablesFlavour, world: &mut World) -> (Cost, Cost) {
    let mut backend = IptablesBackend::probe(Box::new(programs(flavour)), KernelFeatures::default());
    let load = all_cost(|| drop(backend.load(&world.table).expect("the kernel takes it")));
    let change = all_cost(|| {
        for number in 0..CHANGES {
            let (key, old, new) = changed(world, number);
            world.table.replace(&key, new.clone());
            backend.change(&world.table, &[(&old, &new)]).expect("the kernel takes it");
        }
    });
    (load, change)
}

fn theirs(flavour: IptablesFlavour, world: &mut World) -> (Cost, Cost) {
    let mut programs = programs(flavour);
    let inputs = kubeproxy::load(&world.table, flavour);
    let load = all_cost(|| {
        inputs.iter().for_each(|input| programs.restore(Family::V4, input).expect("the kernel takes it"));
    });
    let change = all_cost(|| {
        for number in 0..CHANGES {
            let (key, _, new) = changed(world, number);
            world.table.replace(&key, new);
            let input = kubeproxy::change(&world.table, &key);
            programs.restore(Family::V4, &input).expect("the kernel takes it");
        }
    });
    (load, change)
}

/// A Service one endpoint of which is another one now.
fn changed(
    world: &mut World,
    number: usize,
) -> (model::ServiceKey, Vec<model::Frontend>, Vec<model::Frontend>) {
    let service = world.keys.len() / (CHANGES + 1) * (number + 1);
    let key = world.keys[service].clone();
    let old = world.table.frontends(&key).to_vec();
    let pod = world.new_pod();
    let new = world.changed(service, |endpoints| endpoints[0] = pod);
    (key, old, new)
}

fn measured(what: &str, flavour: IptablesFlavour, services: usize) -> [Duration; 2] {
    let own = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(own);
    let output = command
        .args(["--child", what, flavour.as_str(), &services.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("this program starts");
    assert!(output.status.success(), "the measurement {what} {} {services} failed", flavour.as_str());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let micros: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [load, change] = micros[..] else { panic!("unreadable: {text}") };
    [load, change].map(Duration::from_micros)
}

fn loads() {
    println!(
        "CPU ms with 10 endpoints for each Service, in turns; kube-proxy's load of the nft flavour in portions\n"
    );
    println!(
        "flavour | Services | layout     |     load | one change | ratio of load, of change, goals at 10,000"
    );
    for flavour in FLAVOURS {
        for services in SIZES {
            let ours = measured("ours", flavour, services);
            let theirs = measured("kube-proxy", flavour, services);
            let ratio = |at: usize| ours[at].as_secs_f64() / theirs[at].as_secs_f64();
            let goals = match flavour {
                IptablesFlavour::Legacy => [1.0 / 8.0, 0.4],
                IptablesFlavour::Nft => [1.0 / 3.0, 1.0 / 6.0],
            };
            let met = |at: usize| if ratio(at) <= goals[at] { "met" } else { "MISSED" };
            let row = |layout: &str, of: [Duration; 2], said: &str| {
                let (load, change) = (ms(of[0]), ms(of[1]));
                let name = flavour.as_str();
                println!("{name:<7} | {services:>8} | {layout:<10} | {load:>8.1} | {change:>10.1} | {said}");
            };
            row("kube-proxy", theirs, "");
            let said = match services {
                10_000 => format!(
                    "{:.3}, goal {:.3}: {}; {:.3}, goal {:.3}: {}",
                    ratio(0),
                    goals[0],
                    met(0),
                    ratio(1),
                    goals[1],
                    met(1)
                ),
                _ => format!("{:.3}; {:.3}", ratio(0), ratio(1)),
            };
            row("ours", ours, &said);
        }
    }
}

fn all_connections() {
    println!("\nnew connection with 10,000 Services, CPU us, and its ratio to no rules with conntrack\n");
    for flavour in FLAVOURS {
        let own = std::env::current_exe().expect("this program has a path");
        let status = Command::new(own)
            .args(["--child", "connections", flavour.as_str(), "10000"])
            .status()
            .expect("this program starts");
        assert!(status.success(), "the measurement of connections failed");
    }
}
