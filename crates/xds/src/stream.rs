//! One Envoy's stream as a state machine without I/O: what it asked for, what it has, and what to say next.
//!
//! ```text
//! hear(request): subscriptions, acknowledgements, refusals      aim(published): what it is to have from now on
//!            \                                                  /
//!             speak(): the next response, or nothing until something is heard
//! ```
//!
//! Additions go in the order clusters, endpoints, listeners, routes; listeners and routes wait until clusters and
//! endpoints are acknowledged. Only when everything is, removals go, the other way round (semantics, xDS 3). What Envoy refuses is remembered by version and not sent again; what it had stays.

mod delta;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::resource::{Kind, ResourceSet, Version};

pub use delta::Delta;
pub use whole::Whole;

/// What proxies of one kind are to have, and what changed since the publication before.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// Counts up.
    pub number: u64,
    /// Everything.
    pub resources: Arc<ResourceSet>,
    /// What differs from publication `number - 1`.
    pub changed: BTreeMap<Kind, BTreeSet<Arc<str>>>,
}

impl Published {
    /// The first publication.
    pub fn first(resources: Arc<ResourceSet>) -> Self {
        let changed = ResourceSet::default().differences(&resources);
        Self { number: 1, resources, changed }
    }

    /// The publication after this one. `None`: nothing differs.
    pub fn next(&self, resources: Arc<ResourceSet>) -> Option<Self> {
        let changed = self.resources.differences(&resources);
        (!changed.is_empty()).then(|| Self { number: self.number + 1, resources, changed })
    }
}

/// What a request told us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Envoy has taken what was sent.
    Accepted {
        /// The kind.
        kind: Kind,
        /// Which.
        names: Vec<Arc<str>>,
    },
    /// Envoy has refused some resources and keeps what it had.
    Refused(Refusal),
}

/// What Envoy refused, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind.
    pub kind: Kind,
    /// The resource; `None` where it is one of several, which are tried apart next.
    pub resource: Option<Arc<str>>,
    /// The version that was refused.
    pub version: Option<Version>,
    /// Envoy's words.
    pub message: String,
    /// Whether it may be taken later though nothing in it changes, and so is tried again.
    pub may_pass: bool,
}

/// Why a stream is ended: the client asks for more than anybody needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TooMuch(String);

/// How many names of one kind a client may ask for.
const NAMES: usize = 200_000;
/// How large a response grows, unless one resource alone is larger. Some 45,000 clusters fit: Envoy takes the first
/// configuration quickest in one piece.
const RESPONSE_BYTES: usize = 16 << 20;
/// Envoy's words can be long; more of them helps nobody.
const WORDS: usize = 2_000;

/// A port that somebody else has on Envoy's machine becomes free without a word to us. It is the one refusal that says
/// nothing against what was sent.
fn may_pass(kind: Kind, message: &str) -> bool {
    kind == Kind::Listener && message.contains("cannot bind")
}

fn words(message: &str) -> String {
    match message.char_indices().nth(WORDS) {
        Some((at, _)) => format!("{}...", &message[..at]),
        None => message.to_owned(),
    }
}
