//! Ports for servers that cannot choose one themselves: a number in their configuration, or the same one after a restart.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::{Mutex, PoisonError};

/// Below the ports that the kernel gives to clients and below node ports, above the default ports of servers.
const PORTS: Range<u16> = 20_000..30_000;

/// A socket for each port that this process has: the kernel closes them with the process, and leaves no file.
static TAKEN: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 on which nothing listens. Other tests that ask here get other ports until this process ends, those of
/// another clone included.
///
/// # Panics
/// If all are in use.
pub fn free_port() -> SocketAddr {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = PORTS.end - PORTS.start;
    // Processes begin at different places, so that they seldom have to search.
    let first = std::process::id().wrapping_mul(211);
    for offset in 0..u32::from(count) {
        let port = PORTS.start + (first.wrapping_add(offset) % u32::from(count)) as u16;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let Some(mark) = mark(port) else { continue };
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            taken.push(mark);
            return address;
        }
    }
    panic!("all ports from {} to {} are in use", PORTS.start, PORTS.end)
}

/// A socket whose name says that a port is taken; `None` if another process has it. The names are those of a network
/// namespace, as ports are.
fn mark(port: u16) -> Option<UnixDatagram> {
    let name = UnixAddress::from_abstract_name(format!("zoneward-test-port-{port}")).ok()?;
    UnixDatagram::bind_addr(&name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_given_once_and_can_be_listened_on() {
        let (one, two) = (free_port(), free_port());
        assert_ne!(one, two);
        assert!(PORTS.contains(&one.port()) && PORTS.contains(&two.port()));
        assert!(mark(one.port()).is_none(), "another process is refused");
        TcpListener::bind(one).expect("nothing listens there");
    }
}
