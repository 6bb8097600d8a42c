//! Tells systemd that a service of `Type=notify` is ready: a datagram to the socket that `$NOTIFY_SOCKET` names
//! (sd_notify(3)). Without that variable nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Children must not inherit it: systemd listens to the main process.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// `READY=1`. A failure is logged: systemd then waits until `TimeoutStartSec=`.
pub fn notify_ready() {
    let Some(socket) = std::env::var_os(NOTIFY_SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, "READY=1\n") {
        tracing::warn!(%error, ?socket, "failed to notify systemd");
    }
}

/// `@` stands for the zero byte of an abstract address.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(address: &SocketAddr, name: &OsStr) -> String {
        let socket = UnixDatagram::bind_addr(address).expect("a socket");
        send(name, "READY=1\n").expect("sent");
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn state_arrives_at_a_path_and_at_an_abstract_address() {
        let name = format!("zoneward-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let address = SocketAddr::from_pathname(&path).expect("an address");
        assert_eq!(received(&address, path.as_os_str()), "READY=1\n");
        std::fs::remove_file(path).expect("the socket is removed");
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        assert_eq!(received(&address, OsStr::new(&format!("@{name}"))), "READY=1\n");
    }

    #[test]
    fn missing_socket_is_an_error() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1\n").is_err());
    }
}
