//! TLS at a gateway's port: the listener is chosen by server name; TLS is terminated with its certificate, or forwarded
//! unread where it has none.

use std::io;
use std::sync::Arc;

use ::listener::{ConnectionOwner, HandshakeTurns};
use bytes::Bytes;
use model::Name;
use model::route::{Arrival, MeshGatewayProtocol, Routing, Scheme, WeightedBackends};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::client_certificates::usable_certificates;
use super::connection::{RouteScope, serve_http};
use super::listener::OpenConnection;
use super::listener_filters;
use super::transport_socket::{ReadAhead, TransportSocket};
use crate::active_tables::ActiveTables;
use crate::certificates::ServerConfigs;
use crate::proxy::ProxyShared;
use crate::proxy_protocol::ConnectionAddresses;
use crate::tcp;

/// The listener of a server name.
struct ListenerMatch {
    /// `None` without a usable certificate.
    configs: Option<ServerConfigs>,
    split: Option<Arc<WeightedBackends>>,
    is_terminated: bool,
    protocol: MeshGatewayProtocol,
}

fn match_listener(active: &ActiveTables, port: u16, server_name: &str) -> Option<ListenerMatch> {
    let listener = active.tables.routes.port(port)?.listener(server_name)?;
    let own = active.listener_tls.get(&(port, listener.name.clone())).map(|tls| &tls.configs);
    let configs = own.or_else(|| {
        // A listener whose clients are to be validated is not served without its authority.
        let mut usable = usable_certificates(&active.tables, listener).filter(|_| listener.clients.is_none());
        usable.next().map(|only| &only.configs)
    });
    let split = match listener.routing(server_name) {
        Some(Routing::Tcp(split)) => Some(split.clone()),
        _ => None,
    };
    Some(ListenerMatch {
        configs: configs.cloned(),
        split,
        is_terminated: !listener.certificates.is_empty(),
        protocol: listener.protocol,
    })
}

/// The fatal alert `unrecognized_name` (RFC 6066, 3), in the record format of every TLS version.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

pub(super) async fn serve(
    proxy: &Arc<ProxyShared>,
    port: u16,
    mut stream: TcpStream,
    from: ConnectionAddresses,
    open: &Arc<OpenConnection>,
) -> io::Result<()> {
    let failed = || proxy.stats.failed_handshakes.inc();
    let within = proxy.settings.timeouts.headers;
    let hello = timeout(within, listener_filters::read_server_name(&mut stream)).await;
    let hello = hello.map_err(io::Error::from).and_then(|hello| hello);
    let (server_name, ahead) = hello.inspect_err(|_| failed())?;
    let server_name = server_name.unwrap_or_default();
    let Some(found) = match_listener(&proxy.active_tables(), port, &server_name) else {
        failed();
        let _ = timeout(within, stream.write_all(&UNRECOGNIZED_NAME)).await;
        return Err(io::Error::other("no listener for this server name"));
    };
    let no_route = || io::Error::other("no route for this listener and server name");
    if !found.is_terminated && found.protocol == MeshGatewayProtocol::Tls {
        let split = found.split.ok_or_else(no_route)?;
        let stream = ReadAhead::new(ahead, TransportSocket::Plain(stream));
        return tcp::forward(proxy, stream, &split, from, &open.activity).await;
    }
    let Some(configs) = found.configs else {
        failed();
        return Err(io::Error::other("certificate of the listener, or authority of its clients, is missing"));
    };
    let is_http = found.protocol.is_http();
    let config = if is_http { configs.http } else { configs.tcp };
    let handshake = async { TlsAcceptor::from(config).accept(ReadAhead::new(ahead, stream)).await };
    let source = ConnectionOwner::source(from.client.ip());
    let stream = timeout(within, HandshakeTurns::of_process().run(&source, handshake))
        .await?
        .inspect_err(|_| failed())?;
    if !is_http {
        let split = found.split.ok_or_else(no_route)?;
        let stream = ReadAhead::new(Bytes::new(), TransportSocket::Tls(Box::new(stream)));
        return tcp::forward(proxy, stream, &split, from, &open.activity).await;
    }
    let is_http2 = stream.get_ref().1.alpn_protocol().map(|protocol| protocol == b"h2");
    let scope = RouteScope::Gateway(port, Some(Name::new(&server_name)));
    let arrival = Arrival { scheme: Scheme::Https, port: Some(port) };
    serve_http(proxy, scope, arrival, TransportSocket::Tls(Box::new(stream)), is_http2, from, open).await
}
