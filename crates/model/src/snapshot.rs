//! The world as last seen: every object by its key, with the two look-ups that planning needs.
//!
//! One owner applies changes and counts them; whoever plans borrows it, so a plan never sees half a change.
//! A change touches its own object and its own Service only, whatever the size of the rest.

mod pods;
mod routes;

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::node::{Namespace, Node};
use crate::parse::Object;
use crate::pod::Pod;
use crate::range::{IpAddress, ServiceCidr};
use crate::service::Service;
use crate::slice::Slice;
use pods::PodIndex;
use routes::RouteIndex;

/// Counts the changes that a snapshot has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// All objects, by key.
#[derive(Debug, Default)]
pub struct Snapshot {
    revision: Revision,
    services: BTreeMap<ServiceKey, Entry>,
    /// The name of each slice's Service, which is in the same namespace.
    service_by_slice: BTreeMap<ObjectKey, Name>,
    pods: PodIndex,
    nodes: BTreeMap<Name, Node>,
    namespaces: BTreeMap<Name, Namespace>,
    service_cidrs: BTreeMap<Name, ServiceCidr>,
    ip_addresses: BTreeMap<IpAddr, IpAddress>,
    routes: RouteIndex,
}

/// A Service and its slices; either may come first.
#[derive(Debug, Default)]
struct Entry {
    service: Option<Box<Service>>,
    /// In the order of their names.
    slices: Vec<Slice>,
}

impl Snapshot {
    /// How many changes it has seen.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Puts an object in, or in the place of the one with the same key.
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
            Object::HttpRoute(route) => self.routes.put_http(*route),
            Object::GatewayHttpRoute(route) => self.routes.put_gateway_http(*route),
            Object::TcpRoute(route) => self.routes.put_tcp(*route),
            Object::Gateway(gateway) => self.routes.put_gateway(*gateway),
        }
    }

    fn apply_slice(&mut self, slice: Slice) {
        self.take_slice(&slice.key);
        let Some(service) = slice.service() else { return };
        self.service_by_slice.insert(slice.key.clone(), service.name.clone());
        let slices = &mut self.services.entry(service).or_default().slices;
        let at = slices.partition_point(|s| s.key.name < slice.key.name);
        // Most Services have one slice and keep it: room for four would be most of what is held.
        slices.reserve_exact(1);
        slices.insert(at, slice);
    }

    /// Takes a Service out; its slices stay until they are removed themselves.
    pub fn remove_service(&mut self, key: &ServiceKey) {
        self.revision.0 += 1;
        if let Some(entry) = self.services.get_mut(key) {
            entry.service = None;
            self.drop_empty_entry(key);
        }
    }

    /// Takes a slice out.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.take_slice(key);
    }

    fn take_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.service_by_slice.remove(key) else { return };
        let service = ServiceKey::new(&key.namespace, &service);
        if let Some(entry) = self.services.get_mut(&service) {
            entry.slices.retain(|s| s.key.name != key.name);
        }
        self.drop_empty_entry(&service);
    }

    /// An entry without Service and slices would stay for ever (pitfall 4).
    fn drop_empty_entry(&mut self, key: &ServiceKey) {
        if self.services.get(key).is_some_and(|e| e.service.is_none() && e.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// Takes a pod out.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.pods.remove(key);
    }

    /// Takes a node out.
    pub fn remove_node(&mut self, name: &str) {
        self.revision.0 += 1;
        self.nodes.remove(name);
    }

    /// Takes a namespace out.
    pub fn remove_namespace(&mut self, name: &str) {
        self.revision.0 += 1;
        self.namespaces.remove(name);
    }

    /// Takes a ServiceCIDR out.
    pub fn remove_service_cidr(&mut self, name: &str) {
        self.revision.0 += 1;
        self.service_cidrs.remove(name);
    }

    /// Takes an IPAddress out.
    pub fn remove_ip_address(&mut self, address: IpAddr) {
        self.revision.0 += 1;
        self.ip_addresses.remove(&address);
    }

    /// Every Service with its slices.
    pub fn services(&self) -> impl Iterator<Item = (&Service, &[Slice])> {
        self.services.values().filter_map(|e| Some((e.service.as_deref()?, e.slices.as_slice())))
    }

    /// The Services of a namespace, by name.
    pub fn services_within(&self, namespace: &Name) -> impl Iterator<Item = &Service> {
        let first = ServiceKey::new(namespace, &Name::default());
        let namespace = namespace.clone();
        let all = self.services.range(first..).take_while(move |(key, _)| key.namespace == namespace);
        all.filter_map(|(_, entry)| entry.service.as_deref())
    }

    /// A Service.
    pub fn service(&self, key: &ServiceKey) -> Option<&Service> {
        self.services.get(key)?.service.as_deref()
    }

    /// The slices of a Service, whether the Service exists or not.
    pub fn slices(&self, key: &ServiceKey) -> &[Slice] {
        self.services.get(key).map_or(&[], |e| &e.slices)
    }

    /// The Services whose object is missing but whose slices are there.
    pub fn orphaned_slices(&self) -> impl Iterator<Item = (&ServiceKey, &[Slice])> {
        self.services.iter().filter(|(_, e)| e.service.is_none()).map(|(k, e)| (k, e.slices.as_slice()))
    }

    /// The pods that a selector selects, in the order of their names. An empty one selects all of the namespace.
    pub fn pods_selected(&self, namespace: &Name, selector: &Labels) -> Vec<&Pod> {
        self.pods.selected(namespace, selector)
    }

    /// A pod.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Pod> {
        self.pods.pod(key)
    }

    /// A slice.
    pub fn slice(&self, key: &ObjectKey) -> Option<&Slice> {
        let service = ServiceKey::new(&key.namespace, self.service_by_slice.get(key)?);
        self.slices(&service).iter().find(|slice| slice.key.name == key.name)
    }

    /// Every pod.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Every node, by name.
    pub fn nodes(&self) -> &BTreeMap<Name, Node> {
        &self.nodes
    }

    /// A namespace.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name)
    }

    /// Every namespace, by name.
    pub fn namespaces(&self) -> &BTreeMap<Name, Namespace> {
        &self.namespaces
    }

    /// The key of every slice.
    pub fn slice_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.service_by_slice.keys()
    }

    /// The Service that a slice belongs to.
    pub fn service_of_slice(&self, key: &ObjectKey) -> Option<ServiceKey> {
        self.service_by_slice.get(key).map(|name| ServiceKey::new(&key.namespace, name))
    }

    /// Every ServiceCIDR, by name.
    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    /// Every IPAddress, by address.
    pub fn ip_addresses(&self) -> impl Iterator<Item = &IpAddress> {
        self.ip_addresses.values()
    }
}

#[cfg(test)]
mod tests;
