//! Nodes and namespaces: where things run, and what holds for all that run there.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::Name;

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Name,
    /// Its zone; an empty label is none.
    pub zone: Option<Name>,
    /// Its region; an empty label is none.
    pub region: Option<Name>,
    /// Whether its Ready condition is True.
    pub ready: bool,
    /// Whether it carries a control-plane label.
    pub control_plane: bool,
    /// Allocatable CPU in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether the cluster autoscaler has marked it for deletion.
    pub to_be_deleted: bool,
    /// Its addresses: internal ones first, then external ones.
    pub addresses: Box<[IpAddr]>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Box<[IpNet]>,
}

/// A Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: Name,
    /// What its Services do that say nothing themselves.
    pub default_traffic_distribution: Option<Name>,
}
