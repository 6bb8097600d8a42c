//! Connections that stop being HTTP: WebSocket and whatever else client and endpoint agree on.
//!
//! A client asks by `Upgrade` in HTTP/1.1 and by extended CONNECT in HTTP/2 (RFC 8441); endpoints are asked in
//! HTTP/1.1.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::body::AnswerBody;
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
    /// The key that HTTP/1.1 wants for a WebSocket, where HTTP/2 had none.
    key: Option<HeaderValue>,
    pub(crate) is_connect: bool,
}

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
        let key = is_connect.then(|| {
            let bytes = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
            HeaderValue::from_str(&BASE64_STANDARD.encode(bytes)).ok()
        });
        Some(Self { protocol, client, key: key.flatten(), is_connect })
    }

    /// Puts the wish on the request to the endpoint.
    pub(crate) fn ask(&self, parts: &mut Parts) {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, self.protocol.clone());
        if self.is_connect {
            parts.method = Method::GET;
        }
        if let Some(key) = &self.key {
            parts.headers.insert(header::SEC_WEBSOCKET_KEY, key.clone());
        }
    }
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
    let agreed = response.headers().get(header::UPGRADE).cloned().unwrap_or(wish.protocol);
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
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, agreed);
    }
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    ticket.status = parts.status.as_u16();
    Response::from_parts(parts, AnswerBody::own(Bytes::new(), ticket))
}
