//! Connections that stop being HTTP: WebSocket and whatever else client and endpoint agree on.
//!
//! Both sides ask and are asked by `Upgrade` in HTTP/1.1 and by extended CONNECT in HTTP/2 (RFC 8441), whatever the
//! other side speaks. An endpoint of HTTP/2 that does not offer it is asked in HTTP/1.1: many speak both.

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

use crate::body::{AnswerBody, OutBody};
use crate::connection::Connection;
use crate::edits::{self, strip};
use crate::pool::Lease;
use crate::random::Random;
use crate::rules::Rule;
use crate::ticket::Ticket;
use crate::tunnel;

/// What a client wants its connection to become.
pub(crate) struct Wish {
    protocol: HeaderValue,
    client: OnUpgrade,
    /// The key of a WebSocket: the client's, or ours where HTTP/2 had none.
    key: Option<HeaderValue>,
    pub(crate) is_connect: bool,
}

/// Why an endpoint could not be asked.
pub(crate) const NOT_OFFERED: &str = "the endpoint speaks HTTP/2 without extended CONNECT (RFC 8441), and does not speak HTTP/1.1: it cannot upgrade";

impl Wish {
    /// What a request wishes, if anything.
    pub(crate) fn of(parts: &mut Parts, random: &Random) -> Option<Self> {
        let is_connect = parts.method == Method::CONNECT;
        let protocol = if is_connect {
            HeaderValue::from_str(parts.extensions.get::<Protocol>()?.as_str()).ok()?
        } else {
            edits::upgrade(&parts.headers)?
        };
        let client = parts.extensions.remove::<OnUpgrade>()?;
        let key =
            if is_connect { new_key(random) } else { parts.headers.get(header::SEC_WEBSOCKET_KEY).cloned() };
        Some(Self { protocol, client, key, is_connect })
    }

    /// Puts the wish on the request to an endpoint that is asked in HTTP/1.1.
    pub(crate) fn ask_http1(&self, request: &mut Request<OutBody>) {
        *request.method_mut() = Method::GET;
        request.extensions_mut().remove::<Protocol>();
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
        if let Some(key) = &self.key {
            headers.insert(header::SEC_WEBSOCKET_KEY, key.clone());
        }
    }

    /// The same in HTTP/2.
    pub(crate) fn ask_http2(&self, request: &mut Request<OutBody>) {
        let Ok(protocol) = self.protocol.to_str() else { return };
        *request.method_mut() = Method::CONNECT;
        request.extensions_mut().insert(Protocol::from(protocol));
        for name in [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_KEY] {
            request.headers_mut().remove(name);
        }
    }

    /// Whether the endpoint agreed, by the version that it was asked in.
    pub(crate) fn is_granted(&self, status: StatusCode, by_http2: bool) -> bool {
        status == if by_http2 { StatusCode::OK } else { StatusCode::SWITCHING_PROTOCOLS }
    }

    /// RFC 6455, 4.2.2: what shows a client of HTTP/1.1 that its key was read. In HTTP/2 nobody asks.
    fn accept(&self) -> Option<HeaderValue> {
        const SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
        if !self.protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
            return None;
        }
        let salted = [self.key.as_ref()?.as_bytes(), SALT].concat();
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &salted);
        HeaderValue::from_str(&BASE64_STANDARD.encode(hash)).ok()
    }
}

fn new_key(random: &Random) -> Option<HeaderValue> {
    let bytes = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
    HeaderValue::from_str(&BASE64_STANDARD.encode(bytes)).ok()
}

/// The endpoint agreed: joins the two connections, and tells the client.
pub(crate) fn join(
    connection: &Connection,
    wish: Wish,
    mut response: Response<Incoming>,
    lease: Lease,
    rule: Option<&Rule>,
    mut ticket: Ticket,
) -> Response<AnswerBody> {
    let endpoint = hyper::upgrade::on(&mut response);
    let agreed = response.headers().get(header::UPGRADE).cloned().unwrap_or_else(|| wish.protocol.clone());
    let accept = if lease.is_http2() && !wish.is_connect { wish.accept() } else { None };
    let proxy = connection.proxy.clone();
    let alive = connection.alive.clone();
    let client = wish.client;
    tokio::spawn(async move {
        if let (Ok(client), Ok(endpoint)) = tokio::join!(client, endpoint) {
            let idle = proxy.settings.timeouts.idle;
            let phase = proxy.phase.subscribe();
            let _ = tunnel::carry(TokioIo::new(client), TokioIo::new(endpoint), idle, phase).await;
        }
        drop((lease, alive));
    });
    let (mut parts, _) = response.into_parts();
    strip(&mut parts.headers);
    if let Some(rule) = rule {
        rule.response.apply(&mut parts.headers);
    }
    if wish.is_connect {
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
    ticket.status = parts.status.as_u16();
    Response::from_parts(parts, AnswerBody::own(Bytes::new(), ticket))
}
