//! Pods: the fields from which endpoints are computed.

use std::sync::Arc;

use crate::address::{Addresses, Protocol};
use crate::label::Labels;
use crate::name::{Name, ObjectKey};
use crate::time::Timestamp;
use crate::uid::Uid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub key: ObjectKey,
    pub uid: Option<Uid>,
    pub labels: Labels,
    pub node: Option<Name>,
    /// `status.podIPs`; `status.podIP` alone is not used (semantics B2).
    pub ips: Option<Addresses>,
    /// Named ports and DNS names, if any. Shared between the pods of a workload.
    pub details: Option<Arc<PodDetails>>,
    /// `lastTransitionTime` of condition Ready.
    pub ready_since: Option<Timestamp>,
    /// Condition Ready=True.
    pub ready: bool,
    pub deleting: bool,
    /// Phase Failed or Succeeded.
    pub finished: bool,
    /// `status.podIP` or `status.podIPs` is set.
    pub has_ip: bool,
}

/// Fields of a pod that only some Services need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodDetails {
    /// Named ports of the containers, then of sidecars (restartable init containers).
    pub ports: Box<[ContainerPort]>,
    pub hostname: Option<Name>,
    pub subdomain: Option<Name>,
    /// The annotation `zoneward.dev/capacity`, as it is written.
    pub capacity: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
}

impl Pod {
    pub fn ports(&self) -> &[ContainerPort] {
        self.details.as_ref().map_or(&[], |details| &details.ports)
    }

    pub fn hostname(&self) -> Option<&Name> {
        self.details.as_ref()?.hostname.as_ref()
    }

    /// The annotation `zoneward.dev/capacity`, as it is written.
    pub fn capacity(&self) -> Option<&Name> {
        self.details.as_ref()?.capacity.as_ref()
    }

    pub fn subdomain(&self) -> Option<&Name> {
        self.details.as_ref()?.subdomain.as_ref()
    }
}
