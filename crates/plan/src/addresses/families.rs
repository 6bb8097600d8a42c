//! Which families of addresses a Service is to have (semantics E3).
//!
//! `spec.ipFamilyPolicy`, `spec.ipFamilies` and `spec.clusterIPs` all speak about it; each may be missing and
//! is then inferred from the others, and in the end from what the cluster has.

use std::net::IpAddr;

use model::service::FamilyPolicy;
use model::{Family, Service};

use super::FieldError;

/// What the cluster can give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterFamilies {
    /// The family of Services that do not say: that of the default ServiceCIDR's first range.
    pub default: Option<Family>,
    /// Whether some ready range gives IPv4 addresses.
    pub v4: bool,
    /// Whether some ready range gives IPv6 addresses.
    pub v6: bool,
}

impl ClusterFamilies {
    /// Whether the cluster can give addresses of a family.
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

/// What a Service says about its families, as written or with defaults from its former self.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) policy: FamilyPolicy,
    pub(super) families: Vec<Family>,
    pub(super) addresses: Vec<IpAddr>,
}

impl Request {
    pub(super) fn of(service: &Service) -> Self {
        Self {
            // Semantics E3: SingleStack where nothing is said.
            policy: service.family_policy.unwrap_or(FamilyPolicy::SingleStack),
            families: service.families.to_vec(),
            addresses: service.cluster_ips.addresses().to_vec(),
        }
    }

    /// The families to have, the primary one first.
    pub(super) fn resolve(&self, cluster: &ClusterFamilies) -> Result<Vec<Family>, FieldError> {
        check_lists(&self.families, &self.addresses)?;
        self.check_policy_of_two()?;
        let mut families = self.families.clone();
        for (i, ip) in self.addresses.iter().enumerate().skip(families.len()) {
            let family = Family::of(*ip);
            if !cluster.has(family) {
                return Err(FieldError::new(format!("spec.clusterIPs[{i}]"), not_served(family)));
            }
            families.push(family);
        }
        if self.policy == FamilyPolicy::RequireDualStack && !cluster.is_dual_stack() {
            return Err(single_stack_cluster(cluster));
        }
        for (i, family) in families.iter().enumerate() {
            if !cluster.has(*family) {
                return Err(FieldError::new(format!("spec.ipFamilies[{i}]"), not_served(*family)));
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

    fn check_policy_of_two(&self) -> Result<(), FieldError> {
        if self.policy != FamilyPolicy::SingleStack {
            return Ok(());
        }
        let what = match (self.addresses.len(), self.families.len()) {
            (2.., _) => "spec.clusterIPs",
            (_, 2..) => "spec.ipFamilies",
            _ => return Ok(()),
        };
        let reason = format!(
            "SingleStack, which is also what a missing policy means, and two entries in {what} do not go \
             together; set PreferDualStack or RequireDualStack, or leave one entry out"
        );
        Err(FieldError::new("spec.ipFamilyPolicy", reason))
    }
}

/// At most one of each family, and both lists in the same order.
fn check_lists(families: &[Family], addresses: &[IpAddr]) -> Result<(), FieldError> {
    let one_of_each = |field: &str| {
        FieldError::new(field, "a Service has at most one entry of each family; leave the others out")
    };
    if families.len() > 2 || matches!(families, [a, b] if a == b) {
        return Err(one_of_each("spec.ipFamilies"));
    }
    if addresses.len() > 2 || matches!(addresses, [a, b] if Family::of(*a) == Family::of(*b)) {
        return Err(one_of_each("spec.clusterIPs"));
    }
    for (i, (family, ip)) in families.iter().zip(addresses).enumerate() {
        if Family::of(*ip) != *family {
            let reason =
                format!("{ip} is not of {family}, which spec.ipFamilies[{i}] asks for; change one of them");
            return Err(FieldError::new(format!("spec.clusterIPs[{i}]"), reason));
        }
    }
    Ok(())
}

fn default_family(cluster: &ClusterFamilies) -> Result<Family, FieldError> {
    let nothing = "there is no ServiceCIDR that addresses could come from; create one";
    let default = cluster.default.ok_or_else(|| FieldError::new("spec.clusterIPs", nothing))?;
    if cluster.has(default) {
        Ok(default)
    } else {
        Err(FieldError::new("spec.clusterIPs", not_served(default)))
    }
}

fn not_served(family: Family) -> String {
    format!(
        "the cluster gives no {family} addresses: no ServiceCIDR has an {family} range that is ready and \
         large enough; create one, or leave {family} out"
    )
}

fn single_stack_cluster(cluster: &ClusterFamilies) -> FieldError {
    let missing = match (cluster.v4, cluster.v6) {
        (true, _) => "no IPv6 range",
        (_, true) => "no IPv4 range",
        _ => "no range at all",
    };
    let reason = format!(
        "RequireDualStack needs ready ranges of both families, and there is {missing}; create a ServiceCIDR, \
         or set PreferDualStack"
    );
    FieldError::new("spec.ipFamilyPolicy", reason)
}

/// Whether a Service has addresses of the cluster at all (semantics E3: ExternalName and headless ones do
/// not).
pub fn needs_addresses(service: &Service) -> bool {
    service.kind != model::ServiceType::ExternalName && service.cluster_ips != model::ClusterIps::None
}

/// The families that addresses of a new Service are to be of, the primary one first; none for one that needs
/// no address.
pub fn wanted(service: &Service, cluster: &ClusterFamilies) -> Result<Vec<Family>, FieldError> {
    if !needs_addresses(service) {
        return Ok(Vec::new());
    }
    Request::of(service).resolve(cluster)
}

/// What `spec.ipFamilyPolicy` and `spec.ipFamilies` of a new Service become, headless or not; nothing for an
/// ExternalName.
pub fn defaulted(
    service: &Service,
    cluster: &ClusterFamilies,
) -> Result<Option<(FamilyPolicy, Vec<Family>)>, FieldError> {
    if service.kind == model::ServiceType::ExternalName {
        return Ok(None);
    }
    let mut request = Request::of(service);
    let free_choice = service.cluster_ips == model::ClusterIps::None
        && service.selector.as_ref().is_none_or(|selector| selector.is_empty());
    if !free_choice {
        return Ok(Some((request.policy, request.resolve(cluster)?)));
    }
    // Semantics E3: whoever writes the endpoints of a headless Service without selector may bring any family,
    // whatever ranges the cluster has.
    request.policy = service.family_policy.unwrap_or(FamilyPolicy::RequireDualStack);
    check_lists(&request.families, &[])?;
    request.check_policy_of_two()?;
    if request.families.is_empty() {
        request.families.push(cluster.default.unwrap_or(Family::V4));
    }
    if request.policy != FamilyPolicy::SingleStack && request.families.len() == 1 {
        request.families.push(request.families[0].other());
    }
    Ok(Some((request.policy, request.families)))
}

/// The family that a Service with addresses still lacks.
///
/// A stored Service with PreferDualStack stays as it is when the cluster becomes dual-stack: only its owner
/// may change it, by asking for a second family or for RequireDualStack.
pub fn lacking(service: &Service, cluster: &ClusterFamilies) -> Result<Option<Family>, FieldError> {
    let [only] = service.cluster_ips.addresses() else { return Ok(None) };
    let asks = match service.family_policy {
        Some(FamilyPolicy::RequireDualStack) => true,
        Some(FamilyPolicy::PreferDualStack) => service.families.len() == 2,
        Some(FamilyPolicy::SingleStack) | None => false,
    };
    if !asks || !needs_addresses(service) {
        return Ok(None);
    }
    let missing = Family::of(*only).other();
    if cluster.has(missing) {
        return Ok(Some(missing));
    }
    Err(match service.family_policy {
        Some(FamilyPolicy::RequireDualStack) => single_stack_cluster(cluster),
        _ => FieldError::new("spec.ipFamilies[1]", not_served(missing)),
    })
}

#[cfg(test)]
mod tests;
