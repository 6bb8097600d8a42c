//! What becomes of a Service's addresses when the Service is changed (semantics E3).
//!
//! ```text
//! ExternalName -> other     all addresses are allocated
//! other -> ExternalName     all addresses are released, after the change is committed
//! one family -> two         the second is allocated
//! two families -> one       the second is released, after the change is committed
//! otherwise                 nothing: the primary address never changes
//! ```

use std::net::IpAddr;

use model::service::FamilyPolicy;
use model::{ClusterIps, Family, Service, ServiceType};

use super::FieldError;
use super::families::{ClusterFamilies, Request, defaulted, needs_addresses};

/// What a change of a Service asks of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressChange {
    /// `spec.ipFamilyPolicy` after the change; none for an ExternalName.
    pub policy: Option<FamilyPolicy>,
    /// `spec.ipFamilies` after the change.
    pub families: Vec<Family>,
    /// The addresses that stay, in the order of the families.
    pub kept: Vec<IpAddr>,
    /// What to allocate behind them: an address of the family, or that very one.
    pub allocate: Vec<(Family, Option<IpAddr>)>,
    /// What to release once the change is stored, and not if storing it fails.
    pub release: Vec<IpAddr>,
}

/// What a change from `old` to `new` does to the addresses, or the field that does not allow it.
pub fn update(old: &Service, new: &Service, cluster: &ClusterFamilies) -> Result<AddressChange, FieldError> {
    if new.kind == ServiceType::ExternalName {
        let release = if old.kind == ServiceType::ExternalName { &[] } else { old.cluster_ips.addresses() };
        return Ok(AddressChange { release: release.to_vec(), ..AddressChange::default() });
    }
    // An old Service without addresses, headless ones apart, is like a new one.
    if old.kind == ServiceType::ExternalName || old.cluster_ips == ClusterIps::Unset {
        return created(new, cluster);
    }
    check_primary(old, new)?;
    if old.cluster_ips == ClusterIps::None {
        return still_headless(old, new, cluster);
    }
    let as_it_was = complete(Request::of(old));
    let request = carried_over(&as_it_was, new)?;
    // A cluster that becomes dual-stack, or stops being so, leaves Services with PreferDualStack as they are
    // until their owner changes one of the three fields.
    let complete = request.families.len() == request.addresses.len();
    if request == as_it_was && request.policy == FamilyPolicy::PreferDualStack && complete {
        let Request { policy, families, addresses: kept } = request;
        return Ok(AddressChange { policy: Some(policy), families, kept, ..AddressChange::default() });
    }
    let before = as_it_was.addresses;
    let families = request.resolve(cluster)?;
    let kept = before.iter().take(families.len()).copied().collect::<Vec<_>>();
    let release = before.iter().skip(families.len()).copied().collect();
    let missing = families.iter().enumerate().skip(kept.len());
    let allocate = missing.map(|(i, family)| (*family, request.addresses.get(i).copied())).collect();
    Ok(AddressChange { policy: Some(request.policy), families, kept, allocate, release })
}

fn created(new: &Service, cluster: &ClusterFamilies) -> Result<AddressChange, FieldError> {
    let Some((policy, families)) = defaulted(new, cluster)? else { return Ok(AddressChange::default()) };
    let given = new.cluster_ips.addresses();
    let wanted = if needs_addresses(new) { families.as_slice() } else { &[] };
    let allocate = wanted.iter().enumerate().map(|(i, family)| (*family, given.get(i).copied())).collect();
    Ok(AddressChange { policy: Some(policy), families, allocate, ..AddressChange::default() })
}

/// A headless Service may change its families, and what it leaves out stays as it was.
fn still_headless(
    old: &Service,
    new: &Service,
    cluster: &ClusterFamilies,
) -> Result<AddressChange, FieldError> {
    let mut new = new.clone();
    new.cluster_ips = ClusterIps::None;
    new.family_policy = new.family_policy.or(old.family_policy);
    if new.families.is_empty() {
        new.families.clone_from(&old.families);
    }
    created(&new, cluster)
}

/// The primary address is for the Service's life, and so is having none.
fn check_primary(old: &Service, new: &Service) -> Result<(), FieldError> {
    let primary = |service: &Service| match &service.cluster_ips {
        ClusterIps::Unset => None,
        ClusterIps::None => Some(None),
        ClusterIps::Addresses(addresses) => Some(addresses.first().copied()),
    };
    // Missing means "as it was".
    if primary(new).is_none() || primary(new) == primary(old) {
        return Ok(());
    }
    let reason = "the primary address cannot be changed; delete the Service and create it anew";
    Err(FieldError::new("spec.clusterIPs[0]", reason))
}

/// A stored Service lists the families of its addresses; one that does not is read as if it did.
fn complete(mut request: Request) -> Request {
    let more = request.families.split_off(request.addresses.len().min(request.families.len()));
    request.families = request.addresses.iter().map(|ip| Family::of(*ip)).chain(more).collect();
    request
}

/// What the new Service asks for, with what it leaves out taken from the old one.
fn carried_over(before: &Request, new: &Service) -> Result<Request, FieldError> {
    let mut request = Request::of(new);
    // A policy that is left out is the old one: only an explicit one changes the number of families.
    if new.family_policy.is_none() {
        request.policy = before.policy;
    }
    if request.addresses.is_empty() {
        request.addresses.clone_from(&before.addresses);
    }
    if request.families.is_empty() {
        request.families.clone_from(&before.families);
    }
    check_secondary(before, &request)?;
    if request.policy == FamilyPolicy::SingleStack {
        // Semantics E3: SingleStack with unchanged lists is a clear wish to give the second family up.
        if request.addresses == before.addresses {
            request.addresses.truncate(1);
        }
        if request.families == before.families {
            request.families.truncate(1);
        }
    } else if request.addresses.len() < before.addresses.len()
        || request.families.len() < before.families.len()
    {
        let reason = "to give up the second address or family, set SingleStack";
        return Err(FieldError::new("spec.ipFamilyPolicy", reason));
    }
    Ok(request)
}

/// A second address or family can come and go, but not turn into another.
fn check_secondary(before: &Request, request: &Request) -> Result<(), FieldError> {
    let changed = matches!((before.addresses.as_slice(), request.addresses.as_slice()),
        ([_, old], [_, new]) if old != new);
    if changed {
        let reason =
            "the second address cannot be changed; give it up by SingleStack first, then ask for another";
        return Err(FieldError::new("spec.clusterIPs[1]", reason));
    }
    if before.families.first().is_some_and(|old| request.families.first() != Some(old)) {
        let reason = "the primary family cannot be changed; delete the Service and create it anew";
        return Err(FieldError::new("spec.ipFamilies[0]", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
