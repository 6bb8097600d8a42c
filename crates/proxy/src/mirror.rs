//! Copies of requests for backends whose answers nobody waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, header};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use crate::body::{self, CopySender, OutBody};
use crate::edits::target;
use crate::forward::{fit, is_gateway_failure};
use crate::pool::{Lease, Lent, Use};
use crate::proxy::Inner;
use crate::rules::Rule;
use crate::slot::Slot;

/// Sends the copies that a rule wants. What comes back gets the body's frames.
pub(crate) fn send(proxy: &Arc<Inner>, rule: &Rule, parts: &Parts, body: &Incoming) -> Vec<CopySender> {
    let mut senders = Vec::new();
    for (mirror, slot) in &rule.mirrors {
        if !mirror.wants(proxy.random.next()) {
            continue;
        }
        let Some(place) = Place::take(proxy) else {
            proxy.counts.mirrors_left_out.add();
            continue;
        };
        let body = if body.is_end_stream() {
            OutBody::Empty
        } else {
            let (sender, body) = body::copy(body.size_hint());
            senders.push(sender);
            OutBody::Copy(body)
        };
        let slot = slot.clone();
        slot.counts.mirrored.add();
        let request = copy(parts, body);
        tokio::spawn(async move {
            carry(&place.0, &slot, request).await;
            drop(place);
        });
    }
    senders
}

/// One of the copies that may be in flight.
struct Place(Arc<Inner>);

impl Place {
    fn take(proxy: &Arc<Inner>) -> Option<Self> {
        let before = proxy.mirrors.fetch_add(1, Relaxed);
        let place = Self(proxy.clone());
        (before < proxy.settings.limits.mirrors).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.mirrors.fetch_sub(1, Relaxed);
    }
}

/// Semantics 1.7: changed headers and rewritten path, and a host that tells a copy from the original.
fn copy(parts: &Parts, body: OutBody) -> Request<OutBody> {
    let mut copy = Request::new(body);
    *copy.method_mut() = parts.method.clone();
    *copy.uri_mut() = target(&parts.uri).into();
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

/// Without retries: a copy that is lost is lost.
async fn carry(proxy: &Inner, slot: &Slot, mut request: Request<OutBody>) {
    let settings = &proxy.settings;
    let cluster = slot.cluster();
    let Some(choice) = cluster.pick(&proxy.random, proxy.now(), &settings.health, &[]) else { return };
    let Ok(mut lease) = Lease::take(&choice.peer, settings, Use::Request).await else {
        slot.counts.connect_failures.add();
        return;
    };
    fit(&mut request, &lease);
    let answered = async {
        let mut response = match lease.lent.as_mut()? {
            Lent::Http1(sender) => sender.try_send_request(request).await.ok()?,
            Lent::Http2(sender, _) => sender.try_send_request(request).await.ok()?,
        };
        if !is_gateway_failure(response.status()) {
            choice.peer.succeeded();
        }
        drain(response.body_mut()).await
    };
    if timeout(settings.timeouts.response, answered).await.ok().flatten().is_some() {
        lease.give_back();
    }
}

/// Longer answers cost more to read than a new connection costs to make.
const LONGEST_ANSWER: usize = 1 << 20;

async fn drain(body: &mut Incoming) -> Option<()> {
    let mut read = 0;
    while read < LONGEST_ANSWER {
        let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            None => return Some(()),
            Some(frame) => read += frame.ok()?.data_ref().map_or(0, |data| data.len()),
        }
    }
    None
}
