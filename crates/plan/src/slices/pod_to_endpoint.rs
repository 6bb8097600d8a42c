//! One pod -> one endpoint, and the numbers of its ports (semantics B2 and B3).

use model::{
    Addresses, Endpoint, EndpointConditions, EndpointIdentity, Family, Name, Node, Pod, Service, ServicePort,
    SlicePort, TargetPort, TargetRef,
};

/// Whether a pod is an endpoint: it has an address and is not finished. Terminating pods are.
pub fn included(pod: &Pod) -> bool {
    !pod.finished && pod.has_ip
}

/// The endpoint of an included pod; `None` without an address of that family in `status.podIPs`.
pub fn endpoint(service: &Service, pod: &Pod, node: Option<&Node>, family: Family) -> Option<Endpoint> {
    let serving = pod.ready;
    let terminating = pod.deleting;
    let ready = service.publish_not_ready || (serving && !terminating);
    let target = TargetRef { name: pod.key.name.clone(), uid: pod.uid.clone() };
    Some(Endpoint {
        addresses: addresses(pod, family)?,
        // Pitfall 37: consumers disagree about absent conditions, so all are set.
        conditions: EndpointConditions::new(ready, serving, terminating),
        node: pod.node.clone(),
        zone: node.and_then(|node| node.zone.clone()),
        hints: None,
        identity: EndpointIdentity::new(hostname(service, pod).cloned(), Some(target)),
    })
}

fn addresses(pod: &Pod, family: Family) -> Option<Addresses> {
    let mut of_family = pod.ips.as_ref()?.iter().filter(|ip| Family::of(*ip) == family);
    let first = of_family.next()?;
    match of_family.next() {
        None => Some(Addresses::one(first)),
        Some(second) => {
            let all: Vec<_> = [first, second].into_iter().chain(of_family).collect();
            Addresses::from_slice(&all)
        }
    }
}

/// A pod has a DNS name under the Service that equals its subdomain.
fn hostname<'a>(service: &Service, pod: &'a Pod) -> Option<&'a Name> {
    let under_service = pod.subdomain() == Some(&service.key.name);
    let same_namespace = pod.key.namespace == service.key.namespace;
    pod.hostname().filter(|_| under_service && same_namespace)
}

/// The ports of the Service as this pod resolves them; unresolved ones are omitted.
pub fn ports(service: &Service, pod: &Pod) -> Vec<SlicePort> {
    service.ports.iter().filter_map(|port| slice_port(pod, port)).collect()
}

fn slice_port(pod: &Pod, port: &ServicePort) -> Option<SlicePort> {
    Some(SlicePort {
        name: Some(port.name.clone()),
        protocol: port.protocol,
        port: Some(find_port(pod, port)?),
        app_protocol: port.app_protocol.clone(),
    })
}

/// The container port of a Service port. Names are resolved together with the protocol.
pub fn find_port(pod: &Pod, port: &ServicePort) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => {
            let named = |p: &&model::ContainerPort| p.name == *name && p.protocol == port.protocol;
            pod.ports().iter().find(named).map(|p| p.port)
        }
    }
}
