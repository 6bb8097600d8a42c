//! ServiceCIDR and IPAddress: which addresses Services may have, and which are taken.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::Name;
use crate::time::Timestamp;

/// A ServiceCIDR: one range, or one of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its name.
    pub name: Name,
    /// The ranges as written, host bits and all.
    pub cidrs: Box<[IpNet]>,
    /// Its Ready condition; missing counts as ready.
    pub ready: Option<bool>,
    /// Since when it is being deleted.
    pub deleting: Option<Timestamp>,
    /// Whether it carries the finalizer that protects it.
    pub has_finalizer: bool,
}

/// An IPAddress: the lock on one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpAddress {
    /// The address, which is also its name.
    pub address: IpAddr,
    /// The label that names its family.
    pub family_label: Option<Name>,
    /// The label that names its writer.
    pub managed_by: Option<Name>,
    /// Who holds the address.
    pub parent: ParentRef,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentRef {
    /// The API group, empty for core.
    pub group: Name,
    /// The resource, as `services`.
    pub resource: Name,
    /// The namespace.
    pub namespace: Name,
    /// The name.
    pub name: Name,
}
