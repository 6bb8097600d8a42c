//! Pods: what makes them endpoints.

use std::sync::Arc;

use crate::address::{Addresses, Protocol};
use crate::label::Labels;
use crate::name::{Name, ObjectKey};
use crate::time::Timestamp;
use crate::uid::Uid;

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
    /// Its named ports and its name in DNS; missing where it has neither. Shared: the pods of a workload
    /// have the same ones.
    pub details: Option<Arc<PodDetails>>,
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

/// What only some Services ask of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodDetails {
    /// Named ports of the containers, then of the init containers that keep running.
    pub ports: Box<[ContainerPort]>,
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
        self.details.as_ref().map_or(&[], |details| &details.ports)
    }

    /// `spec.hostname`.
    pub fn hostname(&self) -> Option<&Name> {
        self.details.as_ref()?.hostname.as_ref()
    }

    /// `spec.subdomain`.
    pub fn subdomain(&self) -> Option<&Name> {
        self.details.as_ref()?.subdomain.as_ref()
    }
}
