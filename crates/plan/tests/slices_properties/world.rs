//! Random Services, pods and meddlers, and the stored slices that plans are applied to.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use model::{
    AddressType, Addresses, ClusterIps, ContainerPort, EndpointConditions, Family, Interner, Labels, Name,
    Node, Object, ObjectKey, Owner, Pod, Protocol, Service, ServicePort, Slice, SliceContent, TargetPort,
    Uid, annotation, parse,
};
use plan::slices::{self, Packing, SliceInput, SliceOptions, SlicePlan, TriggerTimes};
use proptest::prelude::*;
use serde_json::json;

/// Everything that a plan sees.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) pods: Vec<Pod>,
    pub(crate) nodes: BTreeMap<Name, Node>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) options: SliceOptions,
    trigger: TriggerTimes,
    made: usize,
}

/// What somebody else does to a stored slice.
#[derive(Clone, Debug)]
pub(crate) struct Meddling {
    what: What,
    slice: usize,
    endpoint: usize,
}

#[derive(Clone, Debug)]
enum What {
    DropLabels,
    AddLabel,
    DropEndpoint,
    DropAllEndpoints,
    CopyEndpointsToNext,
    DropConditions,
    ReverseEndpoints,
    ReversePorts,
    OtherWriter,
    OldOwner,
    NoOwner,
    Delete,
    BecomeFqdn,
}

impl World {
    pub(crate) fn new(service: Service, max_endpoints: usize) -> Self {
        let node = |(name, zone): (&str, &str)| {
            let value = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {annotation::ZONE: zone}}});
            match parse::object(&value, &mut Interner::default()) {
                (Some(Object::Node(node)), _) => (node.name.clone(), *node),
                other => panic!("no Node: {other:?}"),
            }
        };
        Self {
            service,
            pods: Vec::new(),
            nodes: [("n0", "za"), ("n1", "zb"), ("n2", "")].map(node).into(),
            slices: Vec::new(),
            options: SliceOptions::new(max_endpoints).expect("within 1 to 1000"),
            trigger: TriggerTimes::default(),
            made: 0,
        }
    }

    pub(crate) fn plan(&self, hints: impl FnMut(Family, &mut Packing<'_>)) -> SlicePlan {
        let pods: Vec<&Pod> = self.pods.iter().collect();
        let input = SliceInput {
            service: &self.service,
            pods: &pods,
            nodes: &self.nodes,
            slices: &self.slices,
            trigger: &self.trigger,
        };
        slices::plan(&input, &self.options, hints)
    }

    /// What the API would hold after the plan was carried out.
    pub(crate) fn apply(&mut self, plan: &SlicePlan) {
        self.slices.retain(|slice| !plan.deletes.contains(&slice.key));
        for (key, content) in &plan.updates {
            let stored = self.slices.iter_mut().find(|slice| slice.key == *key);
            stored.expect("only stored slices are updated").content = content.clone();
        }
        for content in &plan.creates {
            self.store(content.clone());
        }
        self.trigger = plan.trigger.clone();
    }

    fn store(&mut self, content: SliceContent) {
        self.made += 1;
        // Names that do not sort as they were made, as the API server's do not.
        let name = Name::new(&format!("web-{:04}", self.made * 7919 % 10_007));
        let (uid, slice) = (Some(Uid::new(&name)), Slice::owned_by(&self.service, &name, content));
        self.slices.push(Slice { uid, generation: 1, ..slice });
    }

    pub(crate) fn meddle(&mut self, meddling: &Meddling) {
        let count = self.slices.len();
        let next = (meddling.slice + 1) % count;
        let at = meddling.slice % count;
        let endpoints = self.slices[at].content.endpoints.clone();
        let same_type =
            self.slices[at].content.address_type == self.slices[next % count].content.address_type;
        let slice = &mut self.slices[at];
        let content = &mut slice.content;
        match meddling.what {
            What::DropLabels => content.labels = Labels::EMPTY,
            What::AddLabel => content.labels = [("added", "by hand")].into_iter().collect(),
            What::DropEndpoint if !endpoints.is_empty() => {
                content.endpoints.remove(meddling.endpoint % endpoints.len());
            }
            What::DropEndpoint | What::DropAllEndpoints => content.endpoints.clear(),
            What::CopyEndpointsToNext if same_type => self.slices[next].content.endpoints.extend(endpoints),
            What::CopyEndpointsToNext => {}
            What::DropConditions => {
                content.endpoints.iter_mut().for_each(|e| e.conditions = EndpointConditions::default());
            }
            What::ReverseEndpoints => content.endpoints.reverse(),
            What::ReversePorts => content.ports = content.ports.iter().rev().cloned().collect(),
            What::OtherWriter => {
                content.labels = [(annotation::MANAGED_BY, "somebody")].into_iter().collect()
            }
            What::OldOwner => slice.owners = [Owner { name: "web".into(), uid: Uid::new("old") }].into(),
            What::NoOwner => slice.owners = [].into(),
            What::Delete => slice.deleting = true,
            What::BecomeFqdn => {
                content.address_type = AddressType::Fqdn;
                content.endpoints.clear();
            }
        }
    }
}

/// Whether the planner answers for a slice.
pub(crate) fn is_ours(slice: &Slice, service: &Service) -> bool {
    let owned = slice.owners.iter().any(|owner| match &service.uid {
        Some(uid) => owner.uid == *uid,
        None => owner.name == service.key.name,
    });
    slice.managed_by().map_or(owned, |writer| writer == annotation::CONTROLLER_NAME)
}

fn port(name: &str, protocol: Protocol, target: TargetPort) -> ServicePort {
    ServicePort { name: name.into(), protocol, port: 80, target, node_port: None, app_protocol: None }
}

/// A Service and the limit of its slices.
pub(crate) fn any_service() -> impl Strategy<Value = (Service, usize)> {
    let families = prop::sample::select(vec![vec![], vec![Family::V4], vec![Family::V6, Family::V4]]);
    let ports = prop::sample::subsequence(
        vec![
            port("http", Protocol::Tcp, TargetPort::Name("web".into())),
            port("dns", Protocol::Udp, TargetPort::Number(53)),
            port("dns-tcp", Protocol::Tcp, TargetPort::Name("dns".into())),
        ],
        0..=3,
    );
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.9), any::<bool>());
    (families, ports, flags, 1..8usize).prop_map(|(families, ports, flags, max)| {
        let (publish_not_ready, headless, has_uid, labelled) = flags;
        let mut service = empty_service();
        service.families = families.into();
        service.ports = ports.into();
        service.publish_not_ready = publish_not_ready;
        if !headless {
            service.cluster_ips = ClusterIps::Addresses([IpAddr::from([10, 96, 0, 1])].into());
        }
        service.uid = has_uid.then(|| Uid::new("web-uid"));
        if labelled {
            service.labels = [("team", "blue"), (annotation::HEADLESS, "no")].into_iter().collect();
        }
        (service, max)
    })
}

fn empty_service() -> Service {
    let value = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}}});
    match parse::object(&value, &mut Interner::default()) {
        (Some(Object::Service(service)), _) => *service,
        other => panic!("no Service: {other:?}"),
    }
}

/// Up to 40 pods, by name.
pub(crate) fn any_pods() -> impl Strategy<Value = Vec<Pod>> {
    prop::collection::vec(any_pod(), 0..40).prop_map(|pods| {
        let by_key: BTreeMap<ObjectKey, Pod> = pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
        by_key.into_values().collect()
    })
}

pub(crate) fn any_pod() -> impl Strategy<Value = Pod> {
    let rarely = || prop::bool::weighted(0.1);
    let flags = (prop::bool::weighted(0.8), rarely(), rarely());
    let node = prop::option::weighted(0.95, prop::sample::select(vec!["n0", "n1", "n2", "gone"]));
    let addresses = (prop::bool::weighted(0.9), any::<bool>(), rarely(), 0..2u8);
    let ports = prop::sample::select(vec![vec![], vec![8080], vec![8080, 5353], vec![9090]]);
    (0..60u8, flags, node, addresses, ports, rarely()).prop_map(
        |(i, (ready, deleting, finished), node, addresses, ports, hostname)| {
            let name = Name::new(&format!("pod-{i:02}"));
            let ips = ips(i, addresses);
            let ports: Vec<ContainerPort> = ["web", "dns"]
                .into_iter()
                .zip(ports)
                .map(|(name, port)| ContainerPort { name: name.into(), protocol: Protocol::Tcp, port })
                .collect();
            Pod {
                key: ObjectKey { namespace: "shop".into(), name: name.clone() },
                uid: Some(Uid::new(&name)),
                labels: Labels::EMPTY,
                node: node.map(Name::new),
                has_ip: !ips.is_empty(),
                ips: Addresses::from_slice(&ips),
                details: Some(Arc::new(model::PodDetails {
                    ports: ports.into(),
                    hostname: hostname.then(|| name.clone()),
                    subdomain: hostname.then(|| "web".into()),
                    capacity: None,
                })),
                ready_since: None,
                ready,
                deleting,
                finished,
            }
        },
    )
}

/// IPv4, IPv6, both or none; sometimes two of one family; `life` is another address of the same pod.
fn ips(i: u8, (v4, v6, two, life): (bool, bool, bool, u8)) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    if v4 {
        ips.push(Ipv4Addr::new(10, 0, life, i).into());
    }
    if v6 {
        ips.push(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, life.into(), i.into()).into());
    }
    if v4 && two {
        ips.push(Ipv4Addr::new(10, 1, life, i).into());
    }
    ips
}

/// A few changes by others.
pub(crate) fn any_meddling() -> impl Strategy<Value = Vec<Meddling>> {
    let what = prop::sample::select(vec![
        What::DropLabels,
        What::AddLabel,
        What::DropEndpoint,
        What::DropAllEndpoints,
        What::CopyEndpointsToNext,
        What::DropConditions,
        What::ReverseEndpoints,
        What::ReversePorts,
        What::OtherWriter,
        What::OldOwner,
        What::NoOwner,
        What::Delete,
        What::BecomeFqdn,
    ]);
    let one = (what, 0..20usize, 0..8usize);
    let one = one.prop_map(|(what, slice, endpoint)| Meddling { what, slice, endpoint });
    prop::collection::vec(one, 0..6)
}
