//! What a test breaks on purpose around the program, to show that a check can fail. The bugs of `model::plant` are in the
//! program itself.

use std::sync::PoisonError;

use http::header::{CONTENT_TYPE, HeaderValue};

use crate::kernels::TCP;
use crate::link::SentRequest;
use crate::parties::Machine;

/// Something that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A write of our conditions removes those of others.
    ForeignConditions,
    /// A node ends TCP connections.
    EndedConnections,
    /// UDP flows that a node deletes come back.
    RevivedFlows,
    /// The rules of nodes miss connections.
    MissedConnections,
    /// The ledger gets each report from another node, too.
    CountedTwice,
    /// The undisturbed run misses an object.
    MissingObject,
    /// Another program flushes the rules of a node although all is quiet.
    Unrest,
    /// An Envoy stays with what it got first.
    StaleEnvoy,
}

impl Sabotage {
    /// The invariant that it breaks.
    pub fn invariant(self) -> u8 {
        match self {
            Self::ForeignConditions => 8,
            Self::EndedConnections => 10,
            Self::RevivedFlows => 14,
            Self::MissedConnections | Self::CountedTwice => 17,
            Self::MissingObject => 21,
            Self::Unrest => 22,
            Self::StaleEnvoy => 23,
        }
    }

    /// A request on its way to the API.
    pub fn change(self, sent: &mut SentRequest) {
        let path = sent.request.uri().path();
        let is_status = path.contains("/services/") && path.ends_with("/status");
        if self == Self::ForeignConditions && is_status {
            let replaces_lists = HeaderValue::from_static("application/merge-patch+json");
            sent.request.headers_mut().insert(CONTENT_TYPE, replaces_lists);
        }
    }

    /// After a node proxy ran.
    pub fn end_connection(self, machine: &Machine) {
        if self == Self::EndedConnections {
            let mut conntrack = machine.conntrack.lock().unwrap_or_else(PoisonError::into_inner);
            let first = conntrack.entries.iter().find(|entry| entry.protocol == TCP).cloned();
            if let Some(entry) = first {
                conntrack.entries.remove(&entry);
            }
        }
    }
}
