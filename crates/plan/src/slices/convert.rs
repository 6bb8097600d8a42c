//! One pod -> one endpoint, and the numbers of its ports (semantics B2 and B3).
//!
//! Nothing here looks at other pods or at what is stored.

use model::{
    Addresses, Conditions, Endpoint, Family, Name, Node, Pod, Service, ServicePort, SlicePort, TargetPort,
    TargetRef,
};

/// Whether a pod is an endpoint at all: it has an address and is not finished. One that terminates still is.
pub fn included(pod: &Pod) -> bool {
    !pod.finished && pod.has_ip
}

/// The endpoint of an included pod, unless the pod has no address of that family in `status.podIPs`.
pub fn endpoint(service: &Service, pod: &Pod, node: Option<&Node>, family: Family) -> Option<Endpoint> {
    let serving = pod.ready;
    let terminating = pod.deleting;
    let ready = service.publish_not_ready || (serving && !terminating);
    Some(Endpoint {
        addresses: addresses(pod, family)?,
        // Pitfall 37: readers disagree about a missing condition, so none is left out.
        conditions: Conditions::new(ready, serving, terminating),
        hostname: hostname(service, pod).cloned(),
        node: pod.node.clone(),
        zone: node.and_then(|node| node.zone.clone()),
        target: Some(TargetRef { name: pod.key.name.clone(), uid: pod.uid.clone() }),
        hints: None,
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

/// A pod has a DNS name of its own where it asks for one under this Service.
fn hostname<'a>(service: &Service, pod: &'a Pod) -> Option<&'a Name> {
    let under_service = pod.subdomain() == Some(&service.key.name);
    let same_namespace = pod.key.namespace == service.key.namespace;
    pod.hostname().filter(|_| under_service && same_namespace)
}

/// The Service's ports as this pod has them, in the Service's order; one that the pod does not have is left
/// out.
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

/// The number that a pod listens on for a Service's port. A name is looked up with its protocol.
pub fn find_port(pod: &Pod, port: &ServicePort) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => {
            let named = |p: &&model::ContainerPort| p.name == *name && p.protocol == port.protocol;
            pod.ports().iter().find(named).map(|p| p.port)
        }
    }
}
