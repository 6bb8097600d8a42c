//! Peers of the server: what a client certificate says about an Envoy, and each peer's share of the streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use listener::{AtShare, FairShares, HolderId};
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
    /// Connected from this machine.
    is_local: bool,
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
        let address = address.to_canonical();
        Self { key: address.to_string().into(), roles: None, is_local: address.is_loopback() }
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
        Ok(Self { key: key.into(), roles: Some(roles.into()), is_local: false })
    }

    /// Whether an Envoy is what it declares, so that it may report about its gateway: a certificate proves it, and
    /// processes of this machine are trusted. A token is the same for all Envoys and proves nothing.
    pub(super) fn proves_identity(&self) -> bool {
        self.roles.is_some() || self.is_local
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
/// peer with the most, and so does a connection among those of one peer.
#[derive(Debug)]
pub(super) struct StreamSlots {
    shares: Mutex<FairShares<Arc<str>, Arc<Notify>>>,
}

/// Held while a stream is open.
#[derive(Debug)]
pub(super) struct StreamSlot {
    slots: Arc<StreamSlots>,
    id: HolderId,
    /// Notified when another peer takes the slot.
    pub(super) taken: Arc<Notify>,
}

impl StreamSlots {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { shares: Mutex::new(FairShares::new(max as u64)) })
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<Arc<str>, Arc<Notify>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acquire(self: &Arc<Self>, peer: &Arc<str>, connection: u64) -> Option<StreamSlot> {
        let taken = Arc::new(Notify::new());
        let holder = (peer.clone(), connection);
        let (id, evicted) = self.shares().take(holder, taken.clone(), AtShare::Refuse)?;
        if let Some(evicted) = evicted {
            evicted.notify_one();
        }
        Some(StreamSlot { slots: self.clone(), id, taken })
    }
}

impl StreamSlot {
    /// The client acknowledged a response: those that did not lose their slots first.
    pub(super) fn acknowledged(&self) {
        self.slots.shares().touch(self.id, true);
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.slots.shares().release(self.id);
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

    /// A certificate with these names: URIs, or names of hosts.
    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let san = |name: &&str| match name.contains(':') {
            true => rcgen::SanType::URI((*name).try_into().unwrap()),
            false => rcgen::SanType::DnsName((*name).try_into().unwrap()),
        };
        let mut params = rcgen::CertificateParams::default();
        params.subject_alt_names = names.iter().map(san).collect();
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn envoy_may_be_what_its_certificate_says_and_never_the_server() {
        let identity = |namespace: &str, name: &str| EnvoyIdentity {
            namespace: namespace.to_owned(),
            role: crate::identity::EnvoyRole::Gateway {
                name: name.to_owned(),
                bind: std::net::Ipv4Addr::LOCALHOST.into(),
                port_overrides: std::collections::BTreeMap::new(),
            },
            node: String::new(),
            zone: None,
        };
        let own = ["xds.example".to_owned()];
        let edge = certificate(&["spiffe://a/ns/shop/gateway/edge", "other.example"]);
        let peer = XdsPeer::certified(&edge, &own).unwrap();
        peer.check(&identity("shop", "edge")).unwrap();
        for (namespace, name) in [("shop", "other"), ("bank", "edge"), ("shop", "edge/gateway/edge")] {
            let refused = peer.check(&identity(namespace, name)).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{namespace}/{name}");
        }
        let without = XdsPeer::certified(&certificate(&["other.example"]), &own).unwrap();
        without.check(&identity("shop", "edge")).unwrap_err();
        let server = certificate(&["spiffe://a/ns/shop/gateway/edge", "XDS.example"]);
        let refused = XdsPeer::certified(&server, &own).unwrap_err();
        assert_eq!(refused, PeerError::ServerName("XDS.example".to_owned()));
    }

    #[test]
    fn certificates_and_loopback_prove_an_identity() {
        let edge = certificate(&["spiffe://a/ns/shop/gateway/edge"]);
        assert!(XdsPeer::certified(&edge, &[]).unwrap().proves_identity());
        let at = |address: &str| XdsPeer::anonymous(address.parse().unwrap()).proves_identity();
        assert_eq!(
            ["127.0.0.1", "::1", "::ffff:127.0.0.2", "192.0.2.1", "2001:db8::1"].map(at),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn peer_with_the_most_streams_gives_one_up_and_equal_peers_keep_theirs() {
        let slots = StreamSlots::new(4);
        let (hostile, honest): (Arc<str>, Arc<str>) = ("hostile".into(), "honest".into());
        let mut held: Vec<StreamSlot> = (0..4).map(|_| slots.acquire(&hostile, 1).unwrap()).collect();
        assert!(slots.acquire(&hostile, 1).is_none(), "it cannot take its own");
        let first = slots.acquire(&honest, 2).expect("one of four");
        let second = slots.acquire(&honest, 2).expect("two of four");
        assert!(slots.acquire(&honest, 2).is_none(), "both have two");
        assert!(slots.acquire(&hostile, 1).is_none());
        // The evicted streams end later: their slots are not freed twice.
        held.drain(..2).for_each(drop);
        assert!(slots.acquire(&hostile, 1).is_none());
        drop(first);
        assert!(slots.acquire(&hostile, 1).is_some());
        drop((second, held));
        assert_eq!(slots.shares().used(), 0);
    }

    #[test]
    fn connections_of_one_peer_share_its_streams_and_those_that_acknowledge_stay() {
        let slots = StreamSlots::new(4);
        let peer: Arc<str> = "192.0.2.1".into();
        let held: Vec<StreamSlot> = (0..4).map(|_| slots.acquire(&peer, 1).unwrap()).collect();
        held[0].acknowledged();
        let _other = slots.acquire(&peer, 2).expect("another connection behind the same address");
        let is_taken = |slot: &StreamSlot| Arc::strong_count(&slot.taken) == 1;
        assert_eq!(held.iter().map(is_taken).collect::<Vec<_>>(), [false, true, false, false]);
    }
}
