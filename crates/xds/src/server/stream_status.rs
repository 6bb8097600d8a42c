//! Status of the connected Envoys: versions, NACKs and counters, for `/status`, metrics and Notices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use model::{Notice, ObjectRef};

use crate::identity::{EnvoyIdentity, EnvoyRole};
use crate::resource::{ContentVersion, ResourceType};
use crate::stream::{CANNOT_BIND, Nack, Reply};

/// Rejected resources that are kept per stream.
const MAX_REJECTED: usize = 100;

/// All streams of a server.
#[derive(Debug, Default)]
pub struct StreamRegistry {
    state: Mutex<StreamState>,
}

#[derive(Debug, Default)]
struct StreamState {
    streams: BTreeMap<u64, StreamStatus>,
    opened: u64,
    rejected: u64,
    counters: BTreeMap<ResourceType, ResourceCounters>,
}

/// Counters of one type over all streams since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCounters {
    pub responses: u64,
    pub resources: u64,
    /// Removed names.
    pub removed: u64,
    pub bytes: u64,
    /// Acknowledged resources.
    pub accepted: u64,
    /// Rejected responses.
    pub refused: u64,
}

/// By type and name; without a name where a whole response was rejected.
pub type RejectedResources = BTreeMap<(ResourceType, Option<Arc<str>>), RejectedResource>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedResource {
    pub version: Option<ContentVersion>,
    /// Envoy's error message.
    pub message: String,
    /// The same version is sent again.
    pub is_retryable: bool,
}

impl RejectedResource {
    fn advice(&self) -> &'static str {
        if self.is_retryable {
            "free the port, or print a bootstrap with another one; retried after 2 s at first, at most once a minute"
        } else {
            "change the resource that Envoy names; the new version is sent at once"
        }
    }
}

/// One connected Envoy.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    pub identity: EnvoyIdentity,
    /// The id of its node.
    pub id: String,
    /// The identity is proven: by a certificate, or by a connection from this machine.
    pub is_proven: bool,
    /// `delta` or `whole`.
    pub protocol: &'static str,
    /// The last publication that was sent.
    pub number: u64,
    /// Rejected versions that are still current.
    pub rejected: RejectedResources,
}

/// A port of a gateway that an Envoy could not bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnboundListener {
    /// The port of the gateway.
    pub port: u16,
    /// Where it was to be bound.
    pub address: SocketAddr,
    /// The error of the operating system, as Envoy reports it.
    pub error: String,
}

impl StreamStatus {
    /// The ports of its gateway that the Envoy could not bind. Gateway, port and address are those of the configuration
    /// that it was sent; the error alone is the Envoy's word.
    pub fn unbound_listeners(&self) -> Vec<UnboundListener> {
        let EnvoyRole::Gateway { name, bind, port_overrides } = &self.identity.role else {
            return Vec::new();
        };
        let gateway = format!("{}/{name}:", self.identity.namespace);
        let mut found = BTreeMap::new();
        for ((kind, resource), rejected) in &self.rejected {
            if *kind != ResourceType::Listener || !rejected.is_retryable {
                continue;
            }
            // A whole response that was rejected has a line for each listener.
            for line in rejected.message.lines().filter(|line| line.contains(CANNOT_BIND)) {
                let named = resource.as_deref().and_then(|resource| resource.strip_prefix(&gateway));
                let told =
                    || line.split_once(&gateway).map(|(_, rest)| rest.split(':').next().unwrap_or(rest));
                let Some(port) = named.or_else(told).and_then(|port| port.parse::<u16>().ok()) else {
                    continue;
                };
                let address = port_overrides.get(&port).copied().unwrap_or(SocketAddr::new(*bind, port));
                found.insert(port, UnboundListener { port, address, error: bind_error(line) });
            }
        }
        found.into_values().collect()
    }
}

/// `cannot bind '192.0.2.7:80': Address already in use` without the address, which is known.
fn bind_error(line: &str) -> String {
    let error = line.split_once(CANNOT_BIND).map_or(line, |(_, rest)| rest);
    error.split_once("': ").map_or(error, |(_, error)| error).trim().to_owned()
}

impl StreamRegistry {
    fn state(&self) -> MutexGuard<'_, StreamState> {
        // The counters stay valid after a panic.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn stream_opened(
        &self,
        identity: &EnvoyIdentity,
        id: &str,
        protocol: &'static str,
        is_proven: bool,
    ) -> u64 {
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        let status = StreamStatus {
            identity: identity.clone(),
            id: id.chars().take(200).collect(),
            is_proven,
            protocol,
            number: 0,
            rejected: BTreeMap::new(),
        };
        state.streams.insert(number, status);
        number
    }

    pub(super) fn stream_closed(&self, stream: u64) {
        self.state().streams.remove(&stream);
    }

    pub(super) fn stream_rejected(&self) {
        self.state().rejected += 1;
    }

    pub(super) fn target_set(&self, stream: u64, number: u64) {
        if let Some(status) = self.state().streams.get_mut(&stream) {
            status.number = number;
        }
    }

    pub(super) fn response_sent(&self, kind: ResourceType, resources: usize, removed: usize, bytes: usize) {
        let mut state = self.state();
        let counters = state.counters.entry(kind).or_default();
        counters.responses += 1;
        counters.resources += resources as u64;
        counters.removed += removed as u64;
        counters.bytes += bytes as u64;
    }

    pub(super) fn replied(&self, stream: u64, reply: &Reply) {
        let mut state = self.state();
        let kind = match reply {
            Reply::Ack { kind, .. } | Reply::Nack(Nack { kind, .. }) => *kind,
        };
        let counters = state.counters.entry(kind).or_default();
        match reply {
            Reply::Ack { names, .. } => counters.accepted += names.len() as u64,
            Reply::Nack(_) => counters.refused += 1,
        }
        let Some(status) = state.streams.get_mut(&stream) else { return };
        match reply {
            Reply::Ack { names, .. } => {
                if status.rejected.is_empty() {
                    return;
                }
                status.rejected.remove(&(kind, None));
                for name in names {
                    status.rejected.remove(&(kind, Some(name.clone())));
                }
            }
            // The bisection will show which one it is.
            Reply::Nack(Nack { resource: None, version: None, .. }) => {}
            Reply::Nack(refusal) if status.rejected.len() < MAX_REJECTED => {
                let key = (kind, refusal.resource.clone());
                let (version, message) = (refusal.version, refusal.message.clone());
                status
                    .rejected
                    .insert(key, RejectedResource { version, message, is_retryable: refusal.is_retryable });
            }
            Reply::Nack(_) => {}
        }
    }

    /// Drops rejected versions that are no longer current.
    pub(super) fn retain_rejected(&self, stream: u64, is_current: impl Fn(ResourceType, &Arc<str>) -> bool) {
        if let Some(status) = self.state().streams.get_mut(&stream) {
            status
                .rejected
                .retain(|(kind, name), _| name.as_ref().is_none_or(|name| is_current(*kind, name)));
        }
    }

    pub fn streams(&self) -> Vec<StreamStatus> {
        self.state().streams.values().cloned().collect()
    }

    pub fn counters(&self) -> BTreeMap<ResourceType, ResourceCounters> {
        self.state().counters.clone()
    }

    /// Streams opened and streams rejected.
    pub fn streams_opened(&self) -> (u64, u64) {
        let state = self.state();
        (state.opened, state.rejected)
    }

    /// About resources that connected Envoys reject.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for status in self.streams() {
            let namespace = &status.identity.namespace;
            for ((kind, resource), rejected) in &status.rejected {
                let (message, advice) = (&rejected.message, rejected.advice());
                let what = match resource {
                    Some(name) => format!("{kind} {name}"),
                    None => format!("one of several resources of type {kind}"),
                };
                let text = format!("rejected {what} and keeps the previous version: {message}; {advice}");
                notices.push(Notice::new(
                    ObjectRef::new("Envoy", namespace, &status.id),
                    "ConfigurationRefused",
                    text,
                ));
            }
        }
        notices.sort();
        notices.dedup();
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envoy_reports_ports_of_its_own_gateway_alone() {
        let identity = EnvoyIdentity {
            namespace: "shop".to_owned(),
            role: EnvoyRole::Gateway {
                name: "edge".to_owned(),
                bind: [192, 0, 2, 7].into(),
                port_overrides: [(80, "127.0.0.1:8080".parse().unwrap())].into(),
            },
            node: String::new(),
            zone: None,
        };
        let unbound = |kind, resource: Option<&str>, message: &str, is_retryable| {
            let streams = StreamRegistry::default();
            let stream = streams.stream_opened(&identity, "edge-1", "delta", true);
            let resource = resource.map(Arc::from);
            let version = Some(ContentVersion::of_all([]));
            let nack = Nack { kind, resource, version, message: message.to_owned(), is_retryable };
            streams.replied(stream, &Reply::Nack(nack));
            let text = |own: &UnboundListener| format!("{} {}: {}", own.port, own.address, own.error);
            streams.streams()[0].unbound_listeners().iter().map(text).collect::<Vec<_>>()
        };
        let (listener, cluster) = (ResourceType::Listener, ResourceType::Cluster);
        let line = |name: &str| {
            format!(
                "Error adding/updating listener(s) {name}: cannot bind '10.0.0.1:1': Address already in use\n"
            )
        };
        let wanted = "80 127.0.0.1:8080: Address already in use";
        // The address is the one of the configuration, whatever the Envoy says.
        assert_eq!(unbound(listener, Some("shop/edge:80"), &line("bank/edge:81"), true), [wanted]);
        assert_eq!(unbound(listener, None, &line("shop/edge:80"), true), [wanted]);
        let both = line("shop/edge:80") + &line("shop/edge:443");
        assert_eq!(unbound(listener, None, &both, true)[1], "443 192.0.2.7:443: Address already in use");
        assert_eq!(unbound(listener, Some("shop/edge:81"), "cannot bind", true), ["81 192.0.2.7:81: "]);
        assert_eq!(unbound(listener, None, &line("bank/edge:80"), true), [""; 0], "of another gateway");
        assert_eq!(unbound(listener, Some("shop/edge:80"), "no such filter", false), [""; 0]);
        assert_eq!(unbound(cluster, Some("shop/edge:80"), &line("shop/edge:80"), true), [""; 0]);
    }
}
