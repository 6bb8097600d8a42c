//! The listeners of a proxy: bound and closed as its tables change; a port in use is retried.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use proxy::{ListenerKind, Proxy};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenerId {
    /// The n-th `--outbound`.
    Outbound(usize, IpAddr),
    /// The target of redirected connections.
    Redirect(IpAddr),
    /// A port of a gateway.
    Gateway(u16, IpAddr),
    /// A UDP port of a gateway.
    GatewayUdp(u16, IpAddr),
}

/// What a socket is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketUse {
    Connections(ListenerKind),
    /// The datagrams of a gateway's UDP port.
    Datagrams(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Port 0 binds a free one.
    pub at: SocketAddr,
    pub kind: SocketUse,
    /// The flag that sets the address, for error messages.
    pub flag: &'static str,
}

pub struct BoundListeners {
    proxy: Proxy,
    open: BTreeMap<ListenerId, OpenListener>,
    /// Listeners that could not be bound.
    failed: BTreeMap<ListenerId, FailedListener>,
}

/// A listener that could not be bound, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedListener {
    pub at: SocketAddr,
    /// The flag that sets the address.
    pub flag: &'static str,
    pub error: String,
}

struct OpenListener {
    spec: ListenerSpec,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl BoundListeners {
    pub fn new(proxy: Proxy) -> Self {
        Self { proxy, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Binds and closes listeners as wanted. Open connections continue.
    pub async fn sync(&mut self, wanted: &BTreeMap<ListenerId, ListenerSpec>) {
        let is_stale = |(id, open): (&ListenerId, &OpenListener)| {
            let is_changed = wanted.get(id).is_none_or(|spec| *spec != open.spec);
            (is_changed || open.task.is_finished()).then_some(*id)
        };
        let stale: Vec<ListenerId> = self.open.iter().filter_map(is_stale).collect();
        for id in stale {
            self.close(id).await;
        }
        self.failed.retain(|id, _| wanted.contains_key(id));
        for (id, spec) in wanted.iter().filter(|(id, _)| !self.open.contains_key(id)).collect::<Vec<_>>() {
            self.try_bind(*id, spec).await;
        }
    }

    async fn try_bind(&mut self, id: ListenerId, spec: &ListenerSpec) {
        let (stop, stopped) = oneshot::channel();
        // Dropping the sender stops it as well.
        let stopped = async { drop(stopped.await) };
        let proxy = self.proxy.clone();
        let opened = match &spec.kind {
            SocketUse::Connections(kind) => bind(spec.at).await.map(|(listener, address)| {
                let kind = kind.clone();
                (tokio::spawn(async move { proxy.serve(listener, kind, stopped).await }), address)
            }),
            SocketUse::Datagrams(port) => bind_udp(spec.at).await.map(|(socket, address)| {
                let port = *port;
                (tokio::spawn(async move { proxy.serve_udp(socket, port, stopped).await }), address)
            }),
        };
        let (task, address) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let failed = FailedListener { at: spec.at, flag: spec.flag, error: error.to_string() };
                if self.failed.insert(id, failed).is_none() {
                    warn!(address = %spec.at, %error, flag = spec.flag, "cannot listen; retrying");
                }
                return;
            }
        };
        self.failed.remove(&id);
        info!(%address, kind = describe(&spec.kind), "listening");
        self.open.insert(id, OpenListener { spec: spec.clone(), stop, task });
    }

    async fn close(&mut self, id: ListenerId) {
        let Some(open) = self.open.remove(&id) else { return };
        let _ = open.stop.send(());
        // The port is free only after the task has ended.
        let _ = open.task.await;
        info!(kind = describe(&open.spec.kind), "stopped listening");
    }

    pub async fn close_all(&mut self) {
        self.failed.clear();
        for id in self.open.keys().copied().collect::<BTreeSet<_>>() {
            self.close(id).await;
        }
    }

    /// Why listeners could not be bound.
    pub fn errors(&self) -> impl Iterator<Item = String> {
        self.failed.values().map(|FailedListener { at, flag, error }| {
            format!("cannot listen on {at}: {error}; choose another with {flag}")
        })
    }

    /// The ports of gateways that could not be bound, and whether they are UDP ports.
    pub fn failed_gateway_ports(&self) -> impl Iterator<Item = (bool, &FailedListener)> {
        self.failed.iter().filter_map(|(id, failed)| match id {
            ListenerId::Gateway(..) => Some((false, failed)),
            ListenerId::GatewayUdp(..) => Some((true, failed)),
            ListenerId::Outbound(..) | ListenerId::Redirect(_) => None,
        })
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }
}

async fn bind(at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(at).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn bind_udp(at: SocketAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind(at).await?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn describe(kind: &SocketUse) -> String {
    match kind {
        SocketUse::Connections(ListenerKind::Outbound { service, port }) => format!("{service}:{port}"),
        SocketUse::Connections(ListenerKind::OriginalDestination) => "redirected connections".to_owned(),
        SocketUse::Connections(ListenerKind::Gateway { port }) => format!("gateway port {port}"),
        SocketUse::Datagrams(port) => format!("gateway UDP port {port}"),
    }
}

/// The default address of a gateway: all addresses, with one dual-stack socket where IPv6 is available.
pub fn unspecified_address() -> IpAddr {
    let both = IpAddr::from([0u16; 8]);
    match std::net::TcpListener::bind((both, 0)) {
        Ok(_) => both,
        Err(_) => IpAddr::from([0u8; 4]),
    }
}

#[cfg(test)]
mod tests {
    use proxy::{ProxyOptions, ProxyTables};

    use super::*;

    /// An address of this process: clients, which connect from 127.0.0.1, take no port of it.
    fn local() -> IpAddr {
        let [low, high, ..] = std::process::id().to_le_bytes();
        IpAddr::from([127, 79, high, low])
    }

    fn spec(port: u16, number: u16) -> ListenerSpec {
        let at = SocketAddr::new(local(), port);
        ListenerSpec {
            at,
            kind: SocketUse::Connections(ListenerKind::Gateway { port: number }),
            flag: "--bind",
        }
    }

    #[tokio::test]
    async fn listeners_follow_the_wanted_set_and_a_port_in_use_is_retried() {
        let mut listeners = BoundListeners::new(Proxy::new(ProxyOptions::default(), ProxyTables::default()));
        let local = local();
        let taken = TcpListener::bind((local, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let (first, second) = (ListenerId::Gateway(1, local), ListenerId::Gateway(2, local));
        let both = BTreeMap::from([(first, spec(0, 1)), (second, spec(port, 2))]);
        listeners.sync(&both).await;
        assert_eq!(listeners.open(), 1);
        let why: Vec<String> = listeners.errors().collect();
        assert!(why.len() == 1 && why[0].contains("choose another with --bind"), "{why:?}");
        let ports: Vec<_> = listeners.failed_gateway_ports().map(|(is_udp, own)| (is_udp, own.at)).collect();
        assert_eq!(ports, [(false, SocketAddr::new(local, port))]);
        drop(taken);
        listeners.sync(&both).await;
        assert_eq!((listeners.open(), listeners.errors().count()), (2, 0));
        listeners.sync(&BTreeMap::from([(second, spec(port, 3))])).await;
        assert_eq!(listeners.open(), 1);
        listeners.close_all().await;
        assert_eq!(listeners.open(), 0);
        TcpListener::bind((local, port)).await.unwrap();
    }
}
