//! ServiceCIDRs: what may be written, what protects them while addresses depend on them, and the default one.
//!
//! ```text
//! live      -> finalizer, Ready=True
//! deleting  -> an address would lose its last range: Ready=False (Terminating), wait for a change
//!           -> none would: 10 s after the deletion began the finalizer goes, and the object with it
//! ```

use std::net::IpAddr;

use ipnet::IpNet;
use model::annotation::IP_ALLOCATOR;
use model::{Family, IpAddress, Name, Notice, ObjectRef, ServiceCidr, Timestamp};

use super::FieldError;
use super::range::Range;

/// The ServiceCIDR that the cluster starts with.
pub const DEFAULT_NAME: &str = "kubernetes";

/// Pitfall 43: how long allocators get to hear of a deletion before the finalizer goes.
const DELETION_GRACE_SECONDS: f64 = 10.0;

/// Semantics E2: new addresses come out of it.
pub fn is_ready(cidr: &ServiceCidr) -> bool {
    cidr.ready != Some(false) && cidr.deleting.is_none()
}

/// The default one first, then by name: the order in which ranges are used and reported.
pub fn in_order<'a>(cidrs: &[&'a ServiceCidr]) -> Vec<&'a ServiceCidr> {
    let mut ordered = cidrs.to_vec();
    ordered.sort_by_key(|cidr| (cidr.name != *DEFAULT_NAME, cidr.name.clone()));
    ordered
}

/// Its ranges.
pub fn ranges(cidr: &ServiceCidr) -> impl Iterator<Item = Range> + '_ {
    cidr.cidrs.iter().copied().map(Range::new)
}

/// What is wrong with `spec.cidrs` of a new ServiceCIDR (semantics E2).
pub fn validate_create(cidrs: &[impl AsRef<str>]) -> Vec<FieldError> {
    if cidrs.is_empty() {
        return vec![FieldError::new("spec.cidrs", "it is empty; write one range, or one of each family")];
    }
    if cidrs.len() > 2 {
        return vec![FieldError::new("spec.cidrs", "it has more than two entries; write one of each family")];
    }
    let read = cidrs.iter().enumerate().map(|(i, text)| {
        let field = || format!("spec.cidrs[{i}]");
        canonical(text.as_ref()).map_err(|reason| FieldError::new(field(), reason))
    });
    let (good, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
    let mut errors: Vec<FieldError> = bad.into_iter().filter_map(Result::err).collect();
    let families: Vec<Family> = good.into_iter().flatten().map(|cidr| Range::new(cidr).family()).collect();
    if matches!(families[..], [a, b] if a == b) {
        errors.push(FieldError::new("spec.cidrs", "both are of one family; write one of each family"));
    }
    errors
}

/// One spelling for each range: no host bits, no leading zeros, no IPv4 in IPv6 clothes.
fn canonical(text: &str) -> Result<IpNet, String> {
    let cidr: IpNet = text.parse().map_err(|_| {
        format!("{text:?} is not a CIDR in its usual form, as 10.96.0.0/16 or fd00::/112 would be")
    })?;
    if let IpAddr::V6(v6) = cidr.addr()
        && v6.to_ipv4_mapped().is_some()
    {
        return Err(format!("{text:?} is an IPv4 range in IPv6 clothes; write it as IPv4"));
    }
    let usual = cidr.trunc().to_string();
    if usual == text { Ok(cidr) } else { Err(format!("{text:?} is not in its usual form; write {usual}")) }
}

/// What is wrong with a change of `spec.cidrs`: nothing may change, except that a range of the other family
/// is put behind the first (semantics E2).
pub fn validate_update(old: &[impl AsRef<str>], new: &[impl AsRef<str>]) -> Vec<FieldError> {
    let same = old.len() <= new.len() && old.iter().zip(new).all(|(a, b)| a.as_ref() == b.as_ref());
    if same && old.len() == new.len() {
        return Vec::new();
    }
    if same && old.len() == 1 && new.len() == 2 {
        return validate_create(new);
    }
    let reason = "ranges cannot be changed, except that one of the other family is added behind the first; \
                  create another ServiceCIDR and delete this one";
    vec![FieldError::new("spec.cidrs", reason)]
}

/// The ServiceCIDRs in which an address is usable, by name: a change of the address may concern their
/// deletion.
pub fn containing(ip: IpAddr, cidrs: &[&ServiceCidr]) -> Vec<Name> {
    named(cidrs, |cidr| ranges(cidr).any(|range| range.contains(ip)))
}

/// The ServiceCIDRs that share addresses with this one, itself among them where it is listed, by name: a
/// change of one may concern the deletion of the others.
pub fn overlapping(cidr: &ServiceCidr, cidrs: &[&ServiceCidr]) -> Vec<Name> {
    named(cidrs, |other| ranges(other).any(|theirs| ranges(cidr).any(|ours| ours.overlaps(&theirs))))
}

fn named(cidrs: &[&ServiceCidr], keep: impl Fn(&ServiceCidr) -> bool) -> Vec<Name> {
    let mut names: Vec<Name> = cidrs.iter().filter(|c| keep(c)).map(|c| c.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether a ServiceCIDR may go without an address losing its last range. `all` may list it too.
pub fn can_delete(cidr: &ServiceCidr, all: &[&ServiceCidr], ips: &[&IpAddress]) -> bool {
    blocking_address(cidr, all, ips).is_none()
}

/// An address that would lose its last range with this ServiceCIDR (semantics E4).
///
/// Ranges that are being deleted themselves do not count: of two that cover each other both would go, and the
/// addresses would stay behind.
pub fn blocking_address(cidr: &ServiceCidr, all: &[&ServiceCidr], ips: &[&IpAddress]) -> Option<IpAddr> {
    let staying = all.iter().filter(|other| other.name != cidr.name && other.deleting.is_none());
    let staying: Vec<Range> = staying.flat_map(|other| ranges(other)).collect();
    let covered = |range: Range| staying.iter().any(|other| other.contains_range(&range));
    if ranges(cidr).all(covered) {
        return None;
    }
    let ours = ips.iter().filter(|ip| ip.managed_by.as_ref().is_some_and(|by| *by == *IP_ALLOCATOR));
    let lost = |ip: &IpAddr| {
        ranges(cidr).any(|range| range.contains(*ip)) && !staying.iter().any(|range| range.contains(*ip))
    };
    ours.map(|ip| ip.address).filter(lost).min()
}

/// What is to be done about a ServiceCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CidrAction {
    /// Put the finalizer on.
    AddFinalizer,
    /// Set the condition Ready to True.
    SetReady,
    /// Set the condition Ready to False, with reason Terminating.
    SetTerminating {
        /// The condition's message: which address is in the way, and what to do.
        message: String,
    },
    /// Take the finalizer off.
    RemoveFinalizer,
    /// Look again after so many seconds.
    Wait(u64),
}

/// What is to be done about a ServiceCIDR, in this order (semantics E4).
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
            "{ip} and perhaps others are in use and lie in no other ServiceCIDR: delete the Services that \
             hold them, or create a ServiceCIDR that contains them"
        );
        return if cidr.ready == Some(false) {
            Vec::new()
        } else {
            vec![CidrAction::SetTerminating { message }]
        };
    }
    let left = DELETION_GRACE_SECONDS - now.seconds_since(since);
    if left > 0.0 {
        // A deletion that seems to lie in the future is a matter of clocks: look again after the usual time.
        return vec![CidrAction::Wait(left.min(DELETION_GRACE_SECONDS).ceil() as u64)];
    }
    vec![CidrAction::RemoveFinalizer]
}

/// What is to be done about the default ServiceCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// It is as configured.
    Nothing,
    /// Create it with these ranges.
    Create(Vec<IpNet>),
    /// Give it these ranges: the one that it has, and one of the other family.
    Upgrade(Vec<IpNet>),
    /// It differs from the configuration, which only a person can put right.
    Mismatch(Notice),
}

/// Compares the configured ranges with the stored default ServiceCIDR (semantics E2, pitfall 42). To be asked
/// again every 10 seconds and at every change of the object.
pub fn sync_default(configured: &[IpNet], stored: Option<&ServiceCidr>) -> DefaultAction {
    let Some(stored) = stored else { return DefaultAction::Create(configured.to_vec()) };
    if *stored.cidrs == *configured {
        return DefaultAction::Nothing;
    }
    if let ([first], [same, _]) = (&*stored.cidrs, configured)
        && first == same
    {
        return DefaultAction::Upgrade(configured.to_vec());
    }
    let list = |cidrs: &[IpNet]| cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
    let message = format!(
        "spec.cidrs: it has {}, and the configuration says {}. The object counts; change the configuration \
         to match it, or create other ServiceCIDRs and delete this one.",
        list(&stored.cidrs),
        list(configured)
    );
    let object = ObjectRef::new("ServiceCIDR", "", &stored.name);
    DefaultAction::Mismatch(Notice::new(object, "KubernetesDefaultServiceCIDRInconsistent", message))
}

#[cfg(test)]
mod tests;
