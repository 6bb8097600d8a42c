//! A Service with pods in zones, and the stored slices to which plans are applied write by write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use model::{
    Addresses, Interner, Labels, Name, Node, Object, ObjectKey, Pod, Service, Slice, SliceContent, Uid, parse,
};
use plan::PlanningConfig;
use plan::drain::ZoneDrains;
use plan::feature_gates::FeatureGates;
use plan::forward::NodeConfig;
use plan::hints::{ClusterTopology, HintOutcome, Hysteresis};
use plan::planner::{Planner, ServiceInput};
use plan::select::NodeView;
use plan::slices::{SliceInput, SliceOptions, SlicePlan, TriggerTimes};
use plan::subsetting::{SliceView, SubsetOptions};
use proptest::prelude::*;
use serde_json::json;

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Unready(String),
    Ready(String),
    Remove(String),
    Add(&'static str),
    LoseZone(&'static str),
    /// The pod of this number.
    Toggle(usize),
    RemoveAt(usize),
}

pub(crate) fn any_changes() -> impl Strategy<Value = Vec<Change>> {
    let zone = || prop::sample::select(vec!["za", "zb", "zc"]);
    let one = prop_oneof![
        6 => (0..60usize).prop_map(Change::Toggle),
        3 => (0..60usize).prop_map(Change::RemoveAt),
        4 => zone().prop_map(Change::Add),
        1 => zone().prop_map(Change::LoseZone),
    ];
    prop::collection::vec(one, 0..10)
}

/// A Service with this mechanism.
pub(crate) fn service(mechanism: &str) -> Service {
    let (distribution, annotations) = match mechanism {
        "PreferSameZone" | "PreferSameNode" => (json!(mechanism), json!({})),
        "Spill" => (json!(null), json!({"zoneward.dev/traffic-distribution": "Spill"})),
        "Prefer" | "Require" => (json!(null), json!({"endpointslice.kubernetes.io/same-zone": mechanism})),
        "RequireNode" => (json!(null), json!({"endpointslice.kubernetes.io/same-node": "Require"})),
        "PreferNodeRequireZone" => (
            json!(null),
            json!({"endpointslice.kubernetes.io/same-node": "Prefer", "endpointslice.kubernetes.io/same-zone": "Require"}),
        ),
        _ => (json!(null), json!({})),
    };
    let value = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "trafficDistribution": distribution,
            "ports": [{"name": "p", "port": 80, "targetPort": 8080}]}});
    match parse::object(&value, &mut Interner::default()) {
        (Some(Object::Service(service)), _) => *service,
        other => panic!("no Service: {other:?}"),
    }
}

pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) options: SliceOptions,
    pub(crate) slices: Vec<Slice>,
    pub(crate) drains: Option<ZoneDrains>,
    nodes: BTreeMap<Name, Node>,
    pods: BTreeMap<String, Pod>,
    now: Duration,
    switched: Option<Duration>,
    made: usize,
    born: u32,
}

impl World {
    /// Two nodes and as many pods as given in each zone; slices by zone from 12 ready endpoints on.
    pub(crate) fn new(service: Service, zones: &[(&'static str, usize)]) -> Self {
        let options =
            SliceOptions { subset: Some(SubsetOptions { from: 12 }), ..SliceOptions::WITHOUT_FLAGS };
        let mut world = Self {
            service,
            options,
            slices: Vec::new(),
            drains: None,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            now: Duration::ZERO,
            switched: None,
            made: 0,
            born: 0,
        };
        for (zone, pods) in zones {
            world.add_zone(zone);
            (0..*pods).for_each(|_| world.change(&Change::Add(zone)));
        }
        world
    }

    pub(crate) fn add_zone(&mut self, zone: &str) {
        for number in 0..2 {
            let name = Name::new(&format!("{zone}-{number}"));
            let mut node = Node::named(name.clone());
            (node.zone, node.cpu_millis) = (Some(zone.into()), Some(4_000));
            self.nodes.insert(name, node);
        }
    }

    pub(crate) fn change(&mut self, change: &Change) {
        let name_at = |at: &usize| self.pods.keys().nth(at % self.pods.len().max(1)).cloned();
        match change {
            Change::Unready(pod) => self.pods.get_mut(pod).unwrap().ready = false,
            Change::Ready(pod) => self.pods.get_mut(pod).unwrap().ready = true,
            Change::Remove(pod) => drop(self.pods.remove(pod)),
            Change::Toggle(at) => {
                if let Some(name) = name_at(at) {
                    let pod = self.pods.get_mut(&name).unwrap();
                    pod.ready = !pod.ready;
                }
            }
            Change::RemoveAt(at) => drop(name_at(at).map(|name| self.pods.remove(&name))),
            Change::LoseZone(zone) => {
                let lost = self.pods.values_mut().filter(|pod| pod.node.as_ref().unwrap().starts_with(zone));
                lost.for_each(|pod| pod.ready = false);
            }
            Change::Add(zone) => {
                self.born += 1;
                let name = format!("{zone}-{:04}", self.born);
                let pod = Pod {
                    key: ObjectKey { namespace: "shop".into(), name: Name::new(&name) },
                    uid: Some(Uid::new(&name)),
                    labels: Labels::EMPTY,
                    node: Some(Name::new(&format!("{zone}-{}", self.born % 2))),
                    has_ip: true,
                    ips: Addresses::from_slice(&[IpAddr::from(Ipv4Addr::from(0x0a00_0000 + self.born))]),
                    details: None,
                    ready_since: None,
                    ready: true,
                    deleting: false,
                    finished: false,
                };
                self.pods.insert(name, pod);
            }
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn pods_in(&self, zone: &str) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str).filter(move |name| name.starts_with(zone))
    }

    /// The addresses of all pods whose node exists, sorted.
    pub(crate) fn pods(&self) -> Vec<IpAddr> {
        let has_node = |pod: &&Pod| pod.node.as_ref().is_some_and(|node| self.nodes.contains_key(node));
        let pods = self.pods.values().filter(has_node);
        let mut all: Vec<IpAddr> = pods.filter_map(|pod| Some(pod.ips.as_ref()?.first())).collect();
        all.sort();
        all
    }

    /// The addresses of all slices, sorted.
    pub(crate) fn stored(&self) -> Vec<IpAddr> {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.content.endpoints);
        let mut all: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.addresses.first()).collect();
        all.sort();
        all
    }

    pub(crate) fn ready_in(&self, zone: &str) -> usize {
        self.pods_in(zone).filter(|name| self.pods[*name].ready).count()
    }

    pub(crate) fn plan(&self) -> (SlicePlan, Vec<HintOutcome>) {
        let pods: Vec<&Pod> = self.pods.values().collect();
        let planner = Planner {
            topology: ClusterTopology::from_nodes(&self.nodes),
            config: PlanningConfig { slices: self.options, ..PlanningConfig::without_flags() },
            drains: self.drains.clone(),
        };
        let trigger = TriggerTimes::default();
        let (service, nodes, slices) = (&self.service, &self.nodes, self.slices.as_slice());
        let input = ServiceInput {
            slices: SliceInput { service, pods: &pods, nodes, slices, trigger: &trigger },
            namespace_default: None,
            since_switch: self.switched.map(|at| self.now - at),
        };
        planner.plan_service(&input, |family| Hysteresis::from_slices(family, slices))
    }

    pub(crate) fn sync(&mut self) {
        self.sync_with(|_| {});
    }

    /// Plans, and calls `check` after each write with the endpoints that were and are in the slices of their zone's view
    /// and are not now.
    pub(crate) fn sync_with(&mut self, check: impl Fn(Vec<String>)) {
        let (plan, _) = self.plan();
        let before = self.seen_at_home();
        let mut after = World { slices: self.slices.clone(), ..World::new(self.service.clone(), &[]) };
        plan.creates.iter().for_each(|content| after.create(content));
        plan.updates.iter().for_each(|(key, content)| after.update(key, content));
        after.slices.retain(|slice| !plan.deletes.contains(&slice.key));
        let stays: BTreeSet<String> = before.intersection(&after.seen_at_home()).cloned().collect();
        let lost = |world: &Self| stays.difference(&world.seen_at_home()).cloned().collect();
        for content in &plan.creates {
            self.create(content);
            check(lost(self));
        }
        for (key, content) in &plan.updates {
            self.update(key, content);
            check(lost(self));
        }
        for key in &plan.deletes {
            self.slices.retain(|slice| slice.key != *key);
            check(lost(self));
        }
        if plan.subset.switched {
            self.switched = Some(self.now);
        }
    }

    fn create(&mut self, content: &SliceContent) {
        self.made += 1;
        let name = format!("web-{:05}", (self.slices.len() * 31 + self.made * 7919) % 100_003);
        self.slices.push(Slice::owned_by(&self.service, &name, content.clone()));
    }

    fn update(&mut self, key: &ObjectKey, content: &SliceContent) {
        self.slices.iter_mut().find(|slice| slice.key == *key).unwrap().content = content.clone();
    }

    /// Addresses of endpoints in slices that nodes of their zone receive.
    fn seen_at_home(&self) -> BTreeSet<String> {
        let mut addresses = BTreeSet::new();
        for slice in &self.slices {
            let seen = |zone: &Name| SliceView::Zone(zone.clone()).sees(&slice.content);
            let own = slice.content.endpoints.iter().filter(|e| e.zone.as_ref().is_none_or(seen));
            addresses.extend(own.map(|e| e.addresses.first().to_string()));
        }
        addresses
    }

    pub(crate) fn is_subset(&self) -> bool {
        self.slices.iter().any(|slice| slice.for_zone().is_some())
    }

    /// The ready endpoints of a zone in the reserve.
    pub(crate) fn reserve(&self, zone: &str) -> Vec<String> {
        let reserve = self.slices.iter().filter(|slice| slice.for_zone().is_none());
        let endpoints = reserve.flat_map(|slice| &slice.content.endpoints);
        let ready = endpoints.filter(|e| e.zone.as_deref() == Some(zone) && e.conditions.ready == Some(true));
        ready.map(|e| e.addresses.first().to_string()).collect()
    }

    pub(crate) fn node<'a>(&self, zone: &'a str) -> NodeView<'a> {
        let name = match zone {
            "za" => "za-0",
            "zb" => "zb-0",
            "zc" => "zc-0",
            other => other,
        };
        NodeView { name, zone: Some(zone), gates: FeatureGates::ALL }
    }

    pub(crate) fn node_config(&self, zone: &str) -> NodeConfig {
        let name: Name = self.node(zone).name.into();
        NodeConfig { zone: Some(zone.into()), ..NodeConfig::without_flags(name) }
    }
}
