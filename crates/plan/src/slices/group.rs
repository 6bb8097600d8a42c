//! Which pods count, and which of them have the same ports: every slice holds one set of ports (semantics
//! B3).
//!
//! Done once per Service; the families then differ only in addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Endpoint, Family, Name, Node, Notice, ObjectRef, Pod, Service, SlicePort, TargetPort};

use super::Input;
use super::convert::{endpoint, find_port, included, ports};

/// How many pods a Notice names before it only counts.
const NAMED_IN_NOTICE: usize = 3;

/// The pods of a Service that count, with their ports.
pub(super) struct Candidates<'a> {
    list: Vec<Candidate<'a>>,
    groups: PortGroups<'a>,
    /// Pods that would count if their node was there.
    left_out: Vec<&'a Pod>,
}

struct Candidate<'a> {
    pod: &'a Pod,
    node: Option<&'a Node>,
    group: usize,
}

/// What the pods of one port group want in one family.
pub(super) struct WantedGroup {
    /// In the Service's order.
    pub(super) ports: Arc<[SlicePort]>,
    /// In the order of the pods; none is empty.
    pub(super) endpoints: Vec<Endpoint>,
}

/// Finds the pods that count.
pub(super) fn candidates<'a>(input: &Input<'a>) -> Candidates<'a> {
    let service = input.service;
    let mut found = Candidates {
        list: Vec::with_capacity(input.pods.len()),
        groups: PortGroups::new(service),
        left_out: Vec::new(),
    };
    for pod in input.pods.iter().copied().filter(|pod| included(pod)) {
        let node = pod.node.as_ref().and_then(|name| input.nodes.get(name));
        // Semantics B2, pitfall 31: a pod whose node is not there waits for it, and the others do not wait
        // for the pod. No node at all is the same. Who publishes whatever is not ready gets it at once.
        if node.is_none() && !service.publish_not_ready {
            found.left_out.push(pod);
            continue;
        }
        let group = found.groups.of(service, pod);
        found.list.push(Candidate { pod, node, group });
    }
    found
}

impl Candidates<'_> {
    /// The endpoints of a family, by their ports. A group without endpoints is not there.
    pub(super) fn wanted(&self, service: &Service, family: Family) -> Vec<WantedGroup> {
        let mut endpoints: Vec<Vec<Endpoint>> = Vec::new();
        endpoints.extend(self.groups.list.iter().map(|group| Vec::with_capacity(group.pods)));
        for Candidate { pod, node, group } in &self.list {
            endpoints[*group].extend(endpoint(service, pod, *node, family));
        }
        let groups = self.groups.list.iter().zip(endpoints);
        groups
            .filter(|(_, endpoints)| !endpoints.is_empty())
            .map(|(group, endpoints)| WantedGroup { ports: group.ports.clone(), endpoints })
            .collect()
    }

    /// The nodes that pods wait for.
    pub(super) fn missing_nodes(&self) -> Vec<Name> {
        let names: BTreeSet<&Name> = self.left_out.iter().filter_map(|pod| pod.node.as_ref()).collect();
        names.into_iter().cloned().collect()
    }

    /// What is wrong with the pods, told to whoever owns the Service.
    pub(super) fn notices(&self, service: &Service) -> Vec<Notice> {
        let mut pods_by_node: BTreeMap<Option<&Name>, Vec<&Pod>> = BTreeMap::new();
        for pod in &self.left_out {
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
            "{pods}: left out, because spec.nodeName names node {node:?}, which does not exist. They count \
             as soon as it does; delete pods that a removed node left behind."
        ),
        None => format!(
            "{pods}: left out, because spec.nodeName is not set. Set it to a node, or set \
             spec.publishNotReadyAddresses on the Service."
        ),
    };
    Notice::new(ObjectRef::service(&service.key), "NodeMissing", message)
}

fn listed(pods: &[&Pod]) -> String {
    let names: Vec<&str> = pods.iter().take(NAMED_IN_NOTICE).map(|pod| pod.key.name.as_str()).collect();
    let word = if pods.len() == 1 { "pod" } else { "pods" };
    match pods.len() - names.len() {
        0 => format!("{word} {}", names.join(", ")),
        more => format!("{word} {} and {more} more", names.join(", ")),
    }
}

/// One Notice for all pods: a rollout that forgets a name would otherwise say it a thousand times.
fn port_not_found(service: &Service, index: usize, pods: usize, of: usize) -> Notice {
    let port = &service.ports[index];
    let target = match &port.target {
        TargetPort::Name(name) => name.as_str(),
        TargetPort::Number(_) => "",
    };
    let message = format!(
        "spec.ports[{index}].targetPort: {pods} of {of} pods have no container port named {target:?} with \
         protocol {}, so port {} does not lead to them. Name the port in those pods' containers, or give \
         targetPort as a number.",
        port.protocol, port.port
    );
    Notice::new(ObjectRef::service(&service.key), "PortNotFound", message)
}

/// The sets of ports that occur, in the order in which they were met.
struct PortGroups<'a> {
    list: Vec<PortGroup>,
    /// Semantics B3: the order of ports does not matter, so they are looked up sorted.
    by_sorted_ports: BTreeMap<Vec<SlicePort>, usize>,
    has_named_targets: bool,
    /// Pods of one workload come one after the other and share their list of ports: no need to look again.
    last: Option<(&'a Pod, usize)>,
}

struct PortGroup {
    ports: Arc<[SlicePort]>,
    pods: usize,
    /// The Service's ports that these pods do not have.
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

    /// The Service's ports that some pods do not have, with the number of those pods.
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
