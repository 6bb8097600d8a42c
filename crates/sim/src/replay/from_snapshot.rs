//! The initial cluster from a snapshot; pods that it lacks are derived from endpoints.

use std::sync::Arc;

use model::{
    AddressType, Addresses, ContainerPort, Endpoint, Notice, ObjectKey, ObjectRef, Pod, PodDetails, Service,
    ServiceType, Slice, Snapshot, TargetPort,
};

use super::{InitialCluster, PodTimings};

impl InitialCluster {
    /// Returns notices for Services that cannot be replayed.
    pub fn from_snapshot(snapshot: &Snapshot, timings: PodTimings) -> (Self, Vec<Notice>) {
        let mut start = Self { nodes: snapshot.nodes().clone(), timings, ..Self::default() };
        let mut notices = Vec::new();
        start.pods = snapshot.pods().cloned().collect();
        for (service, slices) in snapshot.services() {
            let Some(selector) =
                service.selector.as_ref().filter(|_| service.kind != ServiceType::ExternalName)
            else {
                let message = "skipped: it has no selector, so the controller does not write its slices";
                notices.push(Notice::new(ObjectRef::service(&service.key), "LeftOut", message));
                continue;
            };
            if snapshot.pods_selected(&service.key.namespace, selector).is_empty() {
                start.pods.extend(pods_of(service, slices));
            }
            if let Some(namespace) = snapshot.namespace(&service.key.namespace) {
                start.namespaces.insert(namespace.name.clone(), namespace.clone());
            }
            start.slices.insert(service.key.clone(), slices.to_vec());
            start.services.push(service.clone());
        }
        (start, notices)
    }
}

/// One pod per endpoint; a dual-stack endpoint becomes two pods.
fn pods_of(service: &Service, slices: &[Slice]) -> Vec<Pod> {
    let routed = slices.iter().filter(|slice| slice.content.address_type != AddressType::Fqdn);
    let endpoints = routed.flat_map(|slice| slice.content.endpoints.iter().map(move |e| (slice, e)));
    endpoints.enumerate().map(|(at, (slice, endpoint))| pod(service, slice, endpoint, at)).collect()
}

fn pod(service: &Service, slice: &Slice, endpoint: &Endpoint, at: usize) -> Pod {
    let name = match endpoint.target() {
        Some(target) => target.name.clone(),
        None => format!("{}-{at}", service.key.name).as_str().into(),
    };
    let ips: Vec<_> = endpoint.addresses.iter().collect();
    Pod {
        key: ObjectKey::new(&service.key.namespace, &name),
        uid: endpoint.target().and_then(|target| target.uid.clone()),
        labels: service.selector.clone().unwrap_or_default(),
        node: endpoint.node.clone(),
        ips: Addresses::from_slice(&ips),
        details: named_ports(service, slice),
        ready_since: None,
        ready: endpoint.conditions.is_ready(),
        deleting: endpoint.conditions.is_terminating(),
        finished: false,
        has_ip: true,
    }
}

/// Named container ports of the Service, with the numbers of the slice.
fn named_ports(service: &Service, slice: &Slice) -> Option<Arc<PodDetails>> {
    let named = service.ports.iter().filter_map(|port| {
        let TargetPort::Name(name) = &port.target else { return None };
        let same = |p: &&model::SlicePort| {
            p.name.as_deref().unwrap_or_default() == port.name.as_str() && p.protocol == port.protocol
        };
        let number = slice.content.ports.iter().find(same)?.port?;
        Some(ContainerPort { name: name.clone(), protocol: port.protocol, port: number })
    });
    let ports: Box<[ContainerPort]> = named.collect();
    (!ports.is_empty()).then(|| Arc::new(PodDetails { ports, ..PodDetails::default() }))
}
