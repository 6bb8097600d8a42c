//! Which way a socket takes that sends a packet: through the eBPF accelerator, or through the rules.

use std::time::Duration;

use dataplane::accelerator::fake::FakeAccelerator;
use dataplane::accelerator::{
    AccelerateScope, Accelerator, AcceleratorKernel, ConnectOutcome, ConnectingSocket, MapEntries,
    PinnedAccelerator, not_accelerated, pinned_folder,
};
use dataplane::backend::BackendError;
use model::forward::{FirstPacket, ForwardingDecision, NodeRules, TrafficSource};
use model::{ForwardingTable, Protocol};

/// The entries of an accelerator, at a time of its clock; or why they cannot be read.
pub(super) struct SocketPaths {
    entries: Result<MapEntries, BackendError>,
    now: u64,
}

impl SocketPaths {
    /// Those of the accelerator of this machine; `None` if there is none.
    pub(super) fn live() -> Option<Self> {
        pinned_folder().exists().then(|| match PinnedAccelerator::attached(pinned_folder()) {
            Ok(mut kernel) => Self { entries: kernel.entries(), now: kernel.now() },
            Err(error) => Self { entries: Err(error), now: 0 },
        })
    }

    /// Those that `--accelerate=on` would have for these objects.
    pub(super) fn planned(table: &ForwardingTable) -> Result<Self, BackendError> {
        let fake = FakeAccelerator::default();
        let mut accelerator =
            Accelerator::new(Box::new(fake), AccelerateScope::AllNamespaces, Duration::from_secs(30));
        accelerator.load(table)?;
        Ok(Self { entries: accelerator.entries(), now: 0 })
    }

    /// The way of a socket on this node that sends this packet; `None` for other senders.
    pub(super) fn explain(
        &self,
        packet: &FirstPacket,
        decision: &ForwardingDecision<'_>,
        node: &NodeRules,
    ) -> Option<String> {
        if decision.origin == TrafficSource::Outside {
            return None;
        }
        let entries = match &self.entries {
            Ok(entries) => entries,
            Err(error) => return Some(format!("the maps of the eBPF accelerator cannot be read: {error}")),
        };
        let scope = match entries.settings.is_node_only {
            true => AccelerateScope::NodeNamespace,
            false => AccelerateScope::AllNamespaces,
        };
        let is_of_node = decision.origin == TrafficSource::Node;
        let socket = ConnectingSocket { to: packet.dst, is_of_node, is_bound: false };
        let outcome = (packet.protocol == Protocol::Tcp).then(|| entries.connect(&socket, self.now));
        Some(match outcome {
            Some(ConnectOutcome::Rewritten(endpoints)) => format!(
                "the eBPF accelerator connects a TCP socket to one of {} endpoints before there is a packet; the rules below are for other clients",
                endpoints.len()
            ),
            Some(ConnectOutcome::Left(reason)) => {
                let planned = not_accelerated(decision.frontend, node, scope).map(|reason| reason.as_str());
                format!("left to the rules: {}", planned.unwrap_or(reason.as_str()))
            }
            None => "left to the rules: only TCP is accelerated".to_owned(),
        })
    }
}
