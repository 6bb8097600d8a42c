//! The IP families of a Service (semantics E3): `spec.ipFamilyPolicy`, `spec.ipFamilies` and `spec.clusterIPs`, each
//! inferred from the others if absent, and finally from the ranges of the cluster.

use std::net::IpAddr;

use model::service::FamilyPolicy;
use model::{Family, Service};

use super::FieldError;

/// The IP families of the ready ranges of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterFamilies {
    /// The default family: that of the first range of the default ServiceCIDR.
    pub default: Option<Family>,
    pub v4: bool,
    pub v6: bool,
}

impl ClusterFamilies {
    pub fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn is_dual_stack(&self) -> bool {
        self.v4 && self.v6
    }
}

/// The request of a Service, on an update completed from the old version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FamilyRequest {
    pub(super) policy: FamilyPolicy,
    pub(super) families: Vec<Family>,
    pub(super) addresses: Vec<IpAddr>,
}

impl FamilyRequest {
    pub(super) fn of(service: &Service) -> Self {
        Self {
            // Semantics E3: the default is SingleStack.
            policy: service.family_policy.unwrap_or(FamilyPolicy::SingleStack),
            families: service.families.to_vec(),
            addresses: service.cluster_ips.addresses().to_vec(),
        }
    }

    /// The families, primary first.
    pub(super) fn resolve(&self, cluster: &ClusterFamilies) -> Result<Vec<Family>, FieldError> {
        check_lists(&self.families, &self.addresses)?;
        self.check_single_stack()?;
        let mut families = self.families.clone();
        for (i, ip) in self.addresses.iter().enumerate().skip(families.len()) {
            let family = Family::of(*ip);
            if !cluster.has(family) {
                return Err(FieldError::invalid(format!("spec.clusterIPs[{i}]"), not_served(family)));
            }
            families.push(family);
        }
        if self.policy == FamilyPolicy::RequireDualStack && !cluster.is_dual_stack() {
            return Err(single_stack_cluster(cluster));
        }
        for (i, family) in families.iter().enumerate() {
            if !cluster.has(*family) {
                return Err(FieldError::invalid(format!("spec.ipFamilies[{i}]"), not_served(*family)));
            }
        }
        if families.is_empty() {
            families.push(default_family(cluster)?);
        }
        if self.policy != FamilyPolicy::SingleStack && families.len() == 1 && cluster.is_dual_stack() {
            families.push(families[0].other());
        }
        Ok(families)
    }

    fn check_single_stack(&self) -> Result<(), FieldError> {
        if self.policy != FamilyPolicy::SingleStack {
            return Ok(());
        }
        let what = match (self.addresses.len(), self.families.len()) {
            (2.., _) => "spec.clusterIPs",
            (_, 2..) => "spec.ipFamilies",
            _ => return Ok(()),
        };
        let reason = format!(
            "SingleStack (the default) does not allow two entries in {what}; set PreferDualStack or \
             RequireDualStack, or remove one entry"
        );
        Err(FieldError::invalid("spec.ipFamilyPolicy", reason))
    }
}

/// At most one entry per family, and both lists in the same order.
fn check_lists(families: &[Family], addresses: &[IpAddr]) -> Result<(), FieldError> {
    let one_of_each =
        |field: &str| FieldError::invalid(field, "at most one entry of each IP family is allowed");
    if families.len() > 2 || matches!(families, [a, b] if a == b) {
        return Err(one_of_each("spec.ipFamilies"));
    }
    if addresses.len() > 2 || matches!(addresses, [a, b] if Family::of(*a) == Family::of(*b)) {
        return Err(one_of_each("spec.clusterIPs"));
    }
    for (i, (family, ip)) in families.iter().zip(addresses).enumerate() {
        if Family::of(*ip) != *family {
            let reason = format!("{ip} is not an {family} address, which spec.ipFamilies[{i}] requires");
            return Err(FieldError::invalid(format!("spec.clusterIPs[{i}]"), reason));
        }
    }
    Ok(())
}

fn default_family(cluster: &ClusterFamilies) -> Result<Family, FieldError> {
    let nothing = "there is no ServiceCIDR to allocate from; create one";
    let default = cluster.default.ok_or_else(|| FieldError::invalid("spec.clusterIPs", nothing))?;
    if cluster.has(default) {
        Ok(default)
    } else {
        Err(FieldError::invalid("spec.clusterIPs", not_served(default)))
    }
}

fn not_served(family: Family) -> String {
    format!("no ServiceCIDR has a ready {family} range; create one, or remove {family}")
}

fn single_stack_cluster(cluster: &ClusterFamilies) -> FieldError {
    let missing = match (cluster.v4, cluster.v6) {
        (true, _) => "no IPv6 range",
        (_, true) => "no IPv4 range",
        _ => "no range at all",
    };
    let reason = format!(
        "RequireDualStack needs ready ranges of both IP families, but there is {missing}; create a \
         ServiceCIDR, or set PreferDualStack"
    );
    FieldError::invalid("spec.ipFamilyPolicy", reason)
}

/// Whether a Service has cluster IPs; ExternalName and headless Services do not (semantics E3).
pub fn needs_addresses(service: &Service) -> bool {
    service.kind != model::ServiceType::ExternalName && service.cluster_ips != model::ClusterIps::None
}

/// The families of the cluster IPs of a new Service, primary first; empty if it has none.
pub fn wanted(service: &Service, cluster: &ClusterFamilies) -> Result<Vec<Family>, FieldError> {
    if !needs_addresses(service) {
        return Ok(Vec::new());
    }
    FamilyRequest::of(service).resolve(cluster)
}

/// Defaulted `spec.ipFamilyPolicy` and `spec.ipFamilies` of a new Service; `None` for ExternalName.
pub fn defaulted(
    service: &Service,
    cluster: &ClusterFamilies,
) -> Result<Option<(FamilyPolicy, Vec<Family>)>, FieldError> {
    if service.kind == model::ServiceType::ExternalName {
        return Ok(None);
    }
    let mut request = FamilyRequest::of(service);
    let free_choice = service.cluster_ips == model::ClusterIps::None
        && service.selector.as_ref().is_none_or(|selector| selector.is_empty());
    if !free_choice {
        return Ok(Some((request.policy, request.resolve(cluster)?)));
    }
    // Semantics E3: endpoints of a headless Service without selector may be of any family, independent of the ranges.
    request.policy = service.family_policy.unwrap_or(FamilyPolicy::RequireDualStack);
    check_lists(&request.families, &[])?;
    request.check_single_stack()?;
    if request.families.is_empty() {
        request.families.push(cluster.default.unwrap_or(Family::V4));
    }
    if request.policy != FamilyPolicy::SingleStack && request.families.len() == 1 {
        request.families.push(request.families[0].other());
    }
    Ok(Some((request.policy, request.families)))
}

/// The family that a Service with one address lacks.
///
/// A stored Service with PreferDualStack does not change when the cluster becomes dual-stack: its owner has to request a
/// second family or RequireDualStack.
pub fn lacking(service: &Service, cluster: &ClusterFamilies) -> Result<Option<Family>, FieldError> {
    let [only] = service.cluster_ips.addresses() else { return Ok(None) };
    let requested = match service.family_policy {
        Some(FamilyPolicy::RequireDualStack) => true,
        Some(FamilyPolicy::PreferDualStack) => service.families.len() == 2,
        Some(FamilyPolicy::SingleStack) | None => false,
    };
    if !requested || !needs_addresses(service) {
        return Ok(None);
    }
    let missing = Family::of(*only).other();
    if cluster.has(missing) {
        return Ok(Some(missing));
    }
    Err(match service.family_policy {
        Some(FamilyPolicy::RequireDualStack) => single_stack_cluster(cluster),
        _ => FieldError::invalid("spec.ipFamilies[1]", not_served(missing)),
    })
}

#[cfg(test)]
mod tests;
