//! What a client says first: the preface of HTTP/2, or whom it greets by TLS. What was read is kept for whoever
//! serves the connection then.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_rustls::rustls::server::Acceptor;

/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A greeting is one record in practice; post-quantum ones have two.
const LONGEST_HELLO: usize = 64 << 10;

/// Whether the client begins with HTTP/2, and what was read to know.
pub(crate) async fn preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(bool, Bytes)> {
    let mut read = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok((false, read.freeze()));
        }
        let count = read.len().min(PREFACE.len());
        if read[..count] != PREFACE[..count] {
            return Ok((false, read.freeze()));
        }
        if count == PREFACE.len() {
            return Ok((true, read.freeze()));
        }
    }
}

/// The server name of a TLS greeting, and what was read to know. No name is a greeting without one.
pub(crate) async fn server_name(
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
            Ok(None) if read.len() <= LONGEST_HELLO => {}
            Ok(None) => return Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS greeting without end")),
            Err((error, _)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}
