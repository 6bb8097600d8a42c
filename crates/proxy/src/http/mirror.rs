//! Mirrored requests: copies for other backends, whose responses are discarded.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, header};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use super::body::{self, MirrorSender, RequestBody};
use super::forward::{is_gateway_failure, translate};
use super::headers::path_and_query;
use super::route_rule::CompiledRule;
use crate::downstream::connection::HttpConnection;
use crate::proxy::ProxyShared;
use crate::proxy_protocol::ConnectionAddresses;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::connection_pool::{Connector, PooledConnection, Purpose, UpstreamSender};

/// Starts the mirrored requests of a rule, and returns the senders that need the frames of the body.
pub(super) fn send(
    connection: &HttpConnection,
    rule: &CompiledRule,
    parts: &Parts,
    body: &Incoming,
) -> Vec<MirrorSender> {
    let (proxy, from) = (&connection.proxy, connection.addresses);
    let mut senders = Vec::new();
    for (mirror, backend) in &rule.mirrors {
        if !mirror.wants(proxy.random.next()) {
            continue;
        }
        let Some(permit) = MirrorPermit::acquire(proxy) else {
            proxy.stats.dropped_mirrors.inc();
            continue;
        };
        let body = if body.is_end_stream() {
            RequestBody::Empty
        } else {
            let (sender, body) = body::mirror(body.size_hint());
            senders.push(sender);
            RequestBody::Mirror(body)
        };
        let backend = backend.clone();
        backend.stats.mirrored.inc();
        let request = copy_request(parts, body);
        let is_grpc = rule.extension.as_ref().is_some_and(|extension| extension.is_grpc);
        let purpose = if is_grpc { Purpose::Grpc } else { Purpose::Request };
        tokio::spawn(async move {
            send_copy(&permit.0, &backend, request, purpose, from).await;
            drop(permit);
        });
    }
    senders
}

/// One of the mirrored requests in flight.
struct MirrorPermit(Arc<ProxyShared>);

impl MirrorPermit {
    fn acquire(proxy: &Arc<ProxyShared>) -> Option<Self> {
        let before = proxy.mirrors.fetch_add(1, Relaxed);
        let permit = Self(proxy.clone());
        (before < proxy.settings.limits.mirrors).then_some(permit)
    }
}

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        self.0.mirrors.fetch_sub(1, Relaxed);
    }
}

/// Semantics 1.7: mutated headers, rewritten path, and a host that distinguishes the copy.
fn copy_request(parts: &Parts, body: RequestBody) -> Request<RequestBody> {
    let mut copy = Request::new(body);
    *copy.method_mut() = parts.method.clone();
    *copy.uri_mut() = path_and_query(&parts.uri).into();
    *copy.headers_mut() = HeaderMap::clone(&parts.headers);
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if let Some(shadow) = host.and_then(|host| HeaderValue::from_str(&shadow(host)).ok()) {
        copy.headers_mut().insert(header::HOST, shadow);
    }
    copy
}

/// `name-shadow`, and `name-shadow:80` where there is a port.
fn shadow(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => format!("{name}-shadow:{port}"),
        _ => format!("{host}-shadow"),
    }
}

/// Without retries: a lost copy is not sent again.
async fn send_copy(
    proxy: &ProxyShared,
    backend: &UpstreamBackend,
    mut request: Request<RequestBody>,
    purpose: Purpose,
    from: ConnectionAddresses,
) {
    let settings = &proxy.settings;
    let balancer = backend.load_balancer();
    let key = balancer.key_of_request(request.headers(), from.client.ip());
    let chosen = balancer.pick(&proxy.random, proxy.now(), key, &[]);
    let Some(endpoint) = chosen.map(|chosen| &chosen.endpoint) else { return };
    let connector = Connector { proxy, backend, claimant: None, from: &from };
    let Ok(mut connection) = PooledConnection::acquire(endpoint, connector, purpose).await else {
        backend.stats.connect_failures.inc();
        return;
    };
    translate(&mut request, &connection);
    let response = async {
        let mut response = match connection.sender.as_mut()? {
            UpstreamSender::Http1(sender) => sender.try_send_request(request).await.ok()?,
            UpstreamSender::Http2(sender, _) => sender.try_send_request(request).await.ok()?,
        };
        if !is_gateway_failure(response.status()) {
            endpoint.outlier.succeeded();
        }
        discard(response.body_mut()).await
    };
    if timeout(settings.timeouts.response, response).await.ok().flatten().is_some() {
        connection.release();
    }
}

/// Reading a longer response costs more than a new connection.
const MAX_DISCARDED: usize = 1 << 20;

async fn discard(body: &mut Incoming) -> Option<()> {
    let mut read = 0;
    while read < MAX_DISCARDED {
        let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            None => return Some(()),
            Some(frame) => read += frame.ok()?.data_ref().map_or(0, |data| data.len()),
        }
    }
    None
}
