//! What goes on: who is connected, what each was sent, and what it refused, in Envoy's words. For status, metrics and
//! Notices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use model::{Notice, ObjectRef};

use crate::identity::Identity;
use crate::resource::{Kind, Version};
use crate::stream::{Heard, Refusal};

/// How many refusals are kept of one stream, the first ones.
const REFUSALS: usize = 100;

/// The books of a server.
#[derive(Debug, Default)]
pub struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<u64, StreamStatus>,
    opened: u64,
    turned_away: u64,
    counts: BTreeMap<Kind, Count>,
}

/// What was said of one kind, over all streams since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Responses.
    pub responses: u64,
    /// Resources in them.
    pub resources: u64,
    /// Names of resources that were taken back.
    pub removed: u64,
    /// Bytes of the responses.
    pub bytes: u64,
    /// Resources that were taken.
    pub accepted: u64,
    /// Responses that were refused.
    pub refused: u64,
}

/// What is refused: by kind and name, without a name where a whole response was.
pub type Refusals = BTreeMap<(Kind, Option<Arc<str>>), Refused>;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The version that was refused.
    pub version: Option<Version>,
    /// Envoy's words.
    pub message: String,
    /// Whether it is tried again as it is.
    pub may_pass: bool,
}

impl Refused {
    /// What can be done.
    fn advice(&self) -> &'static str {
        if self.may_pass {
            "free the port, or print a bootstrap with another one; it is tried again, at first after 2 s, at last once a minute"
        } else {
            "change what Envoy names there, the new version is sent at once"
        }
    }
}

/// One connected Envoy.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Who it is.
    pub identity: Identity,
    /// Its node's id.
    pub id: String,
    /// `delta` or `whole`.
    pub protocol: &'static str,
    /// The publication that it was last told of.
    pub number: u64,
    /// What it refused and still lacks.
    pub refusals: Refusals,
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked while it wrote a number left numbers behind.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn opened(&self, identity: &Identity, id: &str, protocol: &'static str) -> u64 {
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        let status = StreamStatus {
            identity: identity.clone(),
            id: id.chars().take(200).collect(),
            protocol,
            number: 0,
            refusals: BTreeMap::new(),
        };
        state.streams.insert(number, status);
        number
    }

    pub(super) fn closed(&self, stream: u64) {
        self.state().streams.remove(&stream);
    }

    pub(super) fn turned_away(&self) {
        self.state().turned_away += 1;
    }

    pub(super) fn aimed(&self, stream: u64, number: u64) {
        if let Some(status) = self.state().streams.get_mut(&stream) {
            status.number = number;
        }
    }

    pub(super) fn sent(&self, kind: Kind, resources: usize, removed: usize, bytes: usize) {
        let mut state = self.state();
        let count = state.counts.entry(kind).or_default();
        count.responses += 1;
        count.resources += resources as u64;
        count.removed += removed as u64;
        count.bytes += bytes as u64;
    }

    pub(super) fn heard(&self, stream: u64, heard: &Heard) {
        let mut state = self.state();
        let kind = match heard {
            Heard::Accepted { kind, .. } | Heard::Refused(Refusal { kind, .. }) => *kind,
        };
        let count = state.counts.entry(kind).or_default();
        match heard {
            Heard::Accepted { names, .. } => count.accepted += names.len() as u64,
            Heard::Refused(_) => count.refused += 1,
        }
        let Some(status) = state.streams.get_mut(&stream) else { return };
        match heard {
            Heard::Accepted { names, .. } => {
                if status.refusals.is_empty() {
                    return;
                }
                status.refusals.remove(&(kind, None));
                for name in names {
                    status.refusals.remove(&(kind, Some(name.clone())));
                }
            }
            // Which of several it is will be known soon.
            Heard::Refused(Refusal { resource: None, version: None, .. }) => {}
            Heard::Refused(refusal) if status.refusals.len() < REFUSALS => {
                let key = (kind, refusal.resource.clone());
                let (version, message) = (refusal.version, refusal.message.clone());
                status.refusals.insert(key, Refused { version, message, may_pass: refusal.may_pass });
            }
            Heard::Refused(_) => {}
        }
    }

    /// Forgets refusals that are over.
    pub(super) fn keep(&self, stream: u64, still: impl Fn(Kind, &Arc<str>) -> bool) {
        if let Some(status) = self.state().streams.get_mut(&stream) {
            status.refusals.retain(|(kind, name), _| name.as_ref().is_none_or(|name| still(*kind, name)));
        }
    }

    /// Who is connected.
    pub fn streams(&self) -> Vec<StreamStatus> {
        self.state().streams.values().cloned().collect()
    }

    /// What was said, by kind.
    pub fn counts(&self) -> BTreeMap<Kind, Count> {
        self.state().counts.clone()
    }

    /// How many streams were opened, and how many turned away.
    pub fn streams_opened(&self) -> (u64, u64) {
        let state = self.state();
        (state.opened, state.turned_away)
    }

    /// What connected Envoys refuse, for the people who wrote it.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for status in self.streams() {
            let namespace = &status.identity.namespace;
            for ((kind, resource), refused) in &status.refusals {
                let (message, advice) = (&refused.message, refused.advice());
                let what = match resource {
                    Some(name) => format!("{kind} {name}"),
                    None => format!("one of several resources of kind {kind}"),
                };
                let text = format!("it refused {what} and goes on with what it had: {message}; {advice}");
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
