//! The configuration of the running node proxy of a network namespace, for commands with --live.
//!
//! The proxy serves /configz on an abstract Unix socket. Its name belongs to the network namespace, as the rules do, so a
//! command that reads a node's rules finds its proxy. Any process of the namespace can bind the name first: only root and
//! the user of the command are trusted, and the connection to the API (a kubeconfig may name programs to run) only if it
//! comes from the same executable.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clock::Clock;
use insight::status::ObjectAge;
use nix::sys::socket::{getsockopt, sockopt};
use plan::forward::NodePortRange;
use serde_json::{Value, json};

use super::config::{Configuration, NodeSettings, file};
use cluster::Connection;

/// The name of the socket.
const NAME: &[u8] = b"zoneward-node";
/// Timeout of a client for the whole exchange: a busy machine may need seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the server for a client that does not read, while others wait.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Retry interval while another process holds the name.
const AGAIN: Duration = Duration::from_secs(5);
/// Delay after a failed accept, as without free file descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// A configuration is a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// The key of the configuration, as kube-proxy's /configz has it.
const CONFIGURATION: &str = "kubeproxy.config.k8s.io";
/// The key of what else is in force.
const ZONEWARD: &str = "zoneward.dev";

/// The configuration of a running node proxy.
#[derive(Clone, Debug)]
pub struct RunningConfig {
    pub node: String,
    pub configuration: Configuration,
    pub node_port_range: NodePortRange,
    /// Whether it watches only the slices that nodes of its zone need.
    pub watch_own_zone: bool,
    /// How to reach the API, if trusted.
    pub connection: Option<Connection>,
    /// How old the objects are that it serves.
    pub objects: ObjectAge,
}

/// The body of /configz. Readers have another working directory, so paths are absolute.
pub fn value(settings: &NodeSettings, node: &str, connection: &Connection) -> Value {
    let absolute = |path: &Option<PathBuf>| path.as_deref().and_then(|path| std::path::absolute(path).ok());
    json!({
        CONFIGURATION: settings.configuration,
        ZONEWARD: {
            "nodeName": node,
            "serviceNodePortRange": settings.proxy.node_port_range.to_string(),
            "watchOwnZone": settings.watch_own_zone,
            "kubeconfig": absolute(&connection.kubeconfig),
            "context": connection.context,
            "apiSocket": absolute(&connection.api_socket),
            "server": connection.server,
        },
    })
}

/// With the age of the objects that are served.
pub fn with_age(value: &Value, age: &ObjectAge) -> Value {
    let mut value = value.clone();
    value[ZONEWARD]["objects"] = serde_json::to_value(age).unwrap_or_default();
    value
}

fn parse(mut value: Value) -> Result<RunningConfig> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let more = value[ZONEWARD].take();
    let (configuration, _) = file::parse(&value[CONFIGURATION].to_string())?;
    let connection = Connection {
        kubeconfig: path(&more, "kubeconfig")?,
        context: text(&more["context"]),
        api_socket: path(&more, "apiSocket")?,
        server: text(&more["server"]),
    };
    let node = text(&more["nodeName"]).unwrap_or_default();
    let range = more["serviceNodePortRange"].as_str().and_then(|range| range.parse().ok());
    let node_port_range = range.unwrap_or_default();
    let watch_own_zone = more["watchOwnZone"].as_bool().unwrap_or(false);
    let objects = serde_json::from_value(more["objects"].clone()).unwrap_or_default();
    let connection = Some(connection);
    Ok(RunningConfig { node, configuration, node_port_range, watch_own_zone, connection, objects })
}

/// A relative path would be resolved where the command runs.
fn path(more: &Value, field: &str) -> Result<Option<PathBuf>> {
    let path = more[field].as_str().map(Path::new);
    if let Some(path) = path.filter(|path| !path.is_absolute()) {
        bail!("{ZONEWARD}.{field}: {} is not an absolute path", path.display());
    }
    Ok(path.map(Path::to_owned))
}

/// Serves the configuration until the process ends.
#[allow(clippy::disallowed_methods, reason = "blocks on a Unix socket; it decides nothing")]
pub fn serve(value: impl Fn() -> Value + Send + 'static, clock: &Clock) {
    let clock = clock.clone();
    std::thread::spawn(move || match bind(NAME, &clock) {
        Ok(listener) => answer_all(&listener, value, &clock),
        Err(error) => tracing::warn!(%error, "commands with --live cannot read this node's configuration"),
    });
}

/// Waits for the name if another process has it: the proxy that this one replaces, or one that only took the name.
fn bind(name: &[u8], clock: &Clock) -> std::io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name)?;
    let mut warned = false;
    loop {
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut warned, true) {
                    let socket = format!("@{}", String::from_utf8_lossy(name));
                    tracing::warn!(
                        socket,
                        "another process in this network namespace holds the socket that --live commands use"
                    );
                }
                clock.sleep_blocking(AGAIN);
            }
            bound => return bound,
        }
    }
}

fn answer_all(listener: &UnixListener, value: impl Fn() -> Value, clock: &Clock) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            clock.sleep_blocking(PAUSE);
            continue;
        };
        // A client that does not read gets nothing.
        let text = value().to_string();
        drop(stream.set_write_timeout(Some(WRITE_TIMEOUT)).and_then(|()| stream.write_all(text.as_bytes())));
    }
}

/// Reads the configuration of the node proxy of this network namespace; `None` if there is none.
pub fn ask() -> Result<Option<RunningConfig>> {
    ask_within(NAME, PATIENCE)
}

/// Connecting waits while a listener's queue is full, and every byte that comes would start a read timeout anew: a thread
/// asks, and is left alone when the time is over.
#[allow(clippy::disallowed_methods, reason = "waits for another process with a deadline")]
fn ask_within(name: &[u8], patience: Duration) -> Result<Option<RunningConfig>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = name.to_owned();
    std::thread::spawn(move || drop(sender.send(ask_at(&name))));
    match receiver.recv_timeout(patience) {
        Ok(answer) => answer,
        Err(_) => bail!("the node proxy's socket sent no complete response within {patience:?}"),
    }
}

fn ask_at(name: &[u8]) -> Result<Option<RunningConfig>> {
    let Ok(mut stream) = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?) else {
        return Ok(None);
    };
    let peer = getsockopt(&stream, sockopt::PeerCredentials)
        .context("reading the peer of the node proxy's socket")?;
    check_trust(peer.pid(), peer.uid(), nix::unistd::geteuid().as_raw())?;
    let mut text = String::new();
    (&mut stream)
        .take(LONGEST)
        .read_to_string(&mut text)
        .context("reading the running node's configuration")?;
    let value = serde_json::from_str(&text).context("the running node's configuration is not JSON")?;
    let mut read = parse(value).context("the running node's configuration")?;
    read.connection = read.connection.filter(|_| is_same_program(peer.pid()));
    Ok(Some(read))
}

fn check_trust(pid: i32, uid: u32, own: u32) -> Result<()> {
    if uid != 0 && uid != own {
        bail!("process {pid} of user {uid} serves the node proxy's socket, and is not trusted");
    }
    Ok(())
}

/// Whether a process runs the same executable.
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
    use crate::config::resolve;

    fn settings() -> NodeSettings {
        let written = Configuration {
            api_version: file::API_VERSION.to_owned(),
            kind: file::KIND.to_owned(),
            cluster_cidr: "10.1.0.0/16".to_owned(),
            feature_gates: [("AllowServiceExternalIPs".to_owned(), false)].into(),
            ..Configuration::default()
        };
        resolve(written, false).unwrap().0
    }

    #[test]
    fn what_is_answered_is_read_back() {
        let settings = settings();
        let connection = Connection { api_socket: Some("/run/api.sock".into()), ..Connection::default() };
        let read = parse(value(&settings, "n1", &connection)).unwrap();
        assert_eq!((read.node.as_str(), &read.configuration), ("n1", &settings.configuration));
        assert_eq!(read.connection.unwrap().api_socket, connection.api_socket);
        let (again, _) = resolve(read.configuration, false).unwrap();
        assert_eq!(again.proxy, settings.proxy);
    }
    #[test]
    fn relative_paths_are_handed_over_as_absolute_ones_and_refused_when_read() {
        let settings = settings();
        let connection = Connection { kubeconfig: Some("proxy.conf".into()), ..Connection::default() };
        let mut written = value(&settings, "n1", &connection);
        let there = std::env::current_dir().unwrap().join("proxy.conf");
        assert_eq!(written[ZONEWARD]["kubeconfig"], json!(there));
        written[ZONEWARD]["kubeconfig"] = json!("proxy.conf");
        let error = parse(written).unwrap_err().to_string();
        assert_eq!(error, "zoneward.dev.kubeconfig: proxy.conf is not an absolute path");
    }

    #[test]
    fn only_root_and_the_asking_user_are_trusted() {
        assert!(check_trust(7, 0, 1000).is_ok() && check_trust(7, 1000, 1000).is_ok());
        let error = check_trust(7, 1001, 1000).unwrap_err().to_string();
        assert_eq!(error, "process 7 of user 1001 serves the node proxy's socket, and is not trusted");
    }

    /// Other tests in this network namespace take other names.
    fn name(test: &str) -> Vec<u8> {
        format!("zoneward-test-{test}-{}", std::process::id()).into_bytes()
    }

    #[test]
    fn a_listener_that_never_ends_its_answer_is_given_up() {
        let name = name("drip");
        let listener = bind(&name, &Clock::system()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let error = ask_within(&name, Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("no complete response within 200ms"), "{error}");
    }

    #[test]
    fn a_listener_whose_queue_is_full_is_given_up() {
        let name = name("full");
        let listener = bind(&name, &Clock::system()).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _waiting = UnixStream::connect_addr(&address).unwrap();
        let error = ask_within(&name, Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("no complete response within 200ms"), "{error}");
    }

    #[test]
    fn the_configuration_is_answered_to_all_that_ask() {
        let name = name("all");
        let settings = settings();
        let answer = value(&settings, "n1", &Connection::default());
        assert!(ask_within(&name, PATIENCE).unwrap().is_none(), "there is none yet");
        let listener = bind(&name, &Clock::system()).unwrap();
        std::thread::spawn(move || answer_all(&listener, || answer.clone(), &Clock::system()));
        for _ in 0..2 {
            assert_eq!(ask_within(&name, PATIENCE).unwrap().unwrap().node, "n1");
        }
    }
}
