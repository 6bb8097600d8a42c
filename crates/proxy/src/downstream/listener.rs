//! Listeners: the accept loop, and the permit that each open connection holds.

use std::sync::Arc;
use std::time::Duration;

use ::listener::ConnectionPermit;
use model::ServiceKey;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use super::connection;
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
        let open = Arc::new(OpenConnection::new(proxy, permit));
        let (proxy, kind) = (proxy.clone(), kind.clone());
        tokio::spawn(async move {
            proxy.stats.connections.inc();
            connection::serve(proxy, &kind, stream, client, open).await;
        });
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
    proxy: Arc<ProxyShared>,
    _permit: ConnectionPermit,
}

impl OpenConnection {
    fn new(proxy: &Arc<ProxyShared>, permit: ConnectionPermit) -> Self {
        proxy.connection_opened();
        Self { proxy: proxy.clone(), _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.proxy.connection_closed();
    }
}
