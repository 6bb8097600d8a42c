//! Nodes and namespaces.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::label::Labels;
use crate::name::Name;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: Name,
    /// An empty label counts as absent.
    pub zone: Option<Name>,
    /// An empty label counts as absent.
    pub region: Option<Name>,
    /// Condition Ready=True.
    pub ready: bool,
    /// It has a control-plane label.
    pub control_plane: bool,
    /// Allocatable CPU in millicores.
    pub cpu_millis: Option<u64>,
    pub deleting: bool,
    /// The cluster autoscaler has tainted it for deletion.
    pub to_be_deleted: bool,
    /// Internal addresses first, then external ones.
    pub addresses: Box<[IpAddr]>,
    pub pod_cidrs: Box<[IpNet]>,
    /// The part of spec.providerID before `://`, e.g. aws.
    pub provider: Option<Name>,
}

impl Node {
    /// A ready node that is known by its name alone.
    pub fn named(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            zone: None,
            region: None,
            ready: true,
            control_plane: false,
            cpu_millis: None,
            deleting: false,
            to_be_deleted: false,
            addresses: Box::default(),
            pod_cidrs: Box::default(),
            provider: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: Name,
    pub labels: Labels,
    /// Default of its Services.
    pub default_traffic_distribution: Option<Name>,
}
