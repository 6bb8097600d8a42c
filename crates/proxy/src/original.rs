//! Where a connection was going before the kernel sent it here.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use nix::sys::socket::{SockaddrIn, SockaddrIn6, getsockopt, sockopt};
use tokio::net::TcpStream;

/// The original destination of a redirected connection. An error where it was not redirected, or would lead back
/// to this very listener, without end.
pub(crate) fn destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let own = plain(stream.local_addr()?);
    let original = match own {
        SocketAddr::V4(_) => {
            let found = SockaddrIn::from(getsockopt(stream, sockopt::OriginalDst)?);
            SocketAddr::V4(SocketAddrV4::new(found.ip(), found.port()))
        }
        SocketAddr::V6(_) => {
            let found = SockaddrIn6::from(getsockopt(stream, sockopt::Ip6tOriginalDst)?);
            SocketAddr::V6(SocketAddrV6::new(found.ip(), found.port(), 0, 0))
        }
    };
    if original == own {
        return Err(io::Error::other("the connection was made to the proxy itself, not redirected to it"));
    }
    Ok(original)
}

/// A listener for both families has IPv4 clients by mapped addresses.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
