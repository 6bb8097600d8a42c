//! A small cluster for tests: nodes, one Service, its endpoints, and the slices that were written for it.
//!
//! Packing is done in the simplest way that behaves like the real one: endpoints stay in their slice, and a slice whose
//! endpoints changed loses the hints that it had.

use std::collections::BTreeMap;

use model::{
    AddressType, Addresses, ClusterIps, Endpoint, EndpointConditions, EndpointIdentity, Family, Labels, Name,
    Node, ObjectKey, Service, ServiceKey, ServiceType, Slice, SliceContent, TargetRef, TrafficPolicy,
};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, HintInput, HintOutcome, Hysteresis, assign};
use plan::slices::Packing;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text)
}

pub(crate) fn node(node: &str, zone: &str, cpu_millis: u64) -> Node {
    let zone = Some(name(zone)).filter(|z| !z.is_empty());
    Node { zone, cpu_millis: Some(cpu_millis), ..Node::named(node) }
}

/// A ready endpoint: the number gives its address and its pod.
pub(crate) fn endpoint(number: usize, zone: &str) -> Endpoint {
    let address = std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).expect("a small number"));
    let pod = TargetRef { name: name(&format!("web-{number}")), uid: None };
    Endpoint {
        addresses: Addresses::one(address.into()),
        conditions: EndpointConditions::new(true, true, false),
        node: Some(name(&format!("{zone}-node-0"))),
        zone: Some(name(zone)).filter(|z| !z.is_empty()),
        hints: None,
        identity: EndpointIdentity::new(None, Some(pod)),
    }
}

pub(crate) fn service(annotations: &[(&str, &str)], traffic_distribution: Option<&str>) -> Service {
    Service {
        key: ServiceKey::new(&name("shop"), &name("web")),
        uid: None,
        labels: Labels::EMPTY,
        annotations: annotations.iter().copied().collect(),
        created: None,
        deleting: false,
        kind: ServiceType::ClusterIp,
        selector: None,
        ports: Box::default(),
        cluster_ips: ClusterIps::Unset,
        external_name: None,
        families: Box::default(),
        family_policy: None,
        external_ips: Box::default(),
        load_balancer: Box::default(),
        source_ranges: Box::default(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        publish_not_ready: false,
        health_check_node_port: None,
        traffic_distribution: traffic_distribution.map(Name::new),
        conditions: Labels::EMPTY,
    }
}

pub(crate) fn content(endpoints: Vec<Endpoint>) -> SliceContent {
    SliceContent {
        address_type: AddressType::Ip(Family::V4),
        labels: Labels::EMPTY,
        annotations: Labels::EMPTY,
        ports: [].into(),
        endpoints,
    }
}

pub(crate) fn slice(slice: &str, content: SliceContent) -> Slice {
    Slice { generation: 1, ..Slice::new(ObjectKey::new(&name("shop"), &name(slice)), content) }
}

/// The cluster. Change what you like, then `sync`.
pub(crate) struct World {
    pub(crate) nodes: BTreeMap<Name, Node>,
    pub(crate) service: Service,
    pub(crate) config: PlanningConfig,
    pub(crate) namespace_default: Option<Name>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) hysteresis: Hysteresis,
    pub(crate) slice_size: usize,
    made: usize,
}

impl World {
    /// `zones` gives the nodes of each, all of one size; nodes are called `<zone>-node-<i>`.
    pub(crate) fn new(zones: &[(&str, usize)], service: Service) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            service,
            config: PlanningConfig::without_flags(),
            namespace_default: None,
            endpoints: Vec::new(),
            slices: Vec::new(),
            hysteresis: Hysteresis::default(),
            slice_size: 100,
            made: 0,
        };
        for (zone, count) in zones {
            for i in 0..*count {
                world.add_node(node(&format!("{zone}-node-{i}"), zone, 4_000));
            }
        }
        world
    }

    pub(crate) fn add_node(&mut self, node: Node) {
        self.nodes.insert(node.name.clone(), node);
    }

    /// Puts all nodes of these zones into regions.
    pub(crate) fn set_regions(&mut self, regions: &[(&str, &str)]) {
        for node in self.nodes.values_mut() {
            let region = regions.iter().find(|(zone, _)| node.zone.as_ref().is_some_and(|z| z == zone));
            node.region = region.map(|(_, region)| name(region));
        }
    }

    /// `counts` ready endpoints in each zone, numbered on from those that were there.
    pub(crate) fn add_endpoints(&mut self, counts: &[(&str, usize)]) {
        for (zone, count) in counts {
            for _ in 0..*count {
                self.made += 1;
                self.endpoints.push(endpoint(self.made, zone));
            }
        }
    }

    /// Takes the last `count` endpoints of a zone away.
    pub(crate) fn remove_endpoints(&mut self, zone: &str, count: usize) {
        for _ in 0..count {
            let at = self.endpoints.iter().rposition(|e| e.zone.as_ref().is_some_and(|z| z == zone));
            let at = at.expect("an endpoint in that zone");
            self.endpoints.remove(at);
        }
    }

    pub(crate) fn topology(&self) -> ClusterTopology {
        ClusterTopology::from_nodes(&self.nodes)
    }

    /// Packs the endpoints into the stored slices.
    fn pack(&self) -> (Vec<(usize, SliceContent)>, Vec<SliceContent>) {
        let mut rest: Vec<&Endpoint> = self.endpoints.iter().collect();
        let mut updates: Vec<(usize, SliceContent)> = Vec::new();
        let mut room: Option<usize> = None;
        for (at, slice) in self.slices.iter().enumerate() {
            let mut changed = false;
            let mut kept = Vec::new();
            for old in &slice.content.endpoints {
                let Some(found) = rest.iter().position(|e| e.addresses == old.addresses) else {
                    changed = true;
                    continue;
                };
                let new = rest.remove(found);
                changed |= Endpoint { hints: None, ..old.clone() } != *new;
                kept.push(new.clone());
            }
            if changed {
                updates.push((at, SliceContent { endpoints: kept, ..slice.content.clone() }));
            } else if slice.content.endpoints.len() < self.slice_size {
                room.get_or_insert(at);
            }
        }
        for (_, content) in &mut updates {
            while content.endpoints.len() < self.slice_size && !rest.is_empty() {
                content.endpoints.push(rest.remove(0).clone());
            }
        }
        if let (false, Some(at)) = (rest.is_empty(), room) {
            let mut content = self.slices[at].content.clone();
            content.endpoints.iter_mut().for_each(|e| e.hints = None);
            while content.endpoints.len() < self.slice_size && !rest.is_empty() {
                content.endpoints.push(rest.remove(0).clone());
            }
            updates.push((at, content));
        }
        let creates = rest.chunks(self.slice_size).map(|c| content(c.iter().map(|e| (*e).clone()).collect()));
        let mut creates: Vec<SliceContent> = creates.collect();
        if self.slices.is_empty() && creates.is_empty() {
            creates.push(content(Vec::new()));
        }
        (updates, creates)
    }

    /// Plans and writes. Says what was decided and how many slices were written.
    pub(crate) fn sync_counting(&mut self) -> (HintOutcome, usize) {
        let topology = self.topology();
        let (updates, creates) = self.pack();
        let touched: Vec<usize> = updates.iter().map(|(at, _)| *at).collect();
        let mut packing = Packing {
            creates,
            updates: updates.into_iter().map(|(at, c)| (self.slices[at].key.name.clone(), c)).collect(),
            unchanged: self
                .slices
                .iter()
                .enumerate()
                .filter(|(i, _)| !touched.contains(i))
                .map(|(_, s)| s)
                .collect(),
            ..Packing::default()
        };
        let input = HintInput {
            service: &self.service,
            family: Family::V4,
            topology: &topology,
            namespace_default: self.namespace_default.as_ref(),
            config: &self.config,
            hysteresis: &self.hysteresis,
            with_notices: true,
        };
        let outcome = assign(&input, &mut packing);
        let (creates, updates) = (packing.creates, packing.updates);
        let written = creates.len() + updates.len();
        for (slice_name, content) in updates {
            let stored = self.slices.iter_mut().find(|s| s.key.name == slice_name).expect("a stored slice");
            stored.content = content;
        }
        for content in creates {
            self.slices.push(slice(&format!("web-{}", self.slices.len()), content));
        }
        self.hysteresis = outcome.hysteresis.clone();
        (outcome, written)
    }

    pub(crate) fn sync(&mut self) -> HintOutcome {
        self.sync_counting().0
    }

    /// The controller starts anew and has only the slices.
    pub(crate) fn restart(&mut self) {
        self.hysteresis = Hysteresis::from_slices(Family::V4, &self.slices);
    }

    pub(crate) fn stored(&self) -> impl Iterator<Item = &Endpoint> {
        self.slices.iter().flat_map(|s| &s.content.endpoints)
    }

    /// How many ready endpoints of each zone serve which zones, as `a>b 2`.
    pub(crate) fn hints(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for endpoint in self.stored().filter(|e| e.conditions.is_ready_for_hints()) {
            let zones: Vec<&str> = endpoint.zone_hints().iter().map(Name::as_str).collect();
            let own = endpoint.zone.as_deref().unwrap_or("?");
            let nodes = if endpoint.node_hints().is_empty() { "" } else { "+node" };
            *counts.entry(format!("{own}>{}{nodes}", zones.join("|"))).or_default() += 1;
        }
        counts.into_iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
    }

    /// The zones that each endpoint serves, by its address.
    pub(crate) fn hint_by_address(&self) -> BTreeMap<String, String> {
        let hints = |e: &Endpoint| format!("{:?}{:?}", e.zone_hints(), e.node_hints());
        self.stored().map(|e| (e.addresses.first().to_string(), hints(e))).collect()
    }
}

/// All Notices, one per line.
pub(crate) fn notices(outcome: &HintOutcome) -> String {
    outcome.notices.iter().map(|n| format!("{n}\n")).collect()
}
