//! Status of the connected Envoys: versions, NACKs and counters, for `/status`, metrics and Notices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use model::{Notice, ObjectRef};

use crate::identity::EnvoyIdentity;
use crate::resource::{ContentVersion, ResourceType};
use crate::stream::{Nack, Reply};

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
    /// `delta` or `whole`.
    pub protocol: &'static str,
    /// The last publication that was sent.
    pub number: u64,
    /// Rejected versions that are still current.
    pub rejected: RejectedResources,
}

impl StreamRegistry {
    fn state(&self) -> MutexGuard<'_, StreamState> {
        // The counters stay valid after a panic.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn stream_opened(&self, identity: &EnvoyIdentity, id: &str, protocol: &'static str) -> u64 {
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        let status = StreamStatus {
            identity: identity.clone(),
            id: id.chars().take(200).collect(),
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
