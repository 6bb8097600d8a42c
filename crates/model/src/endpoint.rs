//! One endpoint of an EndpointSlice.

use std::sync::Arc;

use crate::address::Addresses;
use crate::name::Name;
use crate::uid::Uid;

/// An endpoint of a Service: a pod, or an address from a manually managed slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// All of one IP family.
    pub addresses: Addresses,
    pub conditions: EndpointConditions,
    pub node: Option<Name>,
    pub zone: Option<Name>,
    /// Shared, because most endpoints of a zone have the same hints.
    pub hints: Option<Arc<Hints>>,
    /// Apart, because proxies do not need it.
    pub identity: Option<Box<EndpointIdentity>>,
}

/// What identifies an endpoint beside its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointIdentity {
    /// Its DNS name under a headless Service.
    pub hostname: Option<Name>,
    /// Its pod, in the namespace of the slice. Other kinds of targets are not kept.
    pub target: Option<TargetRef>,
}

impl EndpointIdentity {
    /// `None` if there is nothing to keep.
    pub fn new(hostname: Option<Name>, target: Option<TargetRef>) -> Option<Box<Self>> {
        (hostname.is_some() || target.is_some()).then(|| Box::new(Self { hostname, target }))
    }
}

/// Endpoint conditions. The default of an absent one depends on the consumer: see the methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointConditions {
    /// Serving and not terminating, or published regardless.
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

impl EndpointConditions {
    pub fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    /// For the assignment of hints: an absent condition is "not ready" (semantics A1).
    pub fn is_ready_for_hints(self) -> bool {
        self.ready == Some(true)
    }

    /// For proxies: an absent condition is "ready" (semantics C).
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// For proxies: an absent condition is "serving".
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or(true)
    }

    /// For proxies: an absent condition is "not terminating".
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// The pod of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRef {
    pub name: Name,
    pub uid: Option<Uid>,
}

/// The zones and nodes that should use an endpoint. Empty and absent lists are equivalent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    pub zones: Box<[Name]>,
    pub nodes: Box<[Name]>,
}

impl Hints {
    pub fn zone(zone: &Name) -> Self {
        Self { zones: [zone.clone()].into(), nodes: Box::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.zones.is_empty() && self.nodes.is_empty()
    }
}

impl Endpoint {
    /// Its DNS name under a headless Service.
    pub fn hostname(&self) -> Option<&Name> {
        self.identity.as_ref()?.hostname.as_ref()
    }

    /// Its pod, in the namespace of the slice.
    pub fn target(&self) -> Option<&TargetRef> {
        self.identity.as_ref()?.target.as_ref()
    }

    pub fn zone_hints(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |h| &h.zones)
    }

    pub fn node_hints(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |h| &h.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_takes_64_bytes() {
        assert_eq!(size_of::<Endpoint>(), 64);
    }
}
