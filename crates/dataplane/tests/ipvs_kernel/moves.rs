//! The node changes its proxy mode under load, as a restart with another configuration does: the rules of the new mode are
//! loaded beside the old ones, which then go. No connection fails, and none that is open ends.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::backend::{NodeBackend, PreviousMode};
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesFlavour, IptablesPrograms};
use dataplane::iptables::names::{INVALID_COUNTER, LOCALHOST_COUNTER};
use dataplane::iptables::render::KernelFeatures;
use dataplane::nftables::NftablesBackend;
use fixtures::eventually;
use model::ForwardingTable;
use model::forward::{ForwardingMode, NodeRules};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::connect::{first_line, open};
use super::lifetime::say;
use super::machine::{Machine, listing};
use super::service::{TestService, web};
use super::site::Site;

/// Cluster IP, node port and load balancer IP.
const PLACES: [&str; 3] = ["10.96.0.1:80", "198.51.100.1:31000", "192.0.2.80:80"];
/// New connections of each client between two changes.
const BETWEEN: usize = 3;
/// Between two connections of a client: all share one emulated processor with the node.
const PAUSE: Duration = Duration::from_millis(100);
/// The kernel sends a lost SYN again after a second.
const SLOW: Duration = Duration::from_millis(900);

/// A mode, and the flavour of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunningMode {
    Iptables(IptablesFlavour),
    Nftables,
    Ipvs,
}

use RunningMode::{Iptables, Ipvs, Nftables};

const MOVES: [RunningMode; 7] = [
    Iptables(IptablesFlavour::Nft),
    Nftables,
    Ipvs,
    Iptables(IptablesFlavour::Nft),
    Ipvs,
    Nftables,
    Iptables(IptablesFlavour::Legacy),
];

fn table(mode: ForwardingMode) -> ForwardingTable {
    let table = TestService { pods: 3, ..TestService::default() }.table();
    let mut of_mode = ForwardingTable::new(NodeRules { mode, ..table.node.clone() });
    of_mode.replace(&web(), table.frontends(&web()).to_vec());
    of_mode
}

fn iptables(flavour: IptablesFlavour) -> IptablesBackend {
    let programs = IptablesPrograms::of(flavour, vec![toolbox::Toolbox::own().bin()]).unwrap();
    IptablesBackend::open(programs, KernelFeatures { drops_invalid: true, ..KernelFeatures::default() })
}

/// Mode iptables counts connections to node ports on localhost, where the kernel has nfacct.
pub(crate) fn nfacct_counts(_: &Site, _: &Machine) {
    for flavour in [IptablesFlavour::Nft, IptablesFlavour::Legacy] {
        let mut backend = iptables(flavour);
        let mut table = table(ForwardingMode::Iptables);
        table.node.localhost_node_ports = true;
        backend.load(&table).unwrap();
        super::net::set("net/ipv4/conf/all/route_localnet", "1");
        let count = |backend: &mut IptablesBackend, name: &str| {
            let counts = backend.packet_counts();
            counts.iter().find(|count| count.counter == name).unwrap_or_else(|| panic!("{counts:?}")).packets
        };
        assert_eq!(count(&mut backend, INVALID_COUNTER), 0, "{flavour:?}");
        let before = count(&mut backend, LOCALHOST_COUNTER);
        ask(&mut open("127.0.0.1:31000".parse().unwrap()).unwrap().1).unwrap();
        assert_eq!(count(&mut backend, LOCALHOST_COUNTER), before + 1, "{flavour:?}");
        backend.retire().unwrap();
    }
    super::net::set("net/ipv4/conf/all/route_localnet", "0");
}

/// Starts the node proxy in a mode, as after a restart. Returns what is left of the others.
fn start(mode: RunningMode, machine: &Machine) -> Vec<Box<dyn PreviousMode>> {
    let mut others: Vec<Box<dyn PreviousMode>> = Vec::new();
    match mode {
        Iptables(flavour) => {
            iptables(flavour).load(&table(ForwardingMode::Iptables)).unwrap();
            others.push(Box::new(machine.leftovers()));
            others.push(Box::new(NftablesBackend::open().unwrap()));
        }
        Nftables => {
            NftablesBackend::open().unwrap().load(&table(ForwardingMode::Nftables)).unwrap();
            others.push(Box::new(machine.leftovers()));
            others.push(Box::new(iptables(IptablesFlavour::Nft)));
        }
        Ipvs => {
            machine.backend().load(&table(ForwardingMode::Ipvs)).unwrap();
            others.push(Box::new(iptables(IptablesFlavour::Nft)));
        }
    }
    others.retain_mut(|mode| mode.retire().unwrap().is_none());
    others
}

/// Connections that one client opened to one place, one after another.
#[derive(Default)]
struct Load {
    opened: AtomicUsize,
    slow: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// All clients.
struct Clients {
    loads: BTreeMap<String, Arc<Load>>,
    is_over: Arc<AtomicBool>,
}

impl Clients {
    /// Starts them outside, in a pod and on the node.
    fn start(site: &Site) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut loads = BTreeMap::new();
        for place in PLACES {
            for home in ["outside", "pod", "node"] {
                let (load, is_over) = (Arc::new(Load::default()), is_over.clone());
                loads.insert(format!("{home} to {place}"), load.clone());
                let to: SocketAddr = place.parse().unwrap();
                let task = move || drop(std::thread::spawn(move || load.run(to, &is_over)));
                match home {
                    "outside" => site.others.within(task),
                    "pod" => site.pod(5).within(task),
                    _ => task(),
                }
            }
        }
        Self { loads, is_over }
    }

    /// Waits until each client has opened some more connections.
    fn wait(&self) {
        let counts = || self.loads.values().map(|load| load.opened.load(Ordering::Relaxed));
        let before: Vec<usize> = counts().collect();
        eventually("more connections of each client", || {
            let has_more = counts().zip(&before).all(|(now, before)| now >= before + BETWEEN);
            has_more.then_some(()).ok_or_else(|| format!("{:?}", self.failed()))
        });
    }

    fn failed(&self) -> Vec<String> {
        let of = |(client, load): (&String, &Arc<Load>)| {
            let failed = load.failed.lock().unwrap();
            failed.iter().map(|why| format!("{client}: {why}")).collect::<Vec<_>>()
        };
        self.loads.iter().flat_map(of).collect()
    }

    fn sum(&self, of: fn(&Load) -> &AtomicUsize) -> usize {
        self.loads.values().map(|load| of(load).load(Ordering::Relaxed)).sum()
    }
}

impl Load {
    fn run(&self, to: SocketAddr, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            match connect(to).and_then(|mut stream| ask(&mut stream)) {
                Ok(()) => {
                    self.slow.fetch_add(usize::from(start.elapsed() > SLOW), Ordering::Relaxed);
                    self.opened.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.failed.lock().unwrap().push(error.to_string()),
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Source ports that no connection had yet. IPVS knows a reply by the endpoint and the client alone: a port that a client
/// uses for two virtual servers of one endpoint gives the replies of the older connection to the newer one.
static NEXT_PORT: AtomicU16 = AtomicU16::new(10_000);

/// The emulated machine is slow: a lost packet may be sent again.
fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let from = SocketAddr::from(([0, 0, 0, 0], NEXT_PORT.fetch_add(1, Ordering::Relaxed)));
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    socket::setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(10))?;
    socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    let mut stream = TcpStream::from(fd);
    first_line(&mut stream)?;
    Ok(stream)
}

/// A word there and back.
fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"hello")?;
    stream.read_exact(&mut [0; 5])
}

/// What the kernel knows of a connection that got no answer.
fn known_of(stream: &mut TcpStream) -> String {
    let local = stream.local_addr().unwrap();
    let (ip, port) = (local.ip().to_string(), local.port());
    let hex = format!("{port:04X}");
    let lines = |path: &str, words: [&str; 2]| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}"));
        let known = text.lines().filter(|line| words.iter().any(|word| line.contains(word)));
        known.map(|line| format!("{line}\n")).collect::<String>()
    };
    let sport = format!("sport={port} ");
    let connections = lines("/proc/thread-self/net/ip_vs_conn", [&hex, "error"]);
    let tracked = lines("/proc/thread-self/net/nf_conntrack", [&sport, "error"]);
    let routes = super::namespace::run("ip", &["route", "show", "table", "local", "proto", "90"]);
    let again = stream.read_exact(&mut [0; 5]);
    format!("{ip}:{port}, 5 s later: {again:?}\nIPVS:\n{connections}conntrack:\n{tracked}routes:\n{routes}")
}

/// A connection that stays open, by a name that tells where it is from.
type OpenConnection = (String, TcpStream);

fn open_all(site: &Site, mode: RunningMode) -> Vec<OpenConnection> {
    let open_to = |place: &str| {
        let to: SocketAddr = place.parse().unwrap();
        let outside = site.others.within(move || connect(to));
        let pod = site.pod(5).within(move || connect(to));
        [("outside", outside), ("pod", pod), ("node", connect(to))].map(|(home, opened)| {
            let name = format!("{home} to {place} since mode {mode:?}");
            let stream = opened.unwrap_or_else(|error| panic!("{name}: {error}\n{:#?}", listing()));
            (name, stream)
        })
    };
    PLACES.iter().flat_map(|place| open_to(place)).collect()
}

pub(crate) fn change_the_mode_under_load(site: &Site, machine: &Machine) {
    let begin = Instant::now();
    start(MOVES[0], machine);
    say("  mode iptables", begin);
    let clients = Clients::start(site);
    let mut connections = open_all(site, MOVES[0]);
    for mode in &MOVES[1..] {
        clients.wait();
        let left = start(*mode, machine).len();
        for (name, stream) in &mut connections {
            ask(stream).unwrap_or_else(|error| {
                panic!("{name}, now mode {mode:?}: {error}\n{:#?}\n{}", listing(), known_of(stream));
            });
        }
        connections.extend(open_all(site, *mode));
        say(&format!("  mode {mode:?}, {left} left"), begin);
    }
    clients.wait();
    clients.is_over.store(true, Ordering::Relaxed);
    assert_eq!(clients.failed(), Vec::<String>::new());
    let (opened, slow) = (clients.sum(|load| &load.opened), clients.sum(|load| &load.slow));
    say(&format!("  {opened} new connections, {slow} slow, {} open", connections.len()), begin);
    nothing_stays(machine, connections);
}

/// When the connections have had their time, mode ipvs has left nothing.
fn nothing_stays(machine: &Machine, connections: Vec<OpenConnection>) {
    let mut left = machine.leftovers();
    assert!(left.retire().unwrap().is_none(), "connections of mode ipvs are open");
    let refused = std::net::TcpListener::bind("0.0.0.0:2222").unwrap();
    let error = open("192.0.2.80:2222".parse().unwrap()).expect_err("it is not the node's own address");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    drop((refused, connections));
    machine.pass(15 * 60);
    assert!(left.retire().unwrap().is_some());
    assert_eq!(listing(), Vec::<String>::new());
    let routes = super::namespace::run("ip", &["route", "show", "table", "local", "proto", "90"]);
    assert_eq!(routes, "");
    for flavour in [IptablesFlavour::Nft, IptablesFlavour::Legacy] {
        iptables(flavour).retire().unwrap();
    }
}
