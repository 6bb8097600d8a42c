//! Pods: what makes them endpoints.

use std::sync::Arc;

use crate::address::{Addresses, Protocol};
use crate::label::Labels;
use crate::name::{Name, ObjectKey, Uid};
use crate::time::Timestamp;

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its identity.
    pub uid: Option<Uid>,
    /// Labels.
    pub labels: Labels,
    /// The node that it runs on.
    pub node: Option<Name>,
    /// `status.podIPs`, canonical. `status.podIP` alone is not used (semantics B2).
    pub ips: Option<Addresses>,
    /// Its name in DNS; few pods have one.
    pub dns: Option<Box<PodDns>>,
    /// Named ports of the containers, then of the init containers that keep running.
    /// Shared: the pods of a workload have the same ones.
    pub ports: Option<Arc<Box<[ContainerPort]>>>,
    /// When its Ready condition last changed.
    pub ready_since: Option<Timestamp>,
    /// Whether its Ready condition is True.
    pub ready: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its phase is Failed or Succeeded: it will never serve again.
    pub finished: bool,
    /// Whether `status.podIP` or `status.podIPs` is set.
    pub has_ip: bool,
}

/// `spec.hostname` and `spec.subdomain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDns {
    /// `spec.hostname`.
    pub hostname: Option<Name>,
    /// `spec.subdomain`.
    pub subdomain: Option<Name>,
}

/// A named port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    /// The name.
    pub name: Name,
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub port: u16,
}

impl Pod {
    /// The named ports.
    pub fn ports(&self) -> &[ContainerPort] {
        self.ports.as_deref().map_or(&[], |ports| ports)
    }

    /// `spec.hostname`.
    pub fn hostname(&self) -> Option<&Name> {
        self.dns.as_ref()?.hostname.as_ref()
    }

    /// `spec.subdomain`.
    pub fn subdomain(&self) -> Option<&Name> {
        self.dns.as_ref()?.subdomain.as_ref()
    }
}
