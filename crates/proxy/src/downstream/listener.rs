//! Listeners: the accept loop, and the permit that each open connection holds.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ::listener::{ConnectionOwner, ConnectionPermit};
use model::ServiceKey;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::connection;
use super::idle_timeout::ConnectionActivity;
use crate::overload::open_connections::RELIEF_PAUSE;
use crate::proxy::ProxyShared;

/// The routes of a listener's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Those of one port of a Service.
    Outbound { service: ServiceKey, port: u16 },
    /// Those of the destination that the client connected to before the kernel redirected the connection.
    OriginalDestination,
    /// Those of a gateway's port, which may differ from the port that is bound.
    Gateway { port: u16 },
}

pub(crate) async fn accept(proxy: &Arc<ProxyShared>, listener: TcpListener, kind: ListenerKind) {
    let kind = Arc::new(kind);
    loop {
        let ((stream, client), permit) = proxy.connections.accept(|| listener.accept()).await;
        let open = Arc::new(OpenConnection::new(proxy, permit, ConnectionOwner::source(client.ip())));
        proxy.relieve_connections(&open.activity);
        let (proxy, kind) = (proxy.clone(), kind.clone());
        tokio::spawn(async move {
            proxy.stats.connections.inc();
            connection::serve(proxy, &kind, stream, client, open).await;
        });
    }
}

/// Closes idle downstream connections while none can be accepted.
pub(crate) async fn relieve_connections(proxy: &ProxyShared) {
    let unknown = ConnectionOwner::source(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let newcomer = ConnectionActivity::new(&proxy.budget, unknown, u64::MAX, proxy.now());
    loop {
        sleep(RELIEF_PAUSE).await;
        proxy.relieve_connections(&newcomer);
    }
}

/// Closes idle upstream connections.
pub(crate) async fn sweep_idle(proxy: &ProxyShared) {
    let settings = &proxy.settings;
    let mut ticks = interval((settings.timeouts.keep / 2).max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        proxy.registry().sweep_idle(settings.clock.now(), settings.timeouts.keep);
    }
}

/// Held while a connection, or the tunnel that it was upgraded to, is open. Draining waits for it.
pub(crate) struct OpenConnection {
    pub(crate) activity: Arc<ConnectionActivity>,
    proxy: Arc<ProxyShared>,
    _permit: ConnectionPermit,
}

impl OpenConnection {
    fn new(proxy: &Arc<ProxyShared>, permit: ConnectionPermit, peer: ConnectionOwner) -> Self {
        proxy.connection_opened();
        let connections = &proxy.budget.connections;
        let id = connections.next_id();
        let activity = Arc::new(ConnectionActivity::new(&proxy.budget, peer, id, proxy.now()));
        connections.add(&activity);
        Self { activity, proxy: proxy.clone(), _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.proxy.budget.connections.remove(self.activity.id);
        self.proxy.connection_closed();
    }
}
