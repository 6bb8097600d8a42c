//! What a new TCP connection costs: client, node and server in namespaces of their own, one thread, so that its processor
//! time is that of the whole connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};

use dataplane::backend::NodeBackend;
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesCommands, IptablesFlavour};
use dataplane::iptables::render::KernelFeatures;
use model::Family;
use nix::sched::{CloneFlags, unshare};

use crate::kubeproxy;
use crate::namespace::{run as run_tool, run_with};
use crate::net::{Neighbour, be_a_router, set};
use crate::usage::{cost_of_thread, us};
use crate::world::{PORT, cluster_ip};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 200, 0, 2));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 0, 2));
const BEHIND_VIP: u16 = 8080;
const ROUNDS: usize = 30;
const CONNECTIONS: usize = 300;
/// Conntrack works as soon as a rule asks for it, even in a chain that no packet sees.
const CONNTRACK: &str =
    "add table ip watch\nadd chain ip watch unused\nadd rule ip watch unused ct state new accept\n";

/// What a node has.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    None,
    Ours,
    KubeProxy,
}

struct Site {
    clients: Neighbour,
    listeners: [(u16, Arc<TcpListener>); 2],
    _servers: Neighbour,
    _node: mpsc::Sender<()>,
}

impl Site {
    fn new(rules: Rules, flavour: IptablesFlavour, services: usize) -> Site {
        let (say, hear) = mpsc::channel();
        let (node, end) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace within our own");
            be_a_router(&[]);
            let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
            clients.add_address(CLIENT);
            servers.add_address(SERVER);
            let from = CLIENT.to_string();
            clients.within(move || {
                run_tool("ip", &["-4", "route", "change", "default", "via", "169.254.1.1", "src", &from])
            });
            clients.within(|| set("net/ipv4/ip_local_port_range", "1024 65535"));
            let listen = |port| Arc::new(TcpListener::bind((SERVER, port)).expect("the port is free"));
            let listeners = servers.within(move || [PORT, BEHIND_VIP].map(|port| (port, listen(port))));
            load(rules, flavour, services);
            say.send((clients, servers, listeners)).expect("the bench waits for this");
            let _ = end.recv();
        });
        let (clients, servers, listeners) = hear.recv().expect("the site stands");
        Site { clients, listeners, _servers: servers, _node: node }
    }

    /// Processor time of one connection, in microseconds.
    fn connect(&self, to: SocketAddr, arrives_at: u16) -> f64 {
        let listener = self.listeners.iter().find(|(port, _)| *port == arrives_at);
        let listener = listener.map(|(_, listener)| Arc::clone(listener)).expect("a port that is served");
        let round = move || {
            for _ in 0..CONNECTIONS {
                let client = TcpStream::connect(to).expect("the server answers");
                let (server, _) = listener.accept().expect("the connection is there");
                drop(server);
                drop(client);
            }
        };
        us(self.clients.within(move || cost_of_thread(round).1).cpu()) / CONNECTIONS as f64
    }
}

fn load(rules: Rules, flavour: IptablesFlavour, services: usize) {
    let mut world = crate::world(services);
    world.lead_to(services / 2, SocketAddr::new(SERVER, BEHIND_VIP));
    match rules {
        Rules::None => drop(run_with("nft", &["-f", "-"], CONNTRACK)),
        Rules::Ours => {
            let mut backend =
                IptablesBackend::probe(Box::new(crate::programs(flavour)), KernelFeatures::default());
            backend.load(&world.table).expect("the kernel takes it");
        }
        Rules::KubeProxy => {
            let mut programs = crate::programs(flavour);
            for input in kubeproxy::load(&world.table, flavour) {
                programs.restore(Family::V4, &input).expect("the kernel takes it");
            }
        }
    }
}

/// Prints the median of the rounds of each way, in turns.
pub(crate) fn run(flavour: IptablesFlavour, services: usize) {
    let [none, ours, theirs] =
        [Rules::None, Rules::Ours, Rules::KubeProxy].map(|rules| Site::new(rules, flavour, services));
    let (vip, direct) = (SocketAddr::from((cluster_ip(services / 2), PORT)), SocketAddr::new(SERVER, PORT));
    let ways = [
        ("no rules", &none, direct, PORT, None),
        ("VIP, ours", &ours, vip, BEHIND_VIP, Some(if flavour == IptablesFlavour::Nft { 1.6 } else { 1.5 })),
        ("VIP, kube-proxy's", &theirs, vip, BEHIND_VIP, None),
        ("other traffic, ours", &ours, direct, PORT, Some(1.25)),
        ("other traffic, kube-proxy's", &theirs, direct, PORT, None),
    ];
    let mut rounds = ways.each_ref().map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (times, (_, site, to, port, _)) in rounds.iter_mut().zip(&ways) {
            times.push(site.connect(*to, *port));
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians = rounds.each_mut().map(median);
    for ((name, _, _, _, goal), time) in ways.iter().zip(medians) {
        let ratio = time / medians[0];
        let said = goal.map_or(String::new(), |goal| {
            format!(", goal {goal}: {}", if ratio <= goal { "met" } else { "MISSED" })
        });
        println!("{:<6} | {name:<27} | {time:>7.1} | {ratio:.2}{said}", flavour.as_str());
    }
}
