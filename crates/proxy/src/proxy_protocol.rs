//! PROXY protocol (haproxy.org, proxy-protocol.txt), versions 1 and 2: a header at the start of a connection, with the
//! addresses of the connection that a proxy before this one accepted.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::backend::ProxyProtocol;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Both ends of a downstream connection, as a PROXY protocol header or the socket has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionAddresses {
    pub(crate) client: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
}

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, with CRLF.
const MAX_LINE: usize = 107;
/// The addresses of version 2: two of IPv6, and two ports.
const MAX_ADDRESSES: usize = 36;

/// Reads the header, and not a byte more. `None`: the header names no addresses (LOCAL, UNKNOWN, another family), as in
/// health checks of the proxy; those of the socket hold.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ConnectionAddresses>> {
    // The shortest header of either version is longer.
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == SIGNATURE { read_binary(stream).await } else { read_text(stream, &start).await }
}

async fn read_text(
    stream: &mut (impl AsyncRead + Unpin),
    start: &[u8],
) -> io::Result<Option<ConnectionAddresses>> {
    if !start.starts_with(b"PROXY ") {
        return Err(malformed("connection does not begin with a PROXY protocol header"));
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == MAX_LINE {
            return Err(malformed("PROXY protocol header is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    let line = line.strip_suffix(b"\r\n").unwrap_or(&line);
    parse_line(line).ok_or_else(|| malformed("malformed PROXY protocol header"))
}

/// A line of version 1 without CRLF. The outer `None`: malformed.
fn parse_line(line: &[u8]) -> Option<Option<ConnectionAddresses>> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("PROXY ")?;
    // What follows UNKNOWN is ignored.
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let [family, client, local, client_port, local_port] = words[..] else { return None };
    let ip = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        _ => None,
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| port.to_string() == text);
    Some(Some(ConnectionAddresses {
        client: SocketAddr::new(ip(client)?, port(client_port)?),
        local: SocketAddr::new(ip(local)?, port(local_port)?),
    }))
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ConnectionAddresses>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [command, family, high, low] = head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let mut addresses = [0; MAX_ADDRESSES];
    let addresses = &mut addresses[..length.min(MAX_ADDRESSES)];
    stream.read_exact(addresses).await?;
    // Extensions (TLVs) are skipped.
    let rest = (length - addresses.len()) as u64;
    if tokio::io::copy(&mut stream.take(rest), &mut tokio::io::sink()).await? < rest {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    parse_binary(command, family, addresses).ok_or_else(|| malformed("malformed PROXY protocol header"))
}

/// A header of version 2. The outer `None`: malformed.
fn parse_binary(command: u8, family: u8, addresses: &[u8]) -> Option<Option<ConnectionAddresses>> {
    match command {
        0x20 => return Some(None),
        0x21 => {}
        _ => return None,
    }
    let port = |at: usize| Some(u16::from_be_bytes(addresses.get(at..at + 2)?.try_into().ok()?));
    let (client, local, ports) = match family {
        0x11 => (v4(addresses, 0)?, v4(addresses, 4)?, 8),
        0x21 => (v6(addresses, 0)?, v6(addresses, 16)?, 32),
        // Unspecified, datagrams, Unix sockets.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => return Some(None),
        _ => return None,
    };
    Some(Some(ConnectionAddresses {
        client: SocketAddr::new(client, port(ports)?),
        local: SocketAddr::new(local, port(ports + 2)?),
    }))
}

fn v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into())
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?.into())
}

fn malformed(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The header for an endpoint. Addresses of two families cannot be written, so the header names none then.
pub(crate) fn write(version: ProxyProtocol, addresses: &ConnectionAddresses) -> Vec<u8> {
    let (client, local) = (addresses.client, addresses.local);
    let (client_ip, local_ip) = (client.ip().to_canonical(), local.ip().to_canonical());
    match version {
        ProxyProtocol::V1 => {
            let family = match (client_ip, local_ip) {
                (IpAddr::V4(_), IpAddr::V4(_)) => "TCP4",
                (IpAddr::V6(_), IpAddr::V6(_)) => "TCP6",
                _ => return b"PROXY UNKNOWN\r\n".to_vec(),
            };
            let (from, to) = (client.port(), local.port());
            format!("PROXY {family} {client_ip} {local_ip} {from} {to}\r\n").into_bytes()
        }
        ProxyProtocol::V2 => {
            let mut header = SIGNATURE.to_vec();
            match (client_ip, local_ip) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    header.extend([0x21, 0x11, 0, 12]);
                    header.extend([from.octets(), to.octets()].concat());
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    header.extend([0x21, 0x21, 0, 36]);
                    header.extend([from.octets(), to.octets()].concat());
                }
                _ => {
                    header.extend([0x20, 0, 0, 0]);
                    return header;
                }
            }
            header.extend([client.port().to_be_bytes(), local.port().to_be_bytes()].concat());
            header
        }
    }
}

#[cfg(test)]
mod tests;
