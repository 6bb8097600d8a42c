//! PTR: which Services an address belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Family, Service, ServiceKey, Slice, Snapshot};

use crate::select::consumed;

/// Services by address, kept up to date one Service at a time.
#[derive(Clone, Debug, Default)]
pub struct ReverseIndex {
    services_by_cluster_ip: BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
    services_by_endpoint: BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
    addresses_by_service: BTreeMap<ServiceKey, (Vec<IpAddr>, Vec<IpAddr>)>,
}

impl ReverseIndex {
    /// Of all Services.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut index = Self::default();
        snapshot.services().for_each(|(service, _)| index.update(snapshot, &service.key));
        index
    }

    /// After a change of a Service or of its slices.
    pub fn update(&mut self, snapshot: &Snapshot, key: &ServiceKey) {
        if let Some((cluster_ips, endpoints)) = self.addresses_by_service.remove(key) {
            remove(&mut self.services_by_cluster_ip, cluster_ips, key);
            remove(&mut self.services_by_endpoint, endpoints, key);
        }
        let Some(service) = snapshot.service(key) else { return };
        let cluster_ips = service.cluster_ips.addresses().to_vec();
        let endpoints = ready_addresses(service, snapshot.slices(key));
        add(&mut self.services_by_cluster_ip, &cluster_ips, key);
        add(&mut self.services_by_endpoint, &endpoints, key);
        if !cluster_ips.is_empty() || !endpoints.is_empty() {
            self.addresses_by_service.insert(key.clone(), (cluster_ips, endpoints));
        }
    }

    #[cfg(test)]
    pub(super) fn services_are_empty(&self) -> bool {
        self.services_by_cluster_ip.is_empty()
            && self.services_by_endpoint.is_empty()
            && self.addresses_by_service.is_empty()
    }

    /// The Service with this cluster IP.
    pub(super) fn service(&self, address: IpAddr) -> Option<&ServiceKey> {
        self.services_by_cluster_ip.get(&address)?.first()
    }

    /// The Services with a ready endpoint at this address.
    pub(super) fn with_endpoint(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.services_by_endpoint.get(&address).into_iter().flatten()
    }
}

fn ready_addresses(service: &Service, slices: &[Slice]) -> Vec<IpAddr> {
    if service.kind == model::ServiceType::ExternalName {
        return Vec::new();
    }
    let families = [Family::V4, Family::V6];
    let slices = families.into_iter().flat_map(|family| consumed(slices, family));
    let endpoints = slices.flat_map(|slice| &slice.content.endpoints);
    let ready = endpoints.filter(|endpoint| endpoint.conditions.is_ready());
    ready.map(|endpoint| endpoint.addresses.first()).collect()
}

fn add(
    services_by_address: &mut BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
    addresses: &[IpAddr],
    key: &ServiceKey,
) {
    for address in addresses {
        services_by_address.entry(*address).or_default().insert(key.clone());
    }
}

fn remove(
    services_by_address: &mut BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
    addresses: Vec<IpAddr>,
    key: &ServiceKey,
) {
    for address in addresses {
        if let Some(services) = services_by_address.get_mut(&address) {
            services.remove(key);
            if services.is_empty() {
                services_by_address.remove(&address);
            }
        }
    }
}
