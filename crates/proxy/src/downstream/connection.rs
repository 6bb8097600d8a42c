//! One downstream connection: which routes apply to it, and whether it is HTTP or forwarded as TCP.
//!
//! ```text
//! Outbound, OriginalDestination -> Outbound of the table -> HTTP or TCP; other destinations pass through
//! Gateway -> port -> TLS by server name, or none -> HTTP by host, or TCP
//! ```

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use model::route::{Arrival, GatewayPort, Listener, MeshGatewayProtocol, Routing, Scheme, WeightedBackends};
use model::{Name, ServiceKey};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::idle_timeout::{ConnectionActivity, DownstreamStream};
use super::listener::{ListenerKind, OpenConnection};
use super::transport_socket::{ReadAhead, TransportSocket};
use super::{listener_filters, tls};
use crate::active_tables::ActiveTables;
use crate::http::{http2_limits, router};
use crate::proxy::{DrainPhase, ProxyShared};
use crate::proxy_protocol::{self, ConnectionAddresses};
use crate::tcp;

/// The context that all requests of a connection share.
pub(crate) struct HttpConnection {
    pub(crate) proxy: Arc<ProxyShared>,
    pub(crate) scope: RouteScope,
    pub(crate) arrival: Arrival,
    pub(crate) addresses: ConnectionAddresses,
    pub(crate) activity: Arc<ConnectionActivity>,
    /// Also held by a tunnel that the connection is upgraded to.
    pub(crate) open: Arc<OpenConnection>,
}

/// Where the routes of a connection's requests are.
#[derive(Clone, Debug)]
pub(crate) enum RouteScope {
    /// At a port of a Service.
    Outbound(ServiceKey, u16),
    /// At a gateway's port; with TLS, the server name chooses the listener.
    Gateway(u16, Option<Name>),
}

/// The handling of a connection by the active tables.
enum Handling {
    Http(RouteScope, Arrival),
    Tcp(Arc<WeightedBackends>),
    Tls(u16),
    PassThrough(SocketAddr),
    Close(&'static str),
}

pub(crate) async fn serve(
    proxy: Arc<ProxyShared>,
    kind: &ListenerKind,
    mut stream: TcpStream,
    client: SocketAddr,
    open: Arc<OpenConnection>,
) {
    // Writes are complete messages.
    let _ = stream.set_nodelay(true);
    let from = match addresses(&proxy, kind, &mut stream, client).await {
        Ok(from) => {
            if from.client != client {
                open.activity.name_client(from.client.ip());
            }
            from
        }
        Err(error) => {
            proxy.stats.refused_connections.inc();
            tracing::debug!(%client, %error, "closed connection");
            return;
        }
    };
    let handling = handling(&proxy.active_tables(), kind, &stream);
    let served = async {
        match handling {
            Handling::Http(scope, arrival) => {
                let stream = TransportSocket::Plain(stream);
                serve_http(&proxy, scope, arrival, stream, None, from, &open).await
            }
            Handling::Tcp(split) => {
                let stream = ReadAhead::new(Bytes::new(), TransportSocket::Plain(stream));
                tcp::forward(&proxy, stream, &split, from, &open.activity).await
            }
            Handling::Tls(port) => tls::serve(&proxy, port, stream, from, &open).await,
            Handling::PassThrough(to) => tcp::pass_through(&proxy, stream, to, client, &open.activity).await,
            Handling::Close(reason) => {
                proxy.stats.refused_connections.inc();
                Err(io::Error::other(reason))
            }
        }
    };
    let done = tokio::select! {
        biased;
        done = served => done,
        () = open.activity.evicted() => Err(io::Error::other("evicted for other clients")),
    };
    if let Err(error) = done {
        tracing::debug!(%client, %error, "closed connection");
    }
    drop(open);
}

/// The addresses of a connection: those of its socket, or of the PROXY protocol header that a gateway requires.
async fn addresses(
    proxy: &ProxyShared,
    kind: &ListenerKind,
    stream: &mut TcpStream,
    client: SocketAddr,
) -> io::Result<ConnectionAddresses> {
    let own = ConnectionAddresses { client, local: stream.local_addr()? };
    let edge = &proxy.settings.edge;
    if !edge.proxy_protocol || !matches!(kind, ListenerKind::Gateway { .. }) {
        return Ok(own);
    }
    if !edge.trusted_proxies.contains(client.ip()) {
        return Err(io::Error::other("client is not a trusted proxy"));
    }
    let header = timeout(proxy.settings.timeouts.headers, proxy_protocol::read(stream)).await??;
    Ok(header.unwrap_or(own))
}

fn handling(active: &ActiveTables, kind: &ListenerKind, stream: &TcpStream) -> Handling {
    let routes = &active.tables.routes;
    match kind {
        ListenerKind::Outbound { service, port } => match routes.outbound(service, *port) {
            Some(outbound) => of_routing(&outbound.routing, service, *port),
            None => Handling::Close("unknown Service or port"),
        },
        ListenerKind::OriginalDestination => match listener_filters::original_destination(stream) {
            Ok(address) => match routes.outbound_at(address) {
                Some(outbound) => of_routing(&outbound.routing, &outbound.service, outbound.port),
                None => Handling::PassThrough(address),
            },
            Err(_) => Handling::Close("unknown original destination"),
        },
        ListenerKind::Gateway { port } => match routes.port(*port) {
            Some(found) => of_port(found),
            None => Handling::Close("gateway has no listener on this port"),
        },
    }
}

fn of_routing(routing: &Routing, service: &ServiceKey, port: u16) -> Handling {
    match routing {
        Routing::Http(_) => {
            let arrival = Arrival { scheme: Scheme::Http, port: None };
            Handling::Http(RouteScope::Outbound(service.clone(), port), arrival)
        }
        Routing::Tcp(split) => Handling::Tcp(split.clone()),
    }
}

fn of_port(port: &GatewayPort) -> Handling {
    let number = port.number;
    match port.protocol {
        MeshGatewayProtocol::Http => {
            let arrival = Arrival { scheme: Scheme::Http, port: Some(number) };
            Handling::Http(RouteScope::Gateway(number, None), arrival)
        }
        MeshGatewayProtocol::Https | MeshGatewayProtocol::Tls => Handling::Tls(number),
        MeshGatewayProtocol::Tcp => match port.listeners.iter().find_map(tcp_split) {
            Some(split) => Handling::Tcp(split),
            None => Handling::Close("no route for this port"),
        },
    }
}

fn tcp_split(listener: &Listener) -> Option<Arc<WeightedBackends>> {
    listener.hosts.iter().find_map(|(_, routing)| match routing {
        Routing::Tcp(split) => Some(split.clone()),
        Routing::Http(_) => None,
    })
}

/// Serves HTTP requests. `is_http2` is `None` where ALPN did not negotiate it; then the first bytes decide.
pub(super) async fn serve_http(
    proxy: &Arc<ProxyShared>,
    scope: RouteScope,
    arrival: Arrival,
    mut stream: TransportSocket,
    is_http2: Option<bool>,
    addresses: ConnectionAddresses,
    open: &Arc<OpenConnection>,
) -> io::Result<()> {
    let timeouts = &proxy.settings.timeouts;
    let (is_http2, ahead) = match is_http2 {
        Some(is_http2) => (is_http2, Bytes::new()),
        None => timeout(timeouts.headers, listener_filters::detect_http2(&mut stream)).await??,
    };
    let activity = open.activity.clone();
    let stream = ReadAhead::new(ahead, stream);
    let stream = DownstreamStream::new(stream, activity.clone(), is_http2, &proxy.settings);
    let connection = Arc::new(HttpConnection {
        proxy: proxy.clone(),
        scope,
        arrival,
        addresses,
        activity,
        open: open.clone(),
    });
    let phase = proxy.phase.subscribe();
    let served = if is_http2 {
        serve_http2(connection, TokioIo::new(stream), phase).await
    } else {
        serve_http1(connection, TokioIo::new(stream), phase).await
    };
    served.map_err(io::Error::other)
}

async fn serve_http1(
    connection: Arc<HttpConnection>,
    stream: TokioIo<DownstreamStream>,
    phase: watch::Receiver<DrainPhase>,
) -> hyper::Result<()> {
    let limits = &connection.proxy.settings.limits;
    let server = http1::Builder::new()
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.http1_buffer())
        // `DownstreamStream` has one timer per connection for it; hyper would arm one per request.
        .header_read_timeout(None)
        .clone();
    let service = service_fn(|request| router::respond(connection.clone(), request));
    let served = server.serve_connection(stream, service).with_upgrades();
    serve_until_closed(served, |served| served.graceful_shutdown(), phase).await
}

async fn serve_http2(
    connection: Arc<HttpConnection>,
    stream: TokioIo<DownstreamStream>,
    phase: watch::Receiver<DrainPhase>,
) -> hyper::Result<()> {
    let server = http2_limits::server(&connection.proxy.settings.limits);
    let service = {
        let connection = connection.clone();
        service_fn(move |request| router::respond(connection.clone(), request))
    };
    let served = server.serve_connection(stream, service);
    serve_until_closed(served, |served| served.graceful_shutdown(), phase).await
}

/// Serves until the client disconnects or the proxy closes; draining starts a graceful shutdown.
async fn serve_until_closed<C: Future<Output = hyper::Result<()>>>(
    served: C,
    graceful_shutdown: impl Fn(Pin<&mut C>),
    mut phase: watch::Receiver<DrainPhase>,
) -> hyper::Result<()> {
    let mut served = std::pin::pin!(served);
    loop {
        tokio::select! {
            biased;
            Ok(()) = phase.changed() => match *phase.borrow_and_update() {
                DrainPhase::Serving => {}
                DrainPhase::Draining => graceful_shutdown(served.as_mut()),
                DrainPhase::Closed => return Ok(()),
            },
            result = served.as_mut() => return result,
        }
    }
}
