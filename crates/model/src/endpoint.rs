//! One endpoint of an EndpointSlice.

use std::sync::Arc;

use crate::address::Addresses;
use crate::name::Name;
use crate::uid::Uid;

/// Where traffic of a Service can go: one pod, or one process that somebody listed by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its addresses, all of one family.
    pub addresses: Addresses,
    /// Whether it takes traffic.
    pub conditions: Conditions,
    /// Its own DNS name under a headless Service.
    pub hostname: Option<Name>,
    /// The node that it runs on.
    pub node: Option<Name>,
    /// The zone of that node.
    pub zone: Option<Name>,
    /// The pod behind it, in the namespace of the slice. Anything else that a slice may name there decides
    /// nothing and is not kept.
    pub target: Option<TargetRef>,
    /// Who should use it. Shared: most endpoints of a zone carry the same hints.
    pub hints: Option<Arc<Hints>>,
}

/// The three conditions. What a missing one means depends on the reader: see the two methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Takes traffic: serving, and not terminating (or published whatever its state).
    pub ready: Option<bool>,
    /// Would answer if asked.
    pub serving: Option<bool>,
    /// Is going away.
    pub terminating: Option<bool>,
}

impl Conditions {
    /// All three given.
    pub fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    /// Readiness for whoever assigns hints: a missing condition is "not ready" (semantics A1).
    pub fn is_ready_for_hints(self) -> bool {
        self.ready == Some(true)
    }

    /// Readiness for whoever routes: a missing condition is "ready" (semantics C).
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Serving, for whoever routes: a missing condition is "serving".
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or(true)
    }

    /// Terminating, for whoever routes: a missing condition is "stays".
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// The pod behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRef {
    /// Its name.
    pub name: Name,
    /// Its identity.
    pub uid: Option<Uid>,
}

/// Who should use an endpoint. Empty lists are the same as missing ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// Zones whose nodes should use it.
    pub zones: Box<[Name]>,
    /// Nodes that should use it.
    pub nodes: Box<[Name]>,
}

impl Hints {
    /// Hints for one zone.
    pub fn zone(zone: &Name) -> Self {
        Self { zones: [zone.clone()].into(), nodes: Box::default() }
    }

    /// Whether nobody is named.
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty() && self.nodes.is_empty()
    }
}

impl Endpoint {
    /// The zones that should use it.
    pub fn zone_hints(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |h| &h.zones)
    }

    /// The nodes that should use it.
    pub fn node_hints(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |h| &h.nodes)
    }
}
