//! SCTP by hand: packets with their checksum, and the two ends of an association on raw sockets.
//!
//! Many kernels have no SCTP sockets (CONFIG_IP_SCTP). The node in between needs none: connection tracking of SCTP
//! (CONFIG_NF_CT_PROTO_SCTP, a part of nf_conntrack and not a module) reads chunks, tags and checksums by itself, and
//! no sysctl has to be set. A packet with a wrong checksum is not tracked (nf_conntrack_checksum) and so not
//! translated; of one that it does translate the kernel makes the checksum anew. Both ends here check it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use model::forward::FirstPacket;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage};

use super::connect::{SILENCE, Seen, answered};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
/// The parameter of an INIT ACK that the client sends back as it is.
const STATE_COOKIE: u16 = 7;
/// The tag of every server. Each end names the tag that the other one has to write on its packets.
const SERVER_TAG: u32 = 0x5e74_e121;

/// A packet with one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sctp {
    source: u16,
    destination: u16,
    tag: u32,
    kind: u8,
    value: Vec<u8>,
}

impl Sctp {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.kind, 0]);
        bytes.extend((4 + self.value.len() as u16).to_be_bytes());
        bytes.extend(&self.value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let checksum = crc32c(&bytes);
        // The one number of the protocol that goes with its lowest byte first.
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a packet; the checksum has to be right.
    fn parse(bytes: &[u8]) -> Sctp {
        let two = |at: usize| u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
        let mut blank = bytes.to_vec();
        blank[8..12].fill(0);
        assert_eq!(bytes[8..12], crc32c(&blank).to_le_bytes(), "the checksum of {bytes:?}");
        Sctp {
            source: two(0),
            destination: two(2),
            tag: u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
            kind: bytes[12],
            value: bytes[16..12 + usize::from(two(14))].to_vec(),
        }
    }

    /// What the receiver of this one sends.
    fn answer(&self, tag: u32, kind: u8, value: Vec<u8>) -> Sctp {
        Sctp { source: self.destination, destination: self.source, tag, kind, value }
    }

    /// The tag that an INIT or an INIT ACK asks for.
    fn asked_tag(&self) -> u32 {
        u32::from_be_bytes(self.value[..4].try_into().unwrap())
    }
}

/// RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The fixed part of INIT and INIT ACK: tag, window, streams out and in, first number.
fn beginning(tag: u32) -> Vec<u8> {
    let mut value = tag.to_be_bytes().to_vec();
    value.extend(65_536u32.to_be_bytes());
    value.extend([0, 1, 0, 1]);
    value.extend(1u32.to_be_bytes());
    value
}

/// A raw socket at an address.
fn open(address: IpAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket =
        socket::socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::Sctp)).unwrap();
    socket::bind(socket.as_raw_fd(), &end(address)).unwrap();
    socket
}

/// An address for a raw socket, which knows no ports.
fn end(address: IpAddr) -> SockaddrStorage {
    SockaddrStorage::from(SocketAddr::new(address, 0))
}

/// The packet behind the IP header, which a raw socket of IPv4 delivers as well.
fn payload(family: IpAddr, bytes: &[u8]) -> &[u8] {
    if family.is_ipv4() { &bytes[usize::from(bytes[0] & 15) * 4..] } else { bytes }
}

/// Sets up an association as the packet says, from the namespace of the thread that it runs in.
pub(crate) fn send(packet: &FirstPacket) -> Seen {
    // Every association from a port of its own, so that the node chooses anew.
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let source = PORT.fetch_add(1, Ordering::Relaxed);
    let client = Client::open(packet, source);
    let tag = u32::from(source) << 8 | 1;
    client.send(&init(packet, source, tag).bytes());
    let accepted = match client.receive() {
        Ok(accepted) => accepted,
        Err(seen) => return seen,
    };
    assert_eq!((accepted.kind, accepted.tag), (INIT_ACK, tag), "{packet:?}: {accepted:?}");
    let parameter = &accepted.value[beginning(0).len()..];
    assert_eq!(parameter[..2], STATE_COOKIE.to_be_bytes());
    let cookie = parameter[4..].to_vec();
    let told = std::str::from_utf8(&cookie).unwrap().split_once(';').expect("a cookie of ours").0;
    let told = answered(told);
    client.send(&accepted.answer(accepted.asked_tag(), COOKIE_ECHO, cookie).bytes());
    // What follows the first packet goes the same way: another server would not take the cookie.
    let done = client.receive().unwrap_or_else(|seen| panic!("{packet:?}: {seen:?} after the cookie"));
    assert_eq!((done.kind, done.tag), (COOKIE_ACK, tag), "{packet:?}: {done:?}");
    told
}

/// Sends an INIT whose checksum is wrong.
pub(crate) fn send_damaged(packet: &FirstPacket) -> Seen {
    let client = Client::open(packet, 19_999);
    let mut bytes = init(packet, 19_999, 1).bytes();
    bytes[8] ^= 1;
    client.send(&bytes);
    client.receive().map_or_else(|seen| seen, |answer| panic!("{packet:?}: {answer:?}"))
}

fn init(packet: &FirstPacket, source: u16, tag: u32) -> Sctp {
    Sctp { source, destination: packet.dst.port(), tag: 0, kind: INIT, value: beginning(tag) }
}

/// The client's end. Connected, so that it hears only what comes from the address that it sent to, and ICMP errors
/// about it.
struct Client {
    socket: OwnedFd,
    own: SocketAddr,
    peer: SocketAddr,
}

impl Client {
    fn open(packet: &FirstPacket, port: u16) -> Client {
        let socket = open(packet.src.ip());
        socket::connect(socket.as_raw_fd(), &end(packet.dst.ip())).unwrap();
        let patience = nix::sys::time::TimeVal::new(0, SILENCE.as_micros() as i64);
        socket::setsockopt(&socket, socket::sockopt::ReceiveTimeout, &patience).unwrap();
        Client { socket, own: SocketAddr::new(packet.src.ip(), port), peer: packet.dst }
    }

    fn send(&self, bytes: &[u8]) {
        match socket::send(self.socket.as_raw_fd(), bytes, MsgFlags::empty()) {
            // The node itself is told at once when its own packet is dropped, and afterwards why if it was rejected.
            Ok(_) | Err(Errno::EPERM) => {}
            Err(error) => panic!("{} -> {}: {error}", self.own, self.peer),
        }
    }

    /// The next packet from the address and port that were called, or why there is none.
    fn receive(&self) -> Result<Sctp, Seen> {
        let mut buffer = [0; 500];
        loop {
            let length = match socket::recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => length,
                Err(Errno::ECONNREFUSED) => return Err(Seen::Refused),
                Err(Errno::EAGAIN) => return Err(Seen::Silence),
                Err(error) => panic!("{} -> {}: {error}", self.own, self.peer),
            };
            let packet = Sctp::parse(payload(self.own.ip(), &buffer[..length]));
            // A raw socket hears every association of these addresses.
            if (packet.source, packet.destination) == (self.peer.port(), self.own.port()) {
                return Ok(packet);
            }
        }
    }
}

/// Answers every association to these ports of an address, with a cookie that says the server's address and the
/// client's as the server sees it.
pub(crate) fn serve(address: IpAddr, ports: &'static [u16]) {
    let socket = open(address);
    std::thread::spawn(move || {
        let mut buffer = [0; 500];
        while let Ok((length, peer)) = socket::recvfrom::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer) {
            let peer = ip_of(&peer.expect("raw sockets say where a packet is from"));
            let packet = Sctp::parse(payload(address, &buffer[..length]));
            // A pod that is a client, too, hears its own answers here.
            if !ports.contains(&packet.destination) {
                continue;
            }
            let ends = format!("{} {peer}", SocketAddr::new(address, packet.destination));
            if let Some(answer) = reply(&packet, &ends) {
                socket::sendto(socket.as_raw_fd(), &answer.bytes(), &end(peer), MsgFlags::empty()).unwrap();
            }
        }
    });
}

/// A server without memory, as the protocol wants it: the cookie holds the ends and the client's tag until it is back.
fn reply(packet: &Sctp, ends: &str) -> Option<Sctp> {
    match packet.kind {
        INIT => {
            assert_eq!(packet.tag, 0, "an INIT has no tag yet");
            let cookie = format!("{ends};{}", packet.asked_tag());
            let mut value = beginning(SERVER_TAG);
            value.extend(STATE_COOKIE.to_be_bytes());
            value.extend((4 + cookie.len() as u16).to_be_bytes());
            value.extend(cookie.as_bytes());
            Some(packet.answer(packet.asked_tag(), INIT_ACK, value))
        }
        COOKIE_ECHO => {
            assert_eq!(packet.tag, SERVER_TAG);
            let cookie = std::str::from_utf8(&packet.value).unwrap();
            let (mine, tag) = cookie.split_once(';').expect("a cookie of ours");
            assert_eq!(mine, ends, "another server gave the cookie");
            Some(packet.answer(tag.parse().unwrap(), COOKIE_ACK, Vec::new()))
        }
        _ => None,
    }
}

fn ip_of(address: &SockaddrStorage) -> IpAddr {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => v4.ip().into(),
        (_, Some(v6)) => v6.ip().into(),
        _ => panic!("neither IPv4 nor IPv6"),
    }
}
