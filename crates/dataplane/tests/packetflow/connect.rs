//! One connection, one datagram, one association, sent for real, and servers that tell who they are and who came.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use model::Protocol;
use model::forward::FirstPacket;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};

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
pub(crate) fn send(packet: &FirstPacket, hope: Hope) -> Seen {
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

fn send_datagram(packet: &FirstPacket) -> Seen {
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

fn connect(packet: &FirstPacket, patience: Duration) -> Seen {
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
    answered(&first_line(&mut stream).unwrap())
}

/// Connects from whatever address, and hears who answered; the connection stays.
pub(crate) fn open(to: SocketAddr) -> std::io::Result<(SocketAddr, TcpStream)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    let told = first_line(&mut stream)?;
    match told.split_once(' ').and_then(|(own, _)| own.parse().ok()) {
        Some(endpoint) => Ok((endpoint, stream)),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// What a server tells first.
pub(crate) fn first_line(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let (mut told, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        told.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&told).into_owned())
}

/// Answers every connection with a line of the server's address and the client's, and then with whatever it is told.
pub(crate) fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    std::thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            std::thread::spawn(move || echo(stream, format!("{address} {}\n", peer.ip())));
        }
    });
}

fn echo(mut stream: TcpStream, told: String) {
    let mut buffer = [0; 64];
    let mut answer = stream.write_all(told.as_bytes());
    while answer.is_ok() {
        answer = match stream.read(&mut buffer) {
            Ok(length @ 1..) => stream.write_all(&buffer[..length]),
            _ => return,
        };
    }
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
