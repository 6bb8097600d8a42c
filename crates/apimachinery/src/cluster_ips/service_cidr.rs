//! The ServiceCIDR controller: finalizer, Ready condition, and the default ServiceCIDR.
//!
//! ```text
//! live      -> finalizer, Ready=True
//! deleting  -> an address would lose its last range: Ready=False (Terminating), wait for a change
//!           -> otherwise: remove the finalizer 10 s after the deletion
//! ```

use std::net::IpAddr;

use ipnet::IpNet;
use model::annotation::IP_ALLOCATOR;
use model::{IpAddress, Name, Notice, ObjectRef, ServiceCidr, Timestamp};

use super::ip_range::IpRange;

/// The ServiceCIDR that is created from the configuration.
pub const DEFAULT_NAME: &str = "kubernetes";

/// Pitfall 43: time for allocators to observe the deletion before the finalizer is removed.
const DELETION_GRACE_SECONDS: f64 = 10.0;

/// Semantics E2: whether addresses are allocated from it.
pub fn is_ready(cidr: &ServiceCidr) -> bool {
    cidr.ready != Some(false) && cidr.deleting.is_none()
}

/// In the order of use: the default one, then by name.
pub fn in_order<'a>(cidrs: &[&'a ServiceCidr]) -> Vec<&'a ServiceCidr> {
    let mut ordered = cidrs.to_vec();
    ordered.sort_by_key(|cidr| (cidr.name != *DEFAULT_NAME, cidr.name.clone()));
    ordered
}

pub fn ranges(cidr: &ServiceCidr) -> impl Iterator<Item = IpRange> + '_ {
    cidr.cidrs.iter().copied().map(IpRange::new)
}

/// The ServiceCIDRs in which an address is usable, by name. A change of the address may unblock their deletion.
pub fn containing(ip: IpAddr, cidrs: &[&ServiceCidr]) -> Vec<Name> {
    named(cidrs, |cidr| ranges(cidr).any(|range| range.contains(ip)))
}

/// The ServiceCIDRs that overlap this one, including itself, by name. A change of one may unblock the deletion of the
/// others.
pub fn overlapping(cidr: &ServiceCidr, cidrs: &[&ServiceCidr]) -> Vec<Name> {
    named(cidrs, |other| ranges(other).any(|theirs| ranges(cidr).any(|ours| ours.overlaps(&theirs))))
}

fn named(cidrs: &[&ServiceCidr], keep: impl Fn(&ServiceCidr) -> bool) -> Vec<Name> {
    let mut names: Vec<Name> = cidrs.iter().filter(|c| keep(c)).map(|c| c.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The lowest address that would lose its last range (semantics E4).
///
/// Other ranges that are being deleted do not count: otherwise two ranges that cover each other could both be deleted.
pub fn blocking_address(cidr: &ServiceCidr, all: &[&ServiceCidr], ips: &[&IpAddress]) -> Option<IpAddr> {
    let staying = all.iter().filter(|other| other.name != cidr.name && other.deleting.is_none());
    let staying: Vec<IpRange> = staying.flat_map(|other| ranges(other)).collect();
    let covered = |range: IpRange| staying.iter().any(|other| other.contains_range(&range));
    if ranges(cidr).all(covered) {
        return None;
    }
    let ours = ips.iter().filter(|ip| ip.managed_by.as_ref().is_some_and(|by| *by == *IP_ALLOCATOR));
    let lost = |ip: &IpAddr| {
        ranges(cidr).any(|range| range.contains(*ip)) && !staying.iter().any(|range| range.contains(*ip))
    };
    ours.map(|ip| ip.address).filter(lost).min()
}

/// A write that a ServiceCIDR needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CidrAction {
    AddFinalizer,
    SetReady,
    /// Condition Ready=False, reason Terminating.
    SetTerminating {
        message: String,
    },
    RemoveFinalizer,
    /// Sync again after this many seconds.
    Wait(u64),
}

/// The writes that a ServiceCIDR needs, in order (semantics E4).
pub fn sync_service_cidr(
    cidr: &ServiceCidr,
    all: &[&ServiceCidr],
    ips: &[&IpAddress],
    now: Timestamp,
) -> Vec<CidrAction> {
    let Some(since) = cidr.deleting else {
        let mut actions = Vec::new();
        if !cidr.has_finalizer {
            actions.push(CidrAction::AddFinalizer);
        }
        if cidr.ready != Some(true) {
            actions.push(CidrAction::SetReady);
        }
        return actions;
    };
    if !cidr.has_finalizer {
        return Vec::new();
    }
    if let Some(ip) = blocking_address(cidr, all, ips) {
        let message = format!(
            "addresses in use, e.g. {ip}, are in no other ServiceCIDR: delete their Services, or create a \
             ServiceCIDR that contains them"
        );
        return if cidr.ready == Some(false) {
            Vec::new()
        } else {
            vec![CidrAction::SetTerminating { message }]
        };
    }
    let left = DELETION_GRACE_SECONDS - now.seconds_since(since);
    if left > 0.0 {
        // A deletion time in the future is clock skew: wait no longer than usual.
        return vec![CidrAction::Wait(left.min(DELETION_GRACE_SECONDS).ceil() as u64)];
    }
    vec![CidrAction::RemoveFinalizer]
}

/// What the default ServiceCIDR needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultCidrAction {
    Nothing,
    Create(Vec<IpNet>),
    /// Append a range of the other IP family.
    Upgrade(Vec<IpNet>),
    /// It differs from the configuration and needs manual repair.
    Mismatch(Notice),
}

/// Compares the configured ranges with the stored default ServiceCIDR (semantics E2, pitfall 42). Call it every 10
/// seconds and on every change of the object.
pub fn sync_default(configured: &[IpNet], stored: Option<&ServiceCidr>) -> DefaultCidrAction {
    let Some(stored) = stored else { return DefaultCidrAction::Create(configured.to_vec()) };
    if *stored.cidrs == *configured {
        return DefaultCidrAction::Nothing;
    }
    if let ([first], [same, _]) = (&*stored.cidrs, configured)
        && first == same
    {
        return DefaultCidrAction::Upgrade(configured.to_vec());
    }
    let list = |cidrs: &[IpNet]| cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
    let message = format!(
        "spec.cidrs is {}, but {} is configured. The object is used; change the configuration to match it, or \
         create other ServiceCIDRs and delete this one.",
        list(&stored.cidrs),
        list(configured)
    );
    let object = ObjectRef::new("ServiceCIDR", "", &stored.name);
    DefaultCidrAction::Mismatch(Notice::new(object, "KubernetesDefaultServiceCIDRInconsistent", message))
}

#[cfg(test)]
mod tests;
