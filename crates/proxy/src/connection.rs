//! One connection of a client: which routes it is for, and whether its requests are told apart or it is carried
//! whole.
//!
//! ```text
//! Outbound, OriginalDestination -> Outbound of the table -> HTTP or TCP; unknown destinations pass through
//! Gateway -> port -> TLS by server name, or none -> HTTP by host, or TCP
//! ```

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use model::route::{Arrival, GatewayPort, GatewayProtocol, Listener, Routing, Scheme, WeightedBackends};
use model::{Name, ServiceKey};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::certificate::KeyPair;
use crate::exchange;
use crate::original;
use crate::pool::{buffer, connection_window, stream_window};
use crate::proxy::{Alive, Entrance, Inner, Phase};
use crate::sniff;
use crate::state::State;
use crate::stream::{Activity, Ahead, Carrier, ClientStream};
use crate::tcp;

/// What the requests of a connection have in common.
pub(crate) struct Connection {
    pub(crate) proxy: Arc<Inner>,
    pub(crate) place: Place,
    pub(crate) arrival: Arrival,
    pub(crate) client: SocketAddr,
    pub(crate) activity: Arc<Activity>,
    /// Held by what becomes of the connection, too.
    pub(crate) alive: Arc<Alive>,
}

/// Where the routes of a connection's requests are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// At a Service's port.
    Outbound(ServiceKey, u16),
    /// At a gateway's port; with TLS, at the listener that the server name chose.
    Gateway(u16, Option<Name>),
}

/// What to do with a connection, as the tables stand.
enum Course {
    Http(Place, Arrival),
    Tcp(Arc<WeightedBackends>),
    Tls(u16),
    PassThrough(SocketAddr),
    Close(&'static str),
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    proxy: Arc<Inner>,
    entrance: &Entrance,
    stream: TcpStream,
    client: SocketAddr,
    alive: Arc<Alive>,
) {
    // Small writes are whole messages here.
    let _ = stream.set_nodelay(true);
    let course = course(&proxy.state(), entrance, &stream);
    let done = match course {
        Course::Http(place, arrival) => {
            let stream = Carrier::Plain(stream);
            http(&proxy, place, arrival, stream, None, client, &alive).await
        }
        Course::Tcp(split) => {
            tcp::split(&proxy, Ahead::new(Bytes::new(), Carrier::Plain(stream)), &split, client).await
        }
        Course::Tls(port) => tls(&proxy, port, stream, client, &alive).await,
        Course::PassThrough(address) => tcp::pass_through(&proxy, stream, address, client).await,
        Course::Close(why) => {
            proxy.counts.refused.add();
            Err(io::Error::other(why))
        }
    };
    if let Err(error) = done {
        tracing::debug!(%client, %error, "a connection was closed");
    }
    drop(alive);
}

fn course(state: &State, entrance: &Entrance, stream: &TcpStream) -> Course {
    let routes = &state.tables.routes;
    match entrance {
        Entrance::Outbound { service, port } => match routes.outbound(service, *port) {
            Some(outbound) => of_routing(&outbound.routing, service, *port),
            None => Course::Close("the Service or its port is not known"),
        },
        Entrance::OriginalDestination => match original::destination(stream) {
            Ok(address) => match routes.outbound_at(address) {
                Some(outbound) => of_routing(&outbound.routing, &outbound.service, outbound.port),
                // No Service of ours: it goes where it was going.
                None => Course::PassThrough(address),
            },
            Err(_) => Course::Close("the original destination is not known"),
        },
        Entrance::Gateway { port } => match routes.port(*port) {
            Some(found) => of_port(found),
            None => Course::Close("the gateway has no listener on this port"),
        },
    }
}

fn of_routing(routing: &Routing, service: &ServiceKey, port: u16) -> Course {
    match routing {
        Routing::Http(_) => {
            let arrival = Arrival { scheme: Scheme::Http, port: None };
            Course::Http(Place::Outbound(service.clone(), port), arrival)
        }
        Routing::Tcp(split) => Course::Tcp(split.clone()),
    }
}

fn of_port(port: &GatewayPort) -> Course {
    let number = port.number;
    match port.protocol {
        GatewayProtocol::Http => {
            Course::Http(Place::Gateway(number, None), Arrival { scheme: Scheme::Http, port: Some(number) })
        }
        GatewayProtocol::Https | GatewayProtocol::Tls => Course::Tls(number),
        GatewayProtocol::Tcp => match port.listeners.iter().find_map(tcp_split) {
            Some(split) => Course::Tcp(split),
            None => Course::Close("no MeshTCPRoute leads on from this port"),
        },
    }
}

fn tcp_split(listener: &Listener) -> Option<Arc<WeightedBackends>> {
    listener.hosts.iter().find_map(|(_, routing)| match routing {
        Routing::Tcp(split) => Some(split.clone()),
        Routing::Http(_) => None,
    })
}

/// The listener that a server name chooses, and what it does.
struct Chosen {
    listener: Name,
    key: Option<Arc<KeyPair>>,
    split: Option<Arc<WeightedBackends>>,
    is_terminated: bool,
    protocol: GatewayProtocol,
}

fn by_server_name(state: &State, port: u16, name: &str) -> Option<Chosen> {
    let port = state.tables.routes.port(port)?;
    let listener = port.listener(name)?;
    let secret = listener.certificate.as_ref().map(|certificate| &certificate.secret);
    let split = match listener.routing(name) {
        Some(Routing::Tcp(split)) => Some(split.clone()),
        _ => None,
    };
    Some(Chosen {
        listener: listener.name.clone(),
        key: secret.and_then(|secret| state.tables.certificates.get(secret)).cloned(),
        split,
        is_terminated: secret.is_some(),
        protocol: port.protocol,
    })
}

/// The alert of TLS that says so (RFC 6066, 3), fatal, in the record that every version reads.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// TLS at a gateway: ended here with the listener's certificate, or carried on unread where it has none.
async fn tls(
    proxy: &Arc<Inner>,
    port: u16,
    mut stream: TcpStream,
    client: SocketAddr,
    alive: &Arc<Alive>,
) -> io::Result<()> {
    let patience = proxy.settings.timeouts.headers;
    let greeted = timeout(patience, sniff::server_name(&mut stream)).await;
    let greeted = greeted.map_err(io::Error::from).and_then(|greeted| greeted);
    let (name, ahead) = greeted.inspect_err(|_| proxy.counts.handshakes_failed.add())?;
    let name = name.unwrap_or_default();
    let Some(chosen) = by_server_name(&proxy.state(), port, &name) else {
        proxy.counts.handshakes_failed.add();
        let _ = timeout(patience, stream.write_all(&UNRECOGNIZED_NAME)).await;
        return Err(io::Error::other("no listener is for this server name"));
    };
    if !chosen.is_terminated && chosen.protocol == GatewayProtocol::Tls {
        let split = chosen.split.ok_or_else(|| io::Error::other("no MeshTCPRoute leads on"))?;
        return tcp::split(proxy, Ahead::new(ahead, Carrier::Plain(stream)), &split, client).await;
    }
    let Some(key) = chosen.key else {
        proxy.counts.handshakes_failed.add();
        return Err(io::Error::other("the listener's certificate is not there"));
    };
    let is_http = chosen.protocol.is_http();
    let config = if is_http { key.http.clone() } else { key.bytes.clone() };
    let handshake = TlsAcceptor::from(config).accept(Ahead::new(ahead, stream));
    let stream = timeout(patience, handshake).await?.inspect_err(|_| proxy.counts.handshakes_failed.add())?;
    if !is_http {
        let split = chosen.split.ok_or_else(|| io::Error::other("no MeshTCPRoute leads on"))?;
        let stream = Ahead::new(Bytes::new(), Carrier::Tls(Box::new(stream)));
        return tcp::split(proxy, stream, &split, client).await;
    }
    let is_h2 = stream.get_ref().1.alpn_protocol().map(|protocol| protocol == b"h2");
    let place = Place::Gateway(port, Some(chosen.listener));
    let arrival = Arrival { scheme: Scheme::Https, port: Some(port) };
    http(proxy, place, arrival, Carrier::Tls(Box::new(stream)), is_h2, client, alive).await
}

/// Serves requests. `is_h2` where the handshake has settled it; else the client's first bytes tell.
async fn http(
    proxy: &Arc<Inner>,
    place: Place,
    arrival: Arrival,
    mut stream: Carrier,
    is_h2: Option<bool>,
    client: SocketAddr,
    alive: &Arc<Alive>,
) -> io::Result<()> {
    let (is_h2, ahead) = match is_h2 {
        Some(is_h2) => (is_h2, Bytes::new()),
        None => timeout(proxy.settings.timeouts.headers, sniff::preface(&mut stream)).await??,
    };
    let activity = Arc::new(Activity::new(&proxy.budget));
    let stream =
        ClientStream::new(Ahead::new(ahead, stream), activity.clone(), is_h2, &proxy.settings.timeouts);
    let connection =
        Arc::new(Connection { proxy: proxy.clone(), place, arrival, client, activity, alive: alive.clone() });
    let phase = proxy.phase.subscribe();
    let served = if is_h2 {
        http2(connection, TokioIo::new(stream), phase).await
    } else {
        http1(connection, TokioIo::new(stream), phase).await
    };
    served.map_err(io::Error::other)
}

async fn http1(
    connection: Arc<Connection>,
    stream: TokioIo<ClientStream>,
    phase: watch::Receiver<Phase>,
) -> hyper::Result<()> {
    let limits = &connection.proxy.settings.limits;
    let server = http1::Builder::new()
        .max_header_size(limits.header_bytes)
        .max_buf_size(buffer(limits))
        // The watch of the stream does it, for all requests of a connection with one timer.
        .header_read_timeout(None)
        .clone();
    let service = service_fn(|request| exchange::answer(connection.clone(), request));
    let served = server.serve_connection(stream, service).with_upgrades();
    to_its_end(served, |served| served.graceful_shutdown(), phase).await
}

async fn http2(
    connection: Arc<Connection>,
    stream: TokioIo<ClientStream>,
    phase: watch::Receiver<Phase>,
) -> hyper::Result<()> {
    let limits = &connection.proxy.settings.limits;
    let server = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(stream_window(limits))
        .initial_connection_window_size(connection_window(limits, limits.streams))
        .max_send_buf_size(limits.buffer)
        .keep_alive_interval(std::time::Duration::from_secs(30))
        .keep_alive_timeout(std::time::Duration::from_secs(20))
        .enable_connect_protocol()
        .clone();
    let service = {
        let connection = connection.clone();
        service_fn(move |request| exchange::answer(connection.clone(), request))
    };
    let served = server.serve_connection(stream, service);
    to_its_end(served, |served| served.graceful_shutdown(), phase).await
}

/// Serves until the client goes, or the proxy ends: then the client is told to go, and left when there is no more time.
async fn to_its_end<C: Future<Output = hyper::Result<()>>>(
    served: C,
    tell_to_go: impl Fn(Pin<&mut C>),
    mut phase: watch::Receiver<Phase>,
) -> hyper::Result<()> {
    let mut served = std::pin::pin!(served);
    loop {
        tokio::select! {
            result = served.as_mut() => return result,
            Ok(()) = phase.changed() => match *phase.borrow_and_update() {
                Phase::Serving => {}
                Phase::Draining => tell_to_go(served.as_mut()),
                Phase::Closed => return Ok(()),
            },
        }
    }
}
