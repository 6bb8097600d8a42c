//! What the program does with a socket, decided on the entries of its maps as `bpf/accelerator.c` does.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::entries::{
    AcceleratorSettings, CHUNK, Chunk, ChunkKey, FrontendEntry, NOT_FROM_NODE, NOT_FROM_PODS,
};

/// The entries of the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapEntries {
    pub frontends: BTreeMap<SocketAddr, FrontendEntry>,
    pub chunks: BTreeMap<ChunkKey, Chunk>,
    pub settings: AcceleratorSettings,
}

/// A TCP socket that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectingSocket {
    pub to: SocketAddr,
    /// Whether it is in the node's own network namespace.
    pub is_of_node: bool,
    /// Whether it has a source address already.
    pub is_bound: bool,
}

/// What becomes of a socket.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectOutcome {
    /// Connected to one of these instead, each with its probability, sorted by address.
    Rewritten(Vec<(SocketAddr, f64)>),
    /// Connected as asked, so that the rules of nftables forward.
    Left(LeftToRules),
}

/// Why a socket is left to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftToRules {
    /// The destination has no entry.
    NoEntry,
    /// The node proxy has not refreshed the entries for two sync periods.
    Expired,
    /// Only sockets of the node's own network namespace are rewritten.
    NodeOnly,
    /// An endpoint is on this node and may be the client.
    LocalEndpoint,
    /// The rules masquerade the node's own connections.
    Masqueraded,
}

impl LeftToRules {
    /// The words in explanations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEntry => "the destination has no entry in the accelerator's maps",
            Self::Expired => {
                "the accelerator's entries expired: the node proxy has not refreshed them for 2 x syncPeriod"
            }
            Self::NodeOnly => "the accelerator takes sockets of the node's own network namespace only",
            Self::LocalEndpoint => {
                "an endpoint is on this node and may be the client itself, which the rules masquerade"
            }
            Self::Masqueraded => "the rules masquerade connections of the node itself",
        }
    }
}

impl MapEntries {
    /// What the program does with a socket at a time, in nanoseconds of the monotonic clock.
    pub fn connect(&self, socket: &ConnectingSocket, now: u64) -> ConnectOutcome {
        let Some(frontend) = self.frontends.get(&socket.to).filter(|frontend| frontend.slots > 0) else {
            return ConnectOutcome::Left(LeftToRules::NoEntry);
        };
        match self.left(socket, frontend, now) {
            Some(reason) => ConnectOutcome::Left(reason),
            None => self.shares(frontend),
        }
    }

    fn left(&self, socket: &ConnectingSocket, frontend: &FrontendEntry, now: u64) -> Option<LeftToRules> {
        let node_only = self.settings.is_node_only;
        if now > self.settings.valid_until {
            return Some(LeftToRules::Expired);
        }
        if socket.is_of_node {
            let is_masqueraded = frontend.flags & NOT_FROM_NODE != 0;
            return (is_masqueraded && (!node_only || socket.is_bound)).then_some(LeftToRules::Masqueraded);
        }
        if node_only {
            return Some(LeftToRules::NodeOnly);
        }
        (frontend.flags & NOT_FROM_PODS != 0).then_some(LeftToRules::LocalEndpoint)
    }

    fn shares(&self, frontend: &FrontendEntry) -> ConnectOutcome {
        let mut shares: BTreeMap<SocketAddr, f64> = BTreeMap::new();
        for slot in 0..frontend.slots {
            let key = ChunkKey { id: frontend.id, number: slot / CHUNK as u32 };
            let endpoint = self.chunks.get(&key).and_then(|chunk| chunk.get(slot as usize % CHUNK));
            let Some(endpoint) = endpoint else { return ConnectOutcome::Left(LeftToRules::NoEntry) };
            *shares.entry(*endpoint).or_default() += 1.0 / f64::from(frontend.slots);
        }
        ConnectOutcome::Rewritten(shares.into_iter().collect())
    }
}
