//! Peers of the server: what a client certificate says about an Envoy, and each peer's share of streams and memory.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::Notify;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::Status;

use crate::identity::EnvoyIdentity;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct XdsPeer {
    /// Streams are shared among these: the identity of a certificate, or an address.
    pub(super) key: Arc<str>,
    /// The roles of the certificate as paths of SPIFFE IDs; `None` where certificates are not required.
    roles: Option<Arc<[String]>>,
}

/// Why a certificate is not one of an Envoy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PeerError {
    #[error("client certificate is malformed")]
    Malformed,
    #[error(
        "client certificate has the name {0} of this server: an Envoy must not be able to pass for the server; issue one per role"
    )]
    ServerName(String),
}

impl XdsPeer {
    /// A peer without a certificate, known by its address.
    pub(super) fn anonymous(address: std::net::IpAddr) -> Self {
        Self { key: address.to_canonical().to_string().into(), roles: None }
    }

    /// The peer of a certificate that the handshake verified.
    pub(super) fn certified(
        certificate: &CertificateDer<'_>,
        server_names: &[String],
    ) -> Result<Self, PeerError> {
        let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|_| PeerError::Malformed)?;
        let is_ours = |name: &&str| server_names.iter().any(|ours| ours.eq_ignore_ascii_case(name));
        if let Some(name) = parsed.valid_dns_names().find(is_ours) {
            return Err(PeerError::ServerName(name.to_owned()));
        }
        let mut roles: Vec<String> = parsed.valid_uri_names().filter_map(role_path).collect();
        roles.sort();
        let key = if roles.is_empty() { "certificate without a role".to_owned() } else { roles.join(",") };
        Ok(Self { key: key.into(), roles: Some(roles.into()) })
    }

    /// Whether the Envoy may be what it declares.
    pub(super) fn check(&self, identity: &EnvoyIdentity) -> Result<(), Status> {
        let Some(roles) = &self.roles else { return Ok(()) };
        let declared = identity.role_path();
        if roles.contains(&declared) {
            return Ok(());
        }
        let held = if roles.is_empty() { "no role".to_owned() } else { roles.join(" and ") };
        Err(Status::permission_denied(format!(
            "the client certificate is for {held}, and node.metadata.zoneward declares {declared}; issue a certificate with the URI SAN spiffe://TRUST-DOMAIN{declared}"
        )))
    }
}

/// The path of a SPIFFE ID of an Envoy: `/ns/NAMESPACE/gateway/NAME` or `/ns/NAMESPACE/sidecar/SERVICE`.
fn role_path(uri: &str) -> Option<String> {
    let (domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["ns", namespace, "gateway" | "sidecar", name]
            if !domain.is_empty() && !namespace.is_empty() && !name.is_empty() =>
        {
            Some(format!("/{path}"))
        }
        _ => None,
    }
}

/// The streams of a server. A peer may use all of them; when they run out, a peer with fewer streams takes one from the
/// peer with the most.
#[derive(Debug)]
pub(super) struct StreamSlots {
    max: usize,
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    next: u64,
    open: usize,
    by_peer: BTreeMap<Arc<str>, Vec<(u64, Arc<Notify>)>>,
}

/// Held while a stream is open.
#[derive(Debug)]
pub(super) struct StreamSlot {
    slots: Arc<StreamSlots>,
    peer: Arc<str>,
    number: u64,
    /// Notified when another peer takes the slot.
    pub(super) taken: Arc<Notify>,
}

impl StreamSlots {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    pub(super) fn acquire(self: &Arc<Self>, peer: &Arc<str>) -> Option<StreamSlot> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.open >= self.max {
            let own = state.by_peer.get(peer).map_or(0, Vec::len);
            let most = state.by_peer.values_mut().max_by_key(|streams| streams.len())?;
            // Equal shares are never traded back and forth.
            if most.len() <= own + 1 {
                return None;
            }
            let (_, taken) = most.pop()?;
            taken.notify_one();
            state.open -= 1;
        }
        state.next += 1;
        state.open += 1;
        let (number, taken) = (state.next, Arc::new(Notify::new()));
        state.by_peer.entry(peer.clone()).or_default().push((number, taken.clone()));
        Some(StreamSlot { slots: self.clone(), peer: peer.clone(), number, taken })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(streams) = state.by_peer.get_mut(&self.peer) else { return };
        let before = streams.len();
        streams.retain(|(number, _)| *number != self.number);
        let (after, closed) = (streams.len(), before - streams.len());
        state.open -= closed;
        if after == 0 {
            state.by_peer.remove(&self.peer);
        }
    }
}

/// Bytes of requests that are not complete yet, over all streams.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestMemory(Arc<AtomicUsize>);

/// Larger requests share [`MAX_HELD_BYTES`]; smaller ones are bounded by the number of streams.
const SMALL_REQUEST_BYTES: usize = 64 << 10;
const MAX_HELD_BYTES: usize = 256 << 20;

/// What one stream holds of it.
#[derive(Clone, Debug)]
pub(super) struct HeldBytes {
    total: RequestMemory,
    own: Arc<AtomicUsize>,
}

impl HeldBytes {
    pub(super) fn new(total: &RequestMemory) -> Self {
        Self { total: total.clone(), own: Arc::default() }
    }

    fn add(&self, bytes: usize) -> Result<(), Status> {
        let own = self.own.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let total = self.total.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if own > SMALL_REQUEST_BYTES && total > MAX_HELD_BYTES {
            return Err(Status::resource_exhausted("too many large requests at a time; reconnect"));
        }
        Ok(())
    }

    /// A request is complete.
    pub(super) fn release(&self) {
        self.total.0.fetch_sub(self.own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The body of a stream, whose unread bytes are counted.
pub(super) struct CountedBody {
    body: Incoming,
    held: HeldBytes,
}

impl CountedBody {
    pub(super) fn new(body: Incoming, held: HeldBytes) -> Self {
        Self { body, held }
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.held.release();
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|error| Status::unavailable(error.to_string()))?;
            self.held.add(frame.data_ref().map_or(0, Bytes::len))?;
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_of_envoys_are_read_and_others_are_not_roles() {
        for uri in ["spiffe://zoneward/ns/shop/gateway/edge", "spiffe://a.example/ns/shop/sidecar/web"] {
            assert!(uri.ends_with(&role_path(uri).unwrap()), "{uri}");
        }
        for uri in [
            "https://zoneward/ns/shop/gateway/edge",
            "spiffe:///ns/shop/gateway/edge",
            "spiffe://zoneward/ns/shop/gateway/edge/gateway/other",
            "spiffe://zoneward/ns//gateway/edge",
            "spiffe://zoneward/ns/shop/gateway/",
            "spiffe://zoneward/ns/shop/sa/default",
            "spiffe://zoneward/ns/shop/gateway",
            "spiffe://zoneward",
        ] {
            assert_eq!(role_path(uri), None, "{uri}");
        }
    }

    #[test]
    fn peer_with_the_most_streams_gives_one_up_and_equal_peers_keep_theirs() {
        let slots = StreamSlots::new(4);
        let (hostile, honest): (Arc<str>, Arc<str>) = ("hostile".into(), "honest".into());
        let mut held: Vec<StreamSlot> = (0..4).map(|_| slots.acquire(&hostile).unwrap()).collect();
        assert!(slots.acquire(&hostile).is_none(), "it cannot take its own");
        let first = slots.acquire(&honest).expect("one of four");
        let second = slots.acquire(&honest).expect("two of four");
        assert!(slots.acquire(&honest).is_none(), "both have two");
        assert!(slots.acquire(&hostile).is_none());
        // The evicted streams end later: their slots are not freed twice.
        held.drain(2..).for_each(drop);
        assert!(slots.acquire(&hostile).is_none());
        drop(first);
        assert!(slots.acquire(&hostile).is_some());
        drop((second, held));
        assert_eq!(slots.state.lock().unwrap().open, 0);
    }

    #[test]
    fn large_unfinished_requests_share_a_budget_and_small_ones_pass() {
        let total = RequestMemory::default();
        let hostile = HeldBytes::new(&total);
        hostile.add(MAX_HELD_BYTES).unwrap();
        hostile.add(1).unwrap_err();
        let honest = HeldBytes::new(&total);
        honest.add(SMALL_REQUEST_BYTES).unwrap();
        honest.add(1).unwrap_err();
        hostile.release();
        honest.add(1).unwrap();
        honest.release();
        assert_eq!(total.0.load(Ordering::Relaxed), 0);
    }
}
