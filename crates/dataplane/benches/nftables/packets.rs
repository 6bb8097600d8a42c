//! What a new TCP connection costs: client, node and server in namespaces of their own, joined by pairs of interfaces.
//!
//! Each way to set a node up is a site with neighbours of its own, all of them there at once, so that rounds can
//! alternate. One thread connects, accepts and closes: a packet crosses all three namespaces within its system calls,
//! so that the thread's processor time is that of the whole connection, and nothing waits for a scheduler.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dataplane::nfnetlink::NetlinkSocket;
use nix::sched::{CloneFlags, unshare};

use crate::load::phase_load;
use crate::namespace::{run, run_with};
use crate::net::{Neighbour, be_a_router, set};
use crate::usage::{Cost, cost_of_thread};
use crate::world::{PORT, World, cluster_ip};

/// Services of the node.
pub(crate) const SERVICES: usize = 10_000;
/// Connections of each way in a round: few, so that what else the machine does meets all ways alike.
pub(crate) const CONNECTIONS: usize = 500;
pub(crate) const ROUNDS: usize = 50;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 200, 0, 2));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 0, 2));
/// Behind the VIP. Not the port of direct connections: a client's port must not meet itself at the server.
const BEHIND_VIP: u16 = 8080;
/// The Service whose only endpoint is the server; one in the middle.
const SERVICE: usize = SERVICES / 2;

/// Conntrack works as soon as a rule asks for it, even in a chain that no packet sees.
const CONNTRACK: &str = "\
add table ip watch
add chain ip watch unused
add rule ip watch unused ct state new accept
";

/// The least that changing an address takes: one rule and nothing else.
fn one_rule() -> String {
    let vip = cluster_ip(SERVICE);
    format!(
        "\
add table ip one
add chain ip one prerouting {{ type nat hook prerouting priority -100 ; }}
add chain ip one postrouting {{ type nat hook postrouting priority 100 ; }}
add rule ip one prerouting ip daddr {vip} tcp dport {PORT} dnat to {SERVER}:{BEHIND_VIP}
"
    )
}

/// How a connection goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Direct,
    DirectWithConntrack,
    DirectBesideRules,
    ThroughOneRule,
    ThroughVipUncounted,
    ThroughVip,
}

impl Way {
    pub(crate) const ALL: [Way; 6] = [
        Way::Direct,
        Way::DirectWithConntrack,
        Way::DirectBesideRules,
        Way::ThroughOneRule,
        Way::ThroughVipUncounted,
        Way::ThroughVip,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Way::Direct => "direct, no conntrack",
            Way::DirectWithConntrack => "direct, conntrack on",
            Way::DirectBesideRules => "direct, our rules loaded",
            Way::ThroughOneRule => "one DNAT rule, no map",
            Way::ThroughVipUncounted => "through a VIP, uncounted",
            Way::ThroughVip => "through a VIP",
        }
    }
}

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// Opened and closed.
    Bare,
    /// With one request and one answer.
    Exchange,
}

/// What a connection took in each round, the cheapest first.
pub(crate) struct Rounds {
    pub(crate) what: What,
    pub(crate) way: Way,
    pub(crate) costs: Vec<Cost>,
}

/// Connects in each way in turn.
pub(crate) fn measure() -> Vec<Rounds> {
    let plain = Site::new(|| None);
    let tracked = Site::new(|| {
        run_with("nft", &["-f", "-"], CONNTRACK);
        None
    });
    let one_rule = Site::new(|| {
        run_with("nft", &["-f", "-"], &one_rule());
        None
    });
    let uncounted = Site::new(|| {
        let kernel = load_services();
        for chain in ["count-passing", "count-arriving"] {
            run("nft", &["delete", "chain", "ip", "zoneward", chain]);
        }
        Some(kernel)
    });
    let ours = Site::new(|| Some(load_services()));
    let vip = SocketAddr::from((cluster_ip(SERVICE), PORT));
    let direct = SocketAddr::new(SERVER, PORT);
    let mut measured = Vec::new();
    for what in [What::Bare, What::Exchange] {
        let mut all = Way::ALL.map(|way| Rounds { what, way, costs: Vec::with_capacity(ROUNDS) });
        for _ in 0..ROUNDS {
            for rounds in &mut all {
                rounds.costs.push(match rounds.way {
                    Way::Direct => plain.connect(direct, PORT, what),
                    Way::DirectWithConntrack => tracked.connect(direct, PORT, what),
                    Way::DirectBesideRules => ours.connect(direct, PORT, what),
                    Way::ThroughOneRule => one_rule.connect(vip, BEHIND_VIP, what),
                    Way::ThroughVipUncounted => uncounted.connect(vip, BEHIND_VIP, what),
                    Way::ThroughVip => ours.connect(vip, BEHIND_VIP, what),
                });
            }
        }
        all.iter_mut().for_each(|rounds| rounds.costs.sort_by_key(Cost::cpu));
        measured.extend(all);
    }
    measured
}

fn load_services() -> NetlinkSocket {
    let mut world = World::new(SERVICES);
    world.lead_to(SERVICE, SocketAddr::new(SERVER, BEHIND_VIP));
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    phase_load(&mut kernel, &world);
    kernel
}

/// A node with a client and a server next door.
struct Site {
    clients: Neighbour,
    /// By port.
    listeners: [(u16, Arc<TcpListener>); 2],
    /// The server's namespace goes with this, the node's with the other.
    _servers: Neighbour,
    _node: mpsc::Sender<()>,
}

impl Site {
    /// Makes the namespaces; `set_up` runs in the node's.
    fn new(set_up: impl FnOnce() -> Option<NetlinkSocket> + Send + 'static) -> Site {
        let (say, hear) = mpsc::channel();
        let (node, end) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace within our own");
            be_a_router(&[]);
            let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
            clients.add_address(CLIENT);
            servers.add_address(SERVER);
            // The client is a pod, and says so: others would be masqueraded.
            let from = CLIENT.to_string();
            clients.within(move || {
                run("ip", &["-4", "route", "change", "default", "via", "169.254.1.1", "src", &from])
            });
            // Each connection of a way has a port of its own: none waits for the end of an older one.
            clients.within(|| set("net/ipv4/ip_local_port_range", "1024 65535"));
            let listen = |port| Arc::new(TcpListener::bind((SERVER, port)).expect("the port is free"));
            let listeners = servers.within(move || [PORT, BEHIND_VIP].map(|port| (port, listen(port))));
            let kernel = set_up();
            say.send((clients, servers, listeners)).expect("the bench waits for this");
            // The namespace lives as long as this thread.
            let _ = end.recv();
            drop(kernel);
        });
        let (clients, servers, listeners) = hear.recv().expect("the site stands");
        Site { clients, listeners, _servers: servers, _node: node }
    }

    /// What a connection to this address takes, of a round of them; it arrives at this port of the server.
    fn connect(&self, to: SocketAddr, arrives_at: u16, what: What) -> Cost {
        let listener = self.listeners.iter().find(|(port, _)| *port == arrives_at);
        let listener = listener.map(|(_, listener)| Arc::clone(listener)).expect("a port that is served");
        let round = move || (0..CONNECTIONS).for_each(|_| connect(to, &listener, what));
        let cost = self.clients.within(move || cost_of_thread(round).1);
        let each = |time: Duration| time / CONNECTIONS as u32;
        Cost { wall: each(cost.wall), user: each(cost.user), system: each(cost.system) }
    }
}

fn connect(to: SocketAddr, listener: &TcpListener, what: What) {
    let mut client = TcpStream::connect(to).expect("the server answers");
    let (mut server, _) = listener.accept().expect("the connection is there");
    if what == What::Exchange {
        let mut buffer = [0; 512];
        client.write_all(&buffer[..64]).expect("a request");
        server.read_exact(&mut buffer[..64]).expect("the request");
        server.write_all(&buffer).expect("an answer");
        client.read_exact(&mut buffer).expect("the answer");
    }
    // In this order the server's side waits for stragglers, and the client's ports are free again.
    drop(server);
    drop(client);
}
