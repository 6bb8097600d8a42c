//! The API in every namespace: 127.0.0.1:6443 there leads to its unix socket, so that kubectl and `zoneward` work
//! in a node or pod as they do outside.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::traffic::Server;
use crate::layout::API_PORT;

/// Listens in the namespace of this thread.
pub fn start(api: PathBuf) -> Result<Server> {
    Server::start_with((Ipv4Addr::LOCALHOST, API_PORT).into(), move |stream| relay(stream, &api))
}

fn relay(client: TcpStream, api: &Path) -> io::Result<()> {
    let server = UnixStream::connect(api)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let there = std::thread::Builder::new().spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        // One that is closed already needs no more.
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    let (mut from_server, mut to_client) = (server, client);
    let copied = io::copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Both);
    let _ = there.join();
    copied.map(drop)
}
