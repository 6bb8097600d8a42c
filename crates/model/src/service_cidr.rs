//! ServiceCIDR and IPAddress: the ranges of cluster IPs and the allocated ones.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::Name;
use crate::time::Timestamp;

/// One range, or one of each IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    pub name: Name,
    /// May have host bits.
    pub cidrs: Box<[IpNet]>,
    /// Condition Ready; an absent one counts as ready.
    pub ready: Option<bool>,
    /// `metadata.deletionTimestamp`.
    pub deleting: Option<Timestamp>,
    pub has_finalizer: bool,
}

/// The allocation of one address to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpAddress {
    /// Also its `metadata.name`.
    pub address: IpAddr,
    pub family_label: Option<Name>,
    pub managed_by: Option<Name>,
    pub parent: ParentRef,
    pub created: Option<Timestamp>,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentRef {
    /// Empty for the core group.
    pub group: Name,
    /// E.g. `services`.
    pub resource: Name,
    pub namespace: Name,
    pub name: Name,
}
