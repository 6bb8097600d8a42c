//! Inspection of a new connection, as Envoy's listener filters do it: the original destination, the HTTP/2 preface,
//! the server name of a TLS ClientHello. Bytes that were read are returned for [`super::transport_socket::ReadAhead`].

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, getsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::server::Acceptor;

/// The destination of a redirected connection before the redirect. Fails for a connection that was not redirected:
/// forwarding it to this listener would loop.
pub(super) fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    // A dual-stack listener has IPv4 clients by mapped addresses.
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    let original = match local {
        SocketAddr::V4(_) => {
            let found = SockaddrIn::from(getsockopt(stream, sockopt::OriginalDst)?);
            SocketAddr::V4(SocketAddrV4::new(found.ip(), found.port()))
        }
        SocketAddr::V6(_) => {
            let found = SockaddrIn6::from(getsockopt(stream, sockopt::Ip6tOriginalDst)?);
            SocketAddr::V6(SocketAddrV6::new(found.ip(), found.port(), 0, 0))
        }
    };
    if original == local {
        return Err(io::Error::other("connection was not redirected"));
    }
    Ok(original)
}

/// The start of every HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The frame type of SETTINGS.
const SETTINGS: u8 = 4;

/// A ClientHello is one record in practice, two with post-quantum key shares.
const MAX_CLIENT_HELLO: usize = 64 << 10;

/// Whether the client speaks HTTP/2, with the bytes that were read.
pub(super) async fn detect_http2(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(bool, Bytes)> {
    let mut read = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok((false, read.freeze()));
        }
        let count = read.len().min(PREFACE.len());
        if read[..count] != PREFACE[..count] {
            return Ok((false, read.freeze()));
        }
        // RFC 9113, 3.4: the first frame is SETTINGS. The type is the fourth byte of a frame header.
        match read.get(PREFACE.len() + 3) {
            None => {}
            Some(&SETTINGS) => return Ok((true, read.freeze())),
            Some(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "HTTP/2 preface without SETTINGS"));
            }
        }
    }
}

/// The server name of the ClientHello, if it has one, with the bytes that were read.
pub(super) async fn read_server_name(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Option<String>, Bytes)> {
    let mut acceptor = Acceptor::default();
    let mut read = BytesMut::with_capacity(4096);
    let mut parsed = 0;
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while parsed < read.len() {
            let mut rest = &read[parsed..];
            let taken = acceptor.read_tls(&mut rest)?;
            parsed += taken;
            if taken == 0 {
                break;
            }
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Ok((name, read.freeze()));
            }
            Ok(None) if read.len() <= MAX_CLIENT_HELLO => {}
            Ok(None) => return Err(io::Error::new(io::ErrorKind::InvalidData, "ClientHello is too long")),
            Err((error, _)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}
