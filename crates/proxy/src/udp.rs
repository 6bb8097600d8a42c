//! UDP forwarding at a gateway's port. The datagrams of a client go to one endpoint, as long as the client and the endpoint
//! exchange datagrams and the endpoint stays one of the route's.
//!
//! ```text
//! client -> the port's socket -> session by client address -> its own socket -> endpoint, and back the same way
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::active_tables::ActiveTables;
use crate::proxy::ProxyShared;
use crate::upstream::endpoint::{ProxyTime, UpstreamEndpoint};
use crate::upstream::weighted_backends::PickedBackend;

/// A session without datagrams ends, as in the kernel's connection tracking.
const IDLE: Duration = Duration::from_secs(60);
/// Sessions of one port; at the limit, the one that is idle longest ends.
const MAX_SESSIONS: usize = 4_096;
/// The largest datagram.
const MAX_DATAGRAM: usize = 65_535;

/// The datagrams of one client.
struct UdpSession {
    upstream: Arc<UdpSocket>,
    endpoint: Arc<UpstreamEndpoint>,
    /// The tables that the endpoint was last checked against.
    checked: Weak<ActiveTables>,
    last_used: Arc<AtomicU64>,
    replies: tokio::task::AbortHandle,
}

impl Drop for UdpSession {
    fn drop(&mut self) {
        self.replies.abort();
        self.endpoint.remove_load();
    }
}

/// Never returns.
pub(crate) async fn forward(proxy: &Arc<ProxyShared>, socket: UdpSocket, port: u16) {
    let socket = Arc::new(socket);
    let mut sessions: HashMap<SocketAddr, UdpSession> = HashMap::new();
    // Ends the tasks of all sessions when it is dropped.
    let mut replies = JoinSet::new();
    let mut sweep = interval(IDLE / 4);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        tokio::select! {
            biased;
            _ = sweep.tick() => {
                let now = proxy.now();
                sessions.retain(|_, session| ProxyTime(session.last_used.load(Relaxed)).plus(IDLE) > now);
                while replies.try_join_next().is_some() {}
            }
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, client)) => {
                    let datagram = &buffer[..length];
                    if let Err(error) = handle(proxy, &socket, port, &mut sessions, &mut replies, client, datagram).await {
                        proxy.stats.refused_connections.inc();
                        tracing::debug!(%client, %error, "dropped datagram");
                    }
                }
                // An ICMP error of an earlier reply.
                Err(error) => tracing::debug!(%error, "failed to receive datagram"),
            },
        }
    }
}

async fn handle(
    proxy: &Arc<ProxyShared>,
    socket: &Arc<UdpSocket>,
    port: u16,
    sessions: &mut HashMap<SocketAddr, UdpSession>,
    replies: &mut JoinSet<()>,
    client: SocketAddr,
    datagram: &[u8],
) -> io::Result<()> {
    let active = proxy.active_tables();
    if let Some(session) = sessions.get_mut(&client)
        && !session.is_current(&active, port)
    {
        sessions.remove(&client);
    }
    if !sessions.contains_key(&client) {
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.last_used.load(Relaxed));
            let oldest = oldest.map(|(client, _)| *client);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        let session = UdpSession::open(proxy, socket, &active, port, replies, client).await?;
        sessions.insert(client, session);
    }
    let Some(session) = sessions.get(&client) else { return Ok(()) };
    session.last_used.store(proxy.now().0, Relaxed);
    session.upstream.send(datagram).await.map(drop)
}

impl UdpSession {
    async fn open(
        proxy: &Arc<ProxyShared>,
        socket: &Arc<UdpSocket>,
        active: &Arc<ActiveTables>,
        port: u16,
        replies: &mut JoinSet<()>,
        client: SocketAddr,
    ) -> io::Result<Self> {
        let settings = &proxy.settings;
        let split = active.tables.routes.udp_port(port);
        let backends = split.and_then(|split| active.tcp_backends(split));
        let backends = backends.ok_or_else(|| io::Error::other("no UDPRoute for this port"))?;
        let backend = match backends.pick(|| proxy.random.next()) {
            Some(PickedBackend::Backend(backend, _)) => backend,
            Some(PickedBackend::Error(_)) | None => {
                return Err(io::Error::other("backend cannot be resolved"));
            }
        };
        let balancer = backend.load_balancer();
        let key = balancer.key_of_connection(client.ip());
        let chosen = balancer.pick(&proxy.random, proxy.now(), key, &[]);
        let chosen = chosen.ok_or_else(|| io::Error::other("backend has no endpoint"))?;
        let endpoint = chosen.endpoint.clone();
        let upstream = Arc::new(connect(endpoint.address, settings.mark).await?);
        backend.stats.connections.inc();
        backend.stats.localities[chosen.locality as usize].inc();
        let last_used = Arc::new(AtomicU64::new(proxy.now().0));
        let (to, from, used, clock) = (socket.clone(), upstream.clone(), last_used.clone(), proxy.clone());
        let replies = replies.spawn(async move {
            // Errors are ICMP messages about earlier datagrams: the client repeats what matters.
            while from.readable().await.is_ok() {
                // Sessions that wait hold no buffer.
                let mut buffer = vec![0; MAX_DATAGRAM];
                let Ok(length) = from.try_recv(&mut buffer) else { continue };
                used.store(clock.now().0, Relaxed);
                let _ = to.send_to(&buffer[..length], client).await;
            }
        });
        endpoint.add_load();
        Ok(Self { upstream, endpoint, checked: Arc::downgrade(active), last_used, replies })
    }

    /// Whether the endpoint is still one of the route's.
    fn is_current(&mut self, active: &Arc<ActiveTables>, port: u16) -> bool {
        if std::ptr::eq(self.checked.as_ptr(), Arc::as_ptr(active)) {
            return true;
        }
        self.checked = Arc::downgrade(active);
        let split = active.tables.routes.udp_port(port);
        let Some(backends) = split.and_then(|split| active.tcp_backends(split)) else { return false };
        let has_endpoint = |target: &PickedBackend| match target {
            PickedBackend::Backend(backend, _) => {
                let balancer = backend.load_balancer();
                balancer.endpoints().iter().any(|own| Arc::ptr_eq(&own.endpoint, &self.endpoint))
            }
            PickedBackend::Error(_) => false,
        };
        backends.targets().iter().any(has_endpoint)
    }
}

async fn connect(to: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    socket.connect(to).await?;
    Ok(socket)
}
