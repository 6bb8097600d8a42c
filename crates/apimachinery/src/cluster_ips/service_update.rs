//! The effect of a Service update on its cluster IPs (semantics E3).
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
use super::ip_families::{ClusterFamilies, FamilyRequest, defaulted, needs_addresses};

/// Allocations and releases of a Service update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressChange {
    /// `spec.ipFamilyPolicy` after the change; none for an ExternalName.
    pub policy: Option<FamilyPolicy>,
    /// `spec.ipFamilies` after the change.
    pub families: Vec<Family>,
    /// The addresses that stay, in the order of the families.
    pub kept: Vec<IpAddr>,
    /// Further addresses to allocate: any of the family, or a specific one.
    pub allocate: Vec<(Family, Option<IpAddr>)>,
    /// Addresses to release after the update is committed.
    pub release: Vec<IpAddr>,
}

/// The effect of an update, or the error of an immutable field.
pub fn update(old: &Service, new: &Service, cluster: &ClusterFamilies) -> Result<AddressChange, FieldError> {
    if new.kind == ServiceType::ExternalName {
        let release = if old.kind == ServiceType::ExternalName { &[] } else { old.cluster_ips.addresses() };
        return Ok(AddressChange { release: release.to_vec(), ..AddressChange::default() });
    }
    // A Service without addresses that is not headless is treated as new.
    if old.kind == ServiceType::ExternalName || old.cluster_ips == ClusterIps::Unset {
        return created(new, cluster);
    }
    check_primary(old, new)?;
    if old.cluster_ips == ClusterIps::None {
        return still_headless(old, new, cluster);
    }
    let as_it_was = complete(FamilyRequest::of(old));
    let request = carried_over(&as_it_was, new)?;
    // When the cluster becomes dual-stack, or stops being so, a Service with PreferDualStack does not change until its
    // owner changes one of the three fields.
    let complete = request.families.len() == request.addresses.len();
    if request == as_it_was && request.policy == FamilyPolicy::PreferDualStack && complete {
        let FamilyRequest { policy, families, addresses: kept } = request;
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

/// A headless Service may change its families; absent fields keep their values.
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

/// The primary address is immutable, and so is "None".
fn check_primary(old: &Service, new: &Service) -> Result<(), FieldError> {
    let primary = |service: &Service| match &service.cluster_ips {
        ClusterIps::Unset => None,
        ClusterIps::None => Some(None),
        ClusterIps::Addresses(addresses) => Some(addresses.first().copied()),
    };
    // An absent address keeps its value.
    if primary(new).is_none() || primary(new) == primary(old) {
        return Ok(());
    }
    let reason = "the primary address is immutable; delete and recreate the Service";
    Err(FieldError::invalid("spec.clusterIPs[0]", reason))
}

/// Adds the families of its addresses to a stored Service that lacks them.
fn complete(mut request: FamilyRequest) -> FamilyRequest {
    let more = request.families.split_off(request.addresses.len().min(request.families.len()));
    request.families = request.addresses.iter().map(|ip| Family::of(*ip)).chain(more).collect();
    request
}

/// The request of the new Service, with absent fields taken from the old one.
fn carried_over(before: &FamilyRequest, new: &Service) -> Result<FamilyRequest, FieldError> {
    let mut request = FamilyRequest::of(new);
    // Only an explicit policy changes the number of families.
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
        // Semantics E3: SingleStack with unchanged lists releases the second family.
        if request.addresses == before.addresses {
            request.addresses.truncate(1);
        }
        if request.families == before.families {
            request.families.truncate(1);
        }
    } else if request.addresses.len() < before.addresses.len()
        || request.families.len() < before.families.len()
    {
        let reason = "set SingleStack to release the second address or family";
        return Err(FieldError::invalid("spec.ipFamilyPolicy", reason));
    }
    Ok(request)
}

/// A second address or family can be added and removed, but not replaced.
fn check_secondary(before: &FamilyRequest, request: &FamilyRequest) -> Result<(), FieldError> {
    let changed = matches!((before.addresses.as_slice(), request.addresses.as_slice()),
        ([_, old], [_, new]) if old != new);
    if changed {
        let reason =
            "the second address is immutable; release it with SingleStack first, then request another";
        return Err(FieldError::invalid("spec.clusterIPs[1]", reason));
    }
    if before.families.first().is_some_and(|old| request.families.first() != Some(old)) {
        let reason = "the primary IP family is immutable; delete and recreate the Service";
        return Err(FieldError::invalid("spec.ipFamilies[0]", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
