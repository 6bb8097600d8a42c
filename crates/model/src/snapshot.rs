//! The observed state of the cluster: all objects by key, with indexes for planning.
//!
//! One owner applies changes and plan functions borrow it, so a plan never sees a partial change. The cost of a change is
//! independent of the number of other objects.

mod gateway_api;
mod pods;
mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::node::{Namespace, Node};
use crate::parse::Object;
use crate::pod::Pod;
use crate::service::Service;
use crate::service_cidr::{IpAddress, ServiceCidr};
use crate::slice::{EndpointShares, Slice};
use crate::tree::compact;
use gateway_api::GatewayApiIndex;
use pods::PodIndex;
use routes::RouteIndex;

/// Number of changes that were applied to a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotRevision(pub u64);

/// All objects of a cluster.
#[derive(Debug, Default)]
pub struct Snapshot {
    revision: SnapshotRevision,
    services: BTreeMap<ServiceKey, ServiceEntry>,
    /// Name of the Service, in the namespace of the slice.
    service_by_slice: BTreeMap<ObjectKey, Name>,
    /// Slices whose annotations say something on the shares of endpoints.
    slices_with_shares: BTreeSet<ObjectKey>,
    pods: PodIndex,
    nodes: BTreeMap<Name, Node>,
    namespaces: BTreeMap<Name, Namespace>,
    service_cidrs: BTreeMap<Name, ServiceCidr>,
    ip_addresses: BTreeMap<IpAddr, IpAddress>,
    routes: RouteIndex,
    gateway_api: GatewayApiIndex,
}

/// A Service and its slices; slices may be observed before their Service.
#[derive(Debug, Default)]
struct ServiceEntry {
    service: Option<Box<Service>>,
    /// By name.
    slices: Vec<Slice>,
}

impl Snapshot {
    pub fn revision(&self) -> SnapshotRevision {
        self.revision
    }

    /// Adds an object or replaces the one with the same key.
    pub fn apply(&mut self, object: Object) {
        self.revision.0 += 1;
        match object {
            Object::Service(service) => {
                let key = service.key.clone();
                self.services.entry(key).or_default().service = Some(service);
            }
            Object::Slice(slice) => self.apply_slice(*slice),
            Object::Pod(pod) => self.pods.insert(*pod),
            Object::Node(node) => drop(self.nodes.insert(node.name.clone(), *node)),
            Object::Namespace(namespace) => {
                self.namespaces.insert(namespace.name.clone(), namespace);
            }
            Object::ServiceCidr(cidr) => drop(self.service_cidrs.insert(cidr.name.clone(), cidr)),
            Object::IpAddress(ip) => drop(self.ip_addresses.insert(ip.address, ip)),
            Object::MeshHttpRoute(route) => self.routes.put_http(*route),
            Object::MeshGatewayHttpRoute(route) => self.routes.put_gateway_http(*route),
            Object::MeshTcpRoute(route) => self.routes.put_tcp(*route),
            Object::MeshGateway(gateway) => self.routes.put_mesh_gateway(*gateway),
            Object::MeshRouteFilter(filter) => self.routes.put_route_filter(*filter),
            Object::MeshLoadBalancing(policy) => self.routes.put_load_balancing(*policy, self.revision.0),
            Object::GatewayApi(object) => self.gateway_api.put(*object, self.revision.0),
        }
    }

    fn apply_slice(&mut self, slice: Slice) {
        self.take_slice(&slice.key);
        let Some(service) = slice.service() else { return };
        self.service_by_slice.insert(slice.key.clone(), service.name.clone());
        if slice.has_shares() {
            self.slices_with_shares.insert(slice.key.clone());
        }
        let slices = &mut self.services.entry(service).or_default().slices;
        let at = slices.partition_point(|s| s.key.name < slice.key.name);
        // Most Services have one slice: default capacity would waste memory.
        slices.reserve_exact(1);
        slices.insert(at, slice);
    }

    /// Packs the trees of Services and slices: after a list of them.
    pub fn compact_services(&mut self) {
        compact(&mut self.services);
        compact(&mut self.service_by_slice);
    }

    /// Its slices stay until they are removed themselves.
    pub fn remove_service(&mut self, key: &ServiceKey) {
        self.revision.0 += 1;
        if let Some(entry) = self.services.get_mut(key) {
            entry.service = None;
            self.drop_empty_entry(key);
        }
    }

    pub fn remove_slice(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.take_slice(key);
    }

    fn take_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.service_by_slice.remove(key) else { return };
        self.slices_with_shares.remove(key);
        let service = ServiceKey::new(&key.namespace, &service);
        if let Some(entry) = self.services.get_mut(&service) {
            entry.slices.retain(|s| s.key.name != key.name);
        }
        self.drop_empty_entry(&service);
    }

    /// An entry without Service and slices would leak (pitfall 4).
    fn drop_empty_entry(&mut self, key: &ServiceKey) {
        if self.services.get(key).is_some_and(|e| e.service.is_none() && e.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// Slices whose annotations say something on the shares of endpoints.
    pub fn slices_with_shares(&self) -> impl Iterator<Item = &Slice> {
        self.slices_with_shares.iter().filter_map(|key| self.slice(key))
    }

    /// Sets what a slice's annotations say at this time.
    pub fn set_shares(&mut self, key: &ObjectKey, shares: Option<Box<EndpointShares>>) {
        let Some(service) = self.service_of_slice(key) else { return };
        self.revision.0 += 1;
        let slices = self.services.get_mut(&service).map_or(&mut [][..], |entry| &mut entry.slices);
        if let Some(slice) = slices.iter_mut().find(|slice| slice.key.name == key.name) {
            slice.shares = shares;
        }
    }

    pub fn remove_pod(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.pods.remove(key);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.revision.0 += 1;
        self.nodes.remove(name);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.revision.0 += 1;
        self.namespaces.remove(name);
    }

    pub fn remove_service_cidr(&mut self, name: &str) {
        self.revision.0 += 1;
        self.service_cidrs.remove(name);
    }

    pub fn remove_ip_address(&mut self, address: IpAddr) {
        self.revision.0 += 1;
        self.ip_addresses.remove(&address);
    }

    /// All Services with their slices.
    pub fn services(&self) -> impl Iterator<Item = (&Service, &[Slice])> {
        self.services.values().filter_map(|e| Some((e.service.as_deref()?, e.slices.as_slice())))
    }

    pub fn services_within(&self, namespace: &Name) -> impl Iterator<Item = &Service> {
        let first = ServiceKey::new(namespace, &Name::default());
        let namespace = namespace.clone();
        let all = self.services.range(first..).take_while(move |(key, _)| key.namespace == namespace);
        all.filter_map(|(_, entry)| entry.service.as_deref())
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Service> {
        self.services.get(key)?.service.as_deref()
    }

    /// The slices of a Service, even if the Service does not exist.
    pub fn slices(&self, key: &ServiceKey) -> &[Slice] {
        self.services.get(key).map_or(&[], |e| &e.slices)
    }

    /// Slices whose Service does not exist.
    pub fn orphaned_slices(&self) -> impl Iterator<Item = (&ServiceKey, &[Slice])> {
        self.services.iter().filter(|(_, e)| e.service.is_none()).map(|(k, e)| (k, e.slices.as_slice()))
    }

    /// The selected pods by name. An empty selector selects all pods of the namespace.
    pub fn pods_selected(&self, namespace: &Name, selector: &Labels) -> Vec<&Pod> {
        self.pods.selected(namespace, selector)
    }

    pub fn pod(&self, key: &ObjectKey) -> Option<&Pod> {
        self.pods.pod(key)
    }

    pub fn slice(&self, key: &ObjectKey) -> Option<&Slice> {
        let service = ServiceKey::new(&key.namespace, self.service_by_slice.get(key)?);
        self.slices(&service).iter().find(|slice| slice.key.name == key.name)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub fn nodes(&self) -> &BTreeMap<Name, Node> {
        &self.nodes
    }

    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name)
    }

    /// The namespace's `zoneward.dev/default-traffic-distribution`.
    pub fn default_traffic_distribution(&self, namespace: &str) -> Option<&Name> {
        self.namespace(namespace)?.default_traffic_distribution.as_ref()
    }

    pub fn namespaces(&self) -> &BTreeMap<Name, Namespace> {
        &self.namespaces
    }

    pub fn slice_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.service_by_slice.keys()
    }

    pub fn service_of_slice(&self, key: &ObjectKey) -> Option<ServiceKey> {
        self.service_by_slice.get(key).map(|name| ServiceKey::new(&key.namespace, name))
    }

    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    pub fn ip_addresses(&self) -> impl Iterator<Item = &IpAddress> {
        self.ip_addresses.values()
    }
}

#[cfg(test)]
mod tests;
