//! What the eBPF accelerator costs and saves: a new TCP connection through a cluster IP beside a direct one and beside the
//! rules of nftables, in turns; one changed Service; a first load.
//!
//! Run it with `cargo xtask bench accelerator`, as root: eBPF programs cannot be loaded in a user namespace. It makes
//! namespaces and two cgroups of its own. The process is in the one with the program or in the other, so that all else is
//! the same for both. Ratios within one run are the figures to trust.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

#[path = "../../tests/packetflow/net.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod net;
#[path = "../../tests/accelerator/place.rs"]
mod place;
#[path = "../../tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod plain_namespace;
#[path = "../nftables/usage.rs"]
#[allow(dead_code, reason = "another bench uses the rest")]
mod usage;
#[path = "../nftables/world.rs"]
#[allow(dead_code, reason = "another bench uses the rest")]
mod world;

mod namespace {
    pub(crate) use crate::plain_namespace::{run, run_with};
}

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::accelerator::{AccelerateScope, Accelerator, PinnedAccelerator, remove_pins};
use dataplane::backend::NodeBackend;
use dataplane::nftables::NftablesBackend;
use model::Frontend;
use net::{Neighbour, be_a_router, set};
use place::{Cgroup, pins};
use usage::{cost, cost_of_thread, ms, percentile, us};
use world::{ENDPOINTS, PORT, World, cluster_ip};

const SERVICES: usize = 11_000;
const SERVICE: usize = SERVICES / 2;
const CONNECTIONS: usize = 300;
const ROUNDS: usize = 40;
const CHANGES: usize = 1_000;
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 200, 0, 2));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 0, 2));
/// One port of the server for each way: what an older connection of another way left there must not be met again.
const PORTS: [u16; 4] = [PORT, 81, 8080, 8081];

/// How a connection goes.
#[derive(Clone, Copy)]
enum Way {
    Direct,
    DirectBesideProgram,
    Nftables,
    Accelerated,
}

impl Way {
    const ALL: [Way; 4] = [Way::Direct, Way::DirectBesideProgram, Way::Nftables, Way::Accelerated];

    fn as_str(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::DirectBesideProgram => "direct, program attached",
            Way::Nftables => "cluster IP by nftables",
            Way::Accelerated => "cluster IP by eBPF",
        }
    }

    fn has_program(self) -> bool {
        matches!(self, Way::DirectBesideProgram | Way::Accelerated)
    }

    /// Where it connects to.
    fn target(self) -> SocketAddr {
        match self {
            Way::Direct | Way::DirectBesideProgram => SocketAddr::new(SERVER, PORTS[self as usize]),
            Way::Nftables => SocketAddr::from((cluster_ip(SERVICE), PORT)),
            Way::Accelerated => SocketAddr::from((cluster_ip(SERVICE + 1), PORT)),
        }
    }
}

#[derive(Default)]
struct Measured {
    /// Processor time per connection, of each round.
    cpu: Vec<Duration>,
    /// Time of each connect().
    connect: Vec<Duration>,
}

fn main() {
    place::enter();
    let other = Cgroup::enter("bare");
    let cgroup = Cgroup::enter("program");
    let mut world = World::new(SERVICES);
    world.lead_to(SERVICE, SocketAddr::new(SERVER, PORTS[Way::Nftables as usize]));
    world.lead_to(SERVICE + 1, SocketAddr::new(SERVER, PORTS[Way::Accelerated as usize]));
    be_a_router(&[]);
    NftablesBackend::open().unwrap().load(&world.table).unwrap();
    let kernel = PinnedAccelerator::new(pins(), &cgroup.path);
    let mut accelerator =
        Accelerator::new(Box::new(kernel), AccelerateScope::AllNamespaces, Duration::from_secs(3600));
    let (_, load) = cost(|| accelerator.load(&world.table).unwrap());
    println!(
        "first load of {} endpoints: {:.1} ms, {:.1} ms of CPU",
        SERVICES * ENDPOINTS,
        ms(load.wall),
        ms(load.cpu())
    );
    change(&mut accelerator, &mut world);
    connections(&cgroup, &other);
    remove_pins(pins(), false).unwrap();
    drop(cgroup);
    drop(other);
}

/// One endpoint of one Service replaced, again and again.
fn change(accelerator: &mut Accelerator, world: &mut World) {
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let service = number % SERVICES;
        let old: Vec<Frontend> = world.table.frontends(&world.keys[service]).to_vec();
        let pod = world.new_pod();
        let new = world.changed(service, |endpoints| endpoints[0] = pod);
        world.table.replace(&world.keys[service].clone(), new.clone());
        let start = Instant::now();
        accelerator.change(&world.table, &[(&old, &new)]).unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    println!(
        "one change: {:.1} us p50, {:.1} us p99",
        us(percentile(&times, 500)),
        us(percentile(&times, 990))
    );
}

fn connections(cgroup: &Cgroup, other: &Cgroup) {
    let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
    clients.add_address(CLIENT);
    servers.add_address(SERVER);
    let from = CLIENT.to_string();
    clients.within(move || {
        namespace::run("ip", &["-4", "route", "change", "default", "via", "169.254.1.1", "src", &from])
    });
    clients.within(|| set("net/ipv4/ip_local_port_range", "1024 65535"));
    let listen = |port| Arc::new(TcpListener::bind((SERVER, port)).expect("the port is free"));
    let listeners = servers.within(move || PORTS.map(listen));
    let mut all = Way::ALL.map(|way| (way, Measured::default()));
    for _ in 0..ROUNDS {
        for (way, measured) in &mut all {
            if way.has_program() {
                cgroup.join()
            } else {
                other.join()
            }
            let (to, listener) = (way.target(), listeners[*way as usize].clone());
            let (times, spent) = clients.within(move || {
                cost_of_thread(|| (0..CONNECTIONS).map(|_| connect(to, &listener)).collect::<Vec<_>>())
            });
            measured.cpu.push(spent.cpu() / CONNECTIONS as u32);
            measured.connect.extend(times);
        }
    }
    let figures = all.map(|(way, mut measured)| {
        measured.cpu.sort();
        measured.connect.sort();
        (way, us(percentile(&measured.cpu, 500)), us(percentile(&measured.connect, 500)))
    });
    let (_, cpu, p50) = figures[0];
    println!(
        "{:<26} {:>8} {:>7} {:>12} {:>7}",
        "new TCP connection", "CPU us", "ratio", "connect p50", "ratio"
    );
    for (way, its_cpu, its_p50) in figures {
        println!(
            "{:<26} {its_cpu:>8.2} {:>7.3} {its_p50:>12.2} {:>7.3}",
            way.as_str(),
            its_cpu / cpu,
            its_p50 / p50
        );
    }
}

/// The time of connect().
fn connect(to: SocketAddr, listener: &TcpListener) -> Duration {
    let start = Instant::now();
    let client = TcpStream::connect(to).expect("the server answers");
    let time = start.elapsed();
    let (server, _) = listener.accept().expect("the connection is there");
    drop(server);
    drop(client);
    time
}
