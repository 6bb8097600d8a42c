//! The configuration in force of the node proxy of a network namespace, for the commands that explain it.
//!
//! The proxy answers on an abstract Unix socket. Such names belong to the network namespace, as the rules do: a command that
//! reads the rules of a node finds its proxy, whatever ports it serves health and metrics on. The answer is that of
//! /configz. Any process of the namespace may take the name first, so only root and the asking user are believed, and the
//! way to the API (a kubeconfig may name programs to run) only if it comes from the same program file.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{getsockopt, sockopt};
use serde_json::{Value, json};

use super::config::{Configuration, Settings, file};
use crate::cluster::Connection;

/// The name of the socket.
const NAME: &[u8] = b"zoneward-node";
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long until the name is tried again that another process has.
const AGAIN: Duration = Duration::from_secs(5);
/// A configuration is a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// The key of the configuration, as kube-proxy's /configz has it.
const CONFIGURATION: &str = "kubeproxy.config.k8s.io";
/// The key of what else is in force.
const ZONEWARD: &str = "zoneward.dev";

/// What a running node proxy goes by.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The name of its Node.
    pub node: String,
    /// The configuration with its defaults.
    pub configuration: Configuration,
    /// The way to the API, if it can be trusted.
    pub connection: Option<Connection>,
}

/// What /configz answers.
pub fn value(settings: &Settings, node: &str, connection: &Connection) -> Value {
    json!({
        CONFIGURATION: settings.configuration,
        ZONEWARD: {
            "nodeName": node,
            "kubeconfig": connection.kubeconfig,
            "context": connection.context,
            "apiSocket": connection.api_socket,
            "server": connection.server,
        },
    })
}

fn parse(mut value: Value) -> Result<Effective> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let more = value[ZONEWARD].take();
    let (configuration, _) = file::parse(&value[CONFIGURATION].to_string())?;
    let connection = Connection {
        kubeconfig: text(&more["kubeconfig"]).map(PathBuf::from),
        context: text(&more["context"]),
        api_socket: text(&more["apiSocket"]).map(PathBuf::from),
        server: text(&more["server"]),
    };
    let node = text(&more["nodeName"]).unwrap_or_default();
    Ok(Effective { node, configuration, connection: Some(connection) })
}

fn address() -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

/// Answers all that ask, until the process ends.
pub fn serve(value: &Value) {
    let text = value.to_string();
    let answer = move || -> std::io::Result<()> {
        let listener = loop {
            match UnixListener::bind_addr(&address()?) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => std::thread::sleep(AGAIN),
                Err(error) => return Err(error),
            }
        };
        for stream in listener.incoming() {
            let mut stream = stream?;
            stream.set_write_timeout(Some(PATIENCE))?;
            // One that does not read is one that does not get an answer.
            drop(stream.write_all(text.as_bytes()));
        }
        Ok(())
    };
    std::thread::spawn(move || {
        if let Err(error) = answer() {
            tracing::warn!(%error, "commands with --live cannot read this node's configuration");
        }
    });
}

/// Asks the node proxy of this network namespace; `None` if there is none.
pub fn ask() -> Result<Option<Effective>> {
    let Ok(mut stream) = UnixStream::connect_addr(&address()?) else { return Ok(None) };
    let peer =
        getsockopt(&stream, sockopt::PeerCredentials).context("asking who answers for the node proxy")?;
    if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
        bail!(
            "process {} of user {} answers for the node proxy, which is not trusted",
            peer.pid(),
            peer.uid()
        );
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    (&mut stream)
        .take(LONGEST)
        .read_to_string(&mut text)
        .context("reading the running node's configuration")?;
    let value = serde_json::from_str(&text).context("the running node's configuration is no JSON")?;
    let mut read = parse(value).context("the running node's configuration")?;
    read.connection = read.connection.filter(|_| is_same_program(peer.pid()));
    Ok(Some(read))
}

/// Whether a process runs the same file as we do.
fn is_same_program(pid: i32) -> bool {
    let file = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((found.dev(), found.ino()))
    };
    file("self").is_some_and(|own| file(&pid.to_string()) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::config::resolve;

    #[test]
    fn what_is_answered_is_read_back() {
        let written = Configuration {
            api_version: file::API_VERSION.to_owned(),
            kind: file::KIND.to_owned(),
            cluster_cidr: "10.1.0.0/16".to_owned(),
            feature_gates: [("AllowServiceExternalIPs".to_owned(), false)].into(),
            ..Configuration::default()
        };
        let (settings, _) = resolve(written, false).unwrap();
        let connection = Connection { api_socket: Some("/run/api.sock".into()), ..Connection::default() };
        let read = parse(value(&settings, "n1", &connection)).unwrap();
        assert_eq!((read.node.as_str(), &read.configuration), ("n1", &settings.configuration));
        assert_eq!(read.connection.unwrap().api_socket, connection.api_socket);
        let (again, _) = resolve(read.configuration, false).unwrap();
        assert_eq!(again.proxy, settings.proxy);
    }
}
