//! One xDS stream as a state machine without I/O: subscriptions, acknowledged versions, and the next response.
//!
//! ```text
//! handle_request: subscriptions, ACK, NACK           set_target: the resources that this Envoy should have
//!            \                                    /
//!             next_response: one response, or nothing until the next request
//! ```
//!
//! Additions are sent in the order clusters, endpoints, listeners, routes; listeners and routes wait until clusters and
//! endpoints are acknowledged. Removals follow in reverse order once everything is acknowledged (semantics, xDS 3). A
//! version that Envoy rejected is not sent again; Envoy keeps the previous version.

mod delta;
mod state_of_the_world;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::resource::{ContentVersion, ResourceSet, ResourceType};

pub use delta::DeltaStream;
pub use state_of_the_world::SotwStream;

/// The resources of one identity, and what changed since the publication before.
#[derive(Clone, Debug, Default)]
pub struct PublishedResources {
    pub number: u64,
    pub resources: Arc<ResourceSet>,
    /// What differs from publication `number - 1`.
    pub changed: BTreeMap<ResourceType, BTreeSet<Arc<str>>>,
}

impl PublishedResources {
    pub fn first(resources: Arc<ResourceSet>) -> Self {
        let changed = ResourceSet::default().changed_names(&resources);
        Self { number: 1, resources, changed }
    }

    /// The publication after this one; `None` if nothing changed.
    pub fn next(&self, resources: Arc<ResourceSet>) -> Option<Self> {
        let changed = self.resources.changed_names(&resources);
        (!changed.is_empty()).then(|| Self { number: self.number + 1, resources, changed })
    }
}

/// Envoy's reply to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Ack {
        kind: ResourceType,
        names: Vec<Arc<str>>,
    },
    /// Envoy rejected some resources and keeps the versions before.
    Nack(Nack),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    pub kind: ResourceType,
    /// `None` where it is one of several, which are sent separately next.
    pub resource: Option<Arc<str>>,
    pub version: Option<ContentVersion>,
    /// Envoy's error message.
    pub message: String,
    /// The same version may be accepted later, so it is sent again.
    pub is_retryable: bool,
}

/// The client subscribed to too many names; its stream is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_NAMES} names of type {0}")]
pub struct TooManyNames(ResourceType);

/// Subscribed names of one type.
const MAX_NAMES: usize = 200_000;
/// Memory of a name beside its text.
const NAME_OVERHEAD: usize = 128;
/// The size of a response, unless one resource alone is larger. Some 45,000 clusters fit: Envoy loads its first
/// configuration fastest in one response.
const RESPONSE_BYTES: usize = 16 << 20;
const MAX_MESSAGE_CHARS: usize = 2_000;

/// How Envoy reports a port that is taken or not permitted.
pub(crate) const CANNOT_BIND: &str = "cannot bind";

/// A port that another process has bound becomes free without a change of ours. No other NACK is retried.
fn is_retryable(kind: ResourceType, message: &str) -> bool {
    kind == ResourceType::Listener && message.contains(CANNOT_BIND)
}

fn truncate(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((at, _)) => format!("{}...", &message[..at]),
        None => message.to_owned(),
    }
}
