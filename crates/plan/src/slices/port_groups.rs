//! The included pods of a Service, grouped by their ports: a slice has one set of ports (semantics B3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Endpoint, Family, Name, Node, Notice, ObjectRef, Pod, Service, SlicePort, TargetPort};

use super::SliceInput;
use super::pod_to_endpoint::{endpoint, find_port, included, ports};

/// How many pods a Notice lists by name.
const MAX_NAMES_IN_NOTICE: usize = 3;

/// The included pods of a Service.
pub(super) struct Candidates<'a> {
    list: Vec<Candidate<'a>>,
    groups: PortGroups<'a>,
    /// Pods whose node does not exist.
    excluded: Vec<&'a Pod>,
}

struct Candidate<'a> {
    pod: &'a Pod,
    node: Option<&'a Node>,
    group: usize,
}

/// The endpoints of one port group and IP family.
pub(super) struct DesiredGroup {
    pub(super) ports: Arc<[SlicePort]>,
    /// The zone whose nodes alone need it; `None`: all.
    pub(super) zone: Option<Name>,
    /// Not empty.
    pub(super) endpoints: Vec<Endpoint>,
}

pub(super) fn candidates<'a>(input: &SliceInput<'a>) -> Candidates<'a> {
    let service = input.service;
    let mut found = Candidates {
        list: Vec::with_capacity(input.pods.len()),
        groups: PortGroups::new(service),
        excluded: Vec::new(),
    };
    for pod in input.pods.iter().copied().filter(|pod| included(pod)) {
        let node = pod.node.as_ref().and_then(|name| input.nodes.get(name));
        // Semantics B2, pitfall 31: a pod without an existing node is excluded until the node exists; other pods are not
        // affected. Services with publishNotReadyAddresses include it.
        if node.is_none() && !service.publish_not_ready {
            found.excluded.push(pod);
            continue;
        }
        let group = found.groups.of(service, pod);
        found.list.push(Candidate { pod, node, group });
    }
    found
}

impl Candidates<'_> {
    /// The endpoints of an IP family by their ports, without empty groups.
    pub(super) fn desired(&self, service: &Service, family: Family) -> Vec<DesiredGroup> {
        let mut endpoints: Vec<Vec<Endpoint>> = Vec::new();
        endpoints.extend(self.groups.list.iter().map(|group| Vec::with_capacity(group.pods)));
        for Candidate { pod, node, group } in &self.list {
            endpoints[*group].extend(endpoint(service, pod, *node, family));
        }
        let groups = self.groups.list.iter().zip(endpoints);
        groups
            .filter(|(_, endpoints)| !endpoints.is_empty())
            .map(|(group, endpoints)| DesiredGroup { ports: group.ports.clone(), zone: None, endpoints })
            .collect()
    }

    pub(super) fn missing_nodes(&self) -> Vec<Name> {
        let names: BTreeSet<&Name> = self.excluded.iter().filter_map(|pod| pod.node.as_ref()).collect();
        names.into_iter().cloned().collect()
    }

    pub(super) fn notices(&self, service: &Service) -> Vec<Notice> {
        let mut pods_by_node: BTreeMap<Option<&Name>, Vec<&Pod>> = BTreeMap::new();
        for pod in &self.excluded {
            pods_by_node.entry(pod.node.as_ref()).or_default().push(pod);
        }
        let missing = pods_by_node.into_iter().map(|(node, pods)| node_missing(service, node, &pods));
        let unresolved = self.groups.omitted_ports(service).into_iter();
        let unresolved = unresolved.map(|(port, pods)| port_not_found(service, port, pods, self.list.len()));
        missing.chain(unresolved).collect()
    }
}

fn node_missing(service: &Service, node: Option<&Name>, pods: &[&Pod]) -> Notice {
    let pods = listed(pods);
    let message = match node {
        Some(node) => format!(
            "{pods}: excluded, because node {node:?} of spec.nodeName does not exist. They are included as soon as it \
             does; delete pods of removed nodes."
        ),
        None => format!(
            "{pods}: excluded, because spec.nodeName is not set. Set it, or set spec.publishNotReadyAddresses on the \
             Service."
        ),
    };
    Notice::new(ObjectRef::service(&service.key), "NodeMissing", message)
}

fn listed(pods: &[&Pod]) -> String {
    let names: Vec<&str> = pods.iter().take(MAX_NAMES_IN_NOTICE).map(|pod| pod.key.name.as_str()).collect();
    let word = if pods.len() == 1 { "pod" } else { "pods" };
    match pods.len() - names.len() {
        0 => format!("{word} {}", names.join(", ")),
        more => format!("{word} {} and {more} more", names.join(", ")),
    }
}

/// One Notice for all pods of a Service.
fn port_not_found(service: &Service, index: usize, pods: usize, of: usize) -> Notice {
    let port = &service.ports[index];
    let target = match &port.target {
        TargetPort::Name(name) => name.as_str(),
        TargetPort::Number(_) => "",
    };
    let message = format!(
        "spec.ports[{index}].targetPort: {pods} of {of} pods have no container port named {target:?} with \
         protocol {}, so port {} does not forward to them. Name the port in their containers, or use a number as \
         targetPort.",
        port.protocol, port.port
    );
    Notice::new(ObjectRef::service(&service.key), "PortNotFound", message)
}

/// The distinct sets of ports, in the order of the pods.
struct PortGroups<'a> {
    list: Vec<PortGroup>,
    /// Semantics B3: the order of ports is irrelevant, so keys are sorted.
    by_sorted_ports: BTreeMap<Vec<SlicePort>, usize>,
    has_named_targets: bool,
    /// The previous pod: consecutive pods of one workload share their ports.
    last: Option<(&'a Pod, usize)>,
}

struct PortGroup {
    ports: Arc<[SlicePort]>,
    pods: usize,
    /// Indexes of the Service's ports that these pods do not resolve.
    omitted: Box<[usize]>,
}

impl<'a> PortGroups<'a> {
    fn new(service: &Service) -> Self {
        let named = service.ports.iter().any(|port| matches!(port.target, TargetPort::Name(_)));
        Self { list: Vec::new(), by_sorted_ports: BTreeMap::new(), has_named_targets: named, last: None }
    }

    fn of(&mut self, service: &Service, pod: &'a Pod) -> usize {
        let same = |other: &Pod| !self.has_named_targets || share_ports(other, pod);
        let index = match self.last {
            Some((other, index)) if same(other) => index,
            _ => self.look_up(service, pod),
        };
        self.last = Some((pod, index));
        self.list[index].pods += 1;
        index
    }

    fn look_up(&mut self, service: &Service, pod: &Pod) -> usize {
        let ports = ports(service, pod);
        let mut sorted = ports.clone();
        sorted.sort();
        let list = &mut self.list;
        *self.by_sorted_ports.entry(sorted).or_insert_with(|| {
            let all = service.ports.iter().enumerate();
            let omitted = all.filter(|(_, port)| find_port(pod, port).is_none()).map(|(i, _)| i).collect();
            list.push(PortGroup { ports: ports.into(), pods: 0, omitted });
            list.len() - 1
        })
    }

    /// Unresolved ports of the Service, with the number of pods.
    fn omitted_ports(&self, service: &Service) -> Vec<(usize, usize)> {
        let mut pods_by_port = vec![0; service.ports.len()];
        for group in &self.list {
            for port in &group.omitted {
                pods_by_port[*port] += group.pods;
            }
        }
        pods_by_port.into_iter().enumerate().filter(|(_, pods)| *pods > 0).collect()
    }
}

fn share_ports(a: &Pod, b: &Pod) -> bool {
    match (&a.details, &b.details) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}
