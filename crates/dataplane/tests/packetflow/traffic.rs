//! Connections for real: clients next door, servers next door, the node in between with the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use dataplane::nftables::apply::{apply, load};
use dataplane::nftables::diff::diff;
use dataplane::nftables::ir::Program;
use dataplane::nftables::netlink::Socket;
use dataplane::nftables::render::Renderer;
use model::Protocol;
use model::forward::Packet;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};

use super::case::{self, Flow, Scenario};
use super::net::{Neighbour, be_a_router};
use super::sctp;

/// How long silence has to be to count as a drop; a namespace answers within a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_millis(400);

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    /// The server's own address, and the client's as the server saw it.
    Answered(SocketAddr, IpAddr),
    Refused,
    Silence,
}

/// How long an answer may take that has to come. On a busy machine a packet can wait for a processor, or get lost and
/// be sent again a second later.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a sender counts on: it decides how long silence has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hope {
    Answer,
    Silence,
}

/// Sends as the packet says, from the namespace of the thread that it runs in.
pub(crate) fn send(packet: &Packet, hope: Hope) -> Seen {
    let once = || match packet.protocol {
        Protocol::Udp => send_datagram(packet),
        Protocol::Sctp => sctp::send(packet),
        Protocol::Tcp => connect(packet, if hope == Hope::Answer { PATIENCE } else { SILENCE }),
    };
    let start = Instant::now();
    loop {
        let seen = once();
        // TCP sends again by itself.
        let is_over = packet.protocol == Protocol::Tcp || start.elapsed() > PATIENCE;
        if seen != Seen::Silence || hope == Hope::Silence || is_over {
            return seen;
        }
    }
}

fn send_datagram(packet: &Packet) -> Seen {
    let socket = UdpSocket::bind(SocketAddr::new(packet.src.ip(), 0)).unwrap();
    socket.connect(packet.dst).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let mut buffer = [0; 200];
    // The node itself is told at once when its own packet is dropped, and afterwards why if it was rejected.
    match socket.send(b"?") {
        Err(error) if error.kind() != ErrorKind::PermissionDenied => panic!("{packet:?}: {error}"),
        _ => {}
    }
    match socket.recv(&mut buffer) {
        Ok(length) => answered(std::str::from_utf8(&buffer[..length]).unwrap()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Seen::Refused,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Seen::Silence,
        Err(error) => panic!("{packet:?}: {error}"),
    }
}

/// What a server told: its own address and the client's.
pub(crate) fn answered(told: &str) -> Seen {
    let (own, peer) = told.split_once(' ').expect("two addresses");
    Seen::Answered(own.parse().unwrap(), peer.parse().unwrap())
}

fn connect(packet: &Packet, patience: Duration) -> Seen {
    let family = if packet.src.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let from = SockaddrStorage::from(SocketAddr::new(packet.src.ip(), 0));
    socket::bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &from).unwrap();
    let timeout =
        nix::sys::time::TimeVal::new(patience.as_secs() as i64, i64::from(patience.subsec_micros()));
    socket::setsockopt(&fd, socket::sockopt::SendTimeout, &timeout).unwrap();
    let to = SockaddrStorage::from(packet.dst);
    match socket::connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &to) {
        Ok(()) => {}
        Err(nix::errno::Errno::ECONNREFUSED) => return Seen::Refused,
        Err(nix::errno::Errno::EINPROGRESS | nix::errno::Errno::EAGAIN) => return Seen::Silence,
        Err(error) => panic!("{packet:?}: {error}"),
    }
    let mut stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    answered(&told)
}

/// Answers every connection with the server's address and the client's.
pub(crate) fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let told = format!("{address} {}", peer.ip());
            match stream.write_all(told.as_bytes()) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => eprintln!("{address}: {error}"),
                _ => {}
            }
        }
    });
}

/// The same for datagrams.
pub(crate) fn serve_datagrams(address: SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    std::thread::spawn(move || {
        let mut buffer = [0; 200];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{address} {}", peer.ip()).as_bytes(), peer);
        }
    });
}

/// The neighbours of a node: whoever is no endpoint is a client.
struct Site {
    clients: Neighbour,
    servers: Neighbour,
    served: BTreeSet<SocketAddr>,
}

impl Site {
    fn new(own: &[IpAddr]) -> Site {
        be_a_router(own);
        let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
        clients.be_the_way_out();
        Site { clients, servers, served: BTreeSet::new() }
    }

    fn prepare(&mut self, scenario: &Scenario, own: &[IpAddr]) {
        for flow in &scenario.flows {
            if !own.contains(&flow.packet.src.ip()) {
                self.clients.add_address(flow.packet.src.ip());
            }
        }
        for endpoint in scenario.flows.iter().flat_map(|flow| &flow.endpoints) {
            if self.served.insert(*endpoint) {
                self.servers.add_address(endpoint.ip());
                let endpoint = *endpoint;
                self.servers.within(move || serve(endpoint));
            }
        }
    }

    /// Connects until every expected endpoint was seen, but not for ever.
    fn try_flow(&self, flow: &Flow, own: &[IpAddr]) -> BTreeMap<Seen, usize> {
        let mut seen = BTreeMap::new();
        let attempts = if flow.endpoints.len() > 1 { 40 * flow.endpoints.len() } else { 1 };
        for _ in 0..attempts {
            let packet = flow.packet.clone();
            let hope = if flow.verdict == "DROP" { Hope::Silence } else { Hope::Answer };
            let one = if own.contains(&packet.src.ip()) {
                send(&packet, hope)
            } else {
                self.clients.within(move || send(&packet, hope))
            };
            *seen.entry(one).or_default() += 1;
        }
        seen
    }
}

fn check(scenario: &Scenario, flow: &Flow, seen: &BTreeMap<Seen, usize>) {
    let whose = format!("{} flow {}: {seen:?}", scenario.id, flow.n);
    match flow.verdict.as_str() {
        "REJECT" => assert_eq!(seen.keys().collect::<Vec<_>>(), [&Seen::Refused], "{whose}"),
        "DROP" => assert_eq!(seen.keys().collect::<Vec<_>>(), [&Seen::Silence], "{whose}"),
        "DNAT" => {
            let mut endpoints = Vec::new();
            for one in seen.keys() {
                let Seen::Answered(endpoint, client) = one else { panic!("{whose}") };
                assert_eq!(*client != flow.packet.src.ip(), flow.masquerade, "{whose}");
                endpoints.push(*endpoint);
            }
            assert_eq!(endpoints, flow.endpoints, "{whose}");
        }
        other => panic!("{whose}: unknown verdict {other}"),
    }
}

pub(crate) fn packets_sent_for_real_fare_as_the_cases_say() {
    let scenarios = case::scenarios();
    let own: Vec<IpAddr> = case::texts(&scenarios[0].value["config"]["nodeLocalAddresses"])
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let mut site = Site::new(&own);
    let mut kernel = Socket::open().unwrap();
    let mut before = Program::default();
    for scenario in &scenarios {
        site.prepare(scenario, &own);
        let (_, program) = Renderer::start(&scenario.table);
        if before.tables.is_empty() {
            load(&mut kernel, &program).unwrap();
        } else {
            let difference = diff(&before, &program);
            apply(&mut kernel, &difference.now).unwrap();
            apply(&mut kernel, &difference.later).unwrap();
        }
        before = program;
        for flow in &scenario.flows {
            check(scenario, flow, &site.try_flow(flow, &own));
        }
    }
}
