//! Upgrades: connections that switch from HTTP to WebSocket or another protocol.
//!
//! HTTP/1.1 uses `Upgrade`, HTTP/2 extended CONNECT (RFC 8441); each side uses its own version. An HTTP/2 endpoint that
//! does not offer extended CONNECT is asked in HTTP/1.1, because many servers speak both.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ring::digest;

use super::body::{RequestBody, ResponseBody};
use super::headers::{strip_hop_by_hop, upgrade_protocol};
use super::response_changes::ResponseChanges;
use crate::downstream::connection::HttpConnection;
use crate::random::SharedRandom;
use crate::request_log::RequestLog;
use crate::tcp::tunnel;
use crate::upstream::connection_pool::PooledConnection;

/// The upgrade that a client requests.
pub(super) struct UpgradeRequest {
    pub(super) protocol: HeaderValue,
    client: OnUpgrade,
    /// The WebSocket key: the client's, or a new one for a client of HTTP/2, which has none.
    key: Option<HeaderValue>,
    pub(super) is_connect: bool,
}

/// The reason of a 502.
pub(super) const NOT_OFFERED: &str =
    "endpoint cannot upgrade: it speaks neither HTTP/2 with extended CONNECT (RFC 8441) nor HTTP/1.1";

impl UpgradeRequest {
    pub(super) fn of(parts: &mut Parts, random: &SharedRandom) -> Option<Self> {
        let is_connect = parts.method == Method::CONNECT;
        let protocol = if is_connect {
            HeaderValue::from_str(parts.extensions.get::<Protocol>()?.as_str()).ok()?
        } else {
            upgrade_protocol(&parts.headers)?
        };
        let client = parts.extensions.remove::<OnUpgrade>()?;
        let key =
            if is_connect { new_key(random) } else { parts.headers.get(header::SEC_WEBSOCKET_KEY).cloned() };
        Some(Self { protocol, client, key, is_connect })
    }

    /// Writes the upgrade into a request over HTTP/1.1.
    pub(super) fn write_http1(&self, request: &mut Request<RequestBody>) {
        *request.method_mut() = Method::GET;
        request.extensions_mut().remove::<Protocol>();
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
        if let Some(key) = &self.key {
            headers.insert(header::SEC_WEBSOCKET_KEY, key.clone());
        }
    }

    /// Writes the upgrade into a request over HTTP/2.
    pub(super) fn write_http2(&self, request: &mut Request<RequestBody>) {
        let Ok(protocol) = self.protocol.to_str() else { return };
        *request.method_mut() = Method::CONNECT;
        request.extensions_mut().insert(Protocol::from(protocol));
        for name in [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_KEY] {
            request.headers_mut().remove(name);
        }
    }

    pub(super) fn is_accepted(&self, status: StatusCode, by_http2: bool) -> bool {
        status == if by_http2 { StatusCode::OK } else { StatusCode::SWITCHING_PROTOCOLS }
    }

    /// RFC 6455, 4.2.2: the `Sec-WebSocket-Accept` of an HTTP/1.1 client whose endpoint speaks HTTP/2.
    fn websocket_accept(&self) -> Option<HeaderValue> {
        const SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
        if !self.protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
            return None;
        }
        let salted = [self.key.as_ref()?.as_bytes(), SALT].concat();
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &salted);
        HeaderValue::from_str(&BASE64_STANDARD.encode(hash)).ok()
    }
}

fn new_key(random: &SharedRandom) -> Option<HeaderValue> {
    let bytes = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
    HeaderValue::from_str(&BASE64_STANDARD.encode(bytes)).ok()
}

/// Joins the two connections after the endpoint accepted, and builds the response to the client.
pub(super) fn join(
    connection: &HttpConnection,
    upgrade: UpgradeRequest,
    mut response: Response<Incoming>,
    upstream: PooledConnection,
    changes: &ResponseChanges<'_>,
    mut request_log: RequestLog,
) -> Response<ResponseBody> {
    let endpoint = hyper::upgrade::on(&mut response);
    let agreed = response.headers().get(header::UPGRADE).cloned().unwrap_or_else(|| upgrade.protocol.clone());
    let accept = if upstream.is_http2() && !upgrade.is_connect { upgrade.websocket_accept() } else { None };
    let proxy = connection.proxy.clone();
    let open = connection.open.clone();
    // The tunnel keeps the slots, and is a request for as long as it is open.
    let slots = request_log.take_slots();
    let activity = connection.activity.clone();
    activity.request_started(proxy.now());
    let is_connect = upgrade.is_connect;
    let client = upgrade.client;
    tokio::spawn(async move {
        if let (Ok(client), Ok(endpoint)) = tokio::join!(client, endpoint) {
            let idle = proxy.settings.timeouts.idle;
            let phase = proxy.phase.subscribe();
            let joined = tunnel::copy(TokioIo::new(client), TokioIo::new(endpoint), idle, phase);
            tokio::select! {
                biased;
                _ = joined => {}
                // A stream of HTTP/2 ends with its connection, which waits for the signal itself.
                () = activity.evicted(), if !is_connect => {}
            }
        }
        activity.request_ended();
        drop((upstream, slots, open));
    });
    let (mut parts, _) = response.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    changes.apply(&mut parts.headers);
    if upgrade.is_connect {
        parts.status = StatusCode::OK;
        parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
    } else {
        parts.status = StatusCode::SWITCHING_PROTOCOLS;
        if let Some(accept) = accept {
            parts.headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, agreed);
    }
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    request_log.status = parts.status.as_u16();
    Response::from_parts(parts, ResponseBody::local(Bytes::new(), request_log))
}
