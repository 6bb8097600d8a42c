//! A cluster that changes at random: the Services of the random clusters, and crowds with what these leave out:
//! hundreds of endpoints, weights, node ports of their own.

use std::collections::BTreeMap;

use model::Snapshot;
use plan::forward::NodeConfig;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use super::world::{self, World};

/// Chance, the same for the same seed.
pub(crate) struct Dice(TestRunner);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Dice(TestRunner::new_with_rng(Config::default(), rng))
    }

    /// One of what a strategy makes.
    pub(crate) fn one<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy.new_tree(&mut self.0).unwrap().current()
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.one(0..end)
    }
}

/// What changed.
pub(crate) enum Event {
    /// The Service of this name, or its slices.
    Service(String),
    /// The settings of the node.
    Settings,
}

/// A cluster as one node sees it.
pub(crate) struct Cluster {
    settings: World,
    objects_by_service: BTreeMap<String, Vec<Value>>,
}

impl Cluster {
    pub(crate) fn new(dice: &mut Dice) -> Cluster {
        let settings = dice.one(world::world());
        let mut cluster = Cluster { settings, objects_by_service: BTreeMap::new() };
        for spec in &cluster.settings.services {
            cluster.objects_by_service.insert(spec.name(), spec.objects());
        }
        cluster.put_crowd(dice);
        cluster
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        fixtures::snapshot(self.objects_by_service.values().flatten())
    }

    pub(crate) fn config(&self) -> NodeConfig {
        NodeConfig { zone: Some("a".into()), ..self.settings.config() }
    }

    /// A Service comes, changes or goes; rarely the node changes.
    pub(crate) fn change(&mut self, dice: &mut Dice) -> Event {
        match dice.below(10) {
            0 => {
                self.settings = dice.one(world::world());
                Event::Settings
            }
            1 if !self.objects_by_service.is_empty() => {
                let at = dice.below(self.objects_by_service.len());
                let name = self.objects_by_service.keys().nth(at).expect("there are so many").clone();
                self.objects_by_service.remove(&name);
                Event::Service(name)
            }
            2..=6 => Event::Service(self.put_crowd(dice)),
            _ => {
                let spec = dice.one(world::spec());
                self.objects_by_service.insert(spec.name(), spec.objects());
                Event::Service(spec.name())
            }
        }
    }

    fn put_crowd(&mut self, dice: &mut Dice) -> String {
        let crowd = dice.one(crowd());
        let name = format!("crowd{}", crowd.number);
        self.objects_by_service.insert(name.clone(), crowd.objects(&name));
        name
    }
}

/// A Service with many endpoints.
#[derive(Debug, Clone)]
struct Crowd {
    number: u8,
    endpoints: u16,
    is_weighted: bool,
    affinity: Option<u32>,
    has_node_port: bool,
}

fn crowd() -> impl Strategy<Value = Crowd> {
    // One more or less leads to the next class; 255 and 256 slots with affinity are told differently; four crowds
    // of hundreds do not fit into the smallest sets.
    let counts = prop_oneof![3 => 0u16..6, 2 => 253u16..259, 3 => 400u16..450];
    let affinity = prop_oneof![3 => Just(None), 1 => Just(Some(10_800)), 1 => Just(Some(90))];
    (1u8..6, counts, any::<bool>(), affinity, any::<bool>()).prop_map(
        |(number, endpoints, is_weighted, affinity, has_node_port)| Crowd {
            number,
            endpoints,
            // A whole cluster has to fit into one transaction of a user namespace (a stranger may take all of it
            // away): each of hundreds once in each family, and not four times for a weight.
            is_weighted: is_weighted && endpoints < 64,
            affinity: affinity.filter(|_| endpoints < 300),
            has_node_port: has_node_port && endpoints < 64,
        },
    )
}

impl Crowd {
    fn objects(&self, name: &str) -> Vec<Value> {
        let ips = [format!("10.96.0.{}", 100 + self.number), format!("fd00:96::{}", 100 + self.number)];
        let node_port = self.has_node_port.then_some(30_100 + u16::from(self.number));
        let asked =
            if self.is_weighted { json!({"zoneward.dev/traffic-distribution": "Spill"}) } else { json!({}) };
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "ns", "annotations": asked},
            "spec": {
                "type": if self.has_node_port { "NodePort" } else { "ClusterIP" },
                "clusterIP": ips[0], "clusterIPs": ips,
                "ports": [{"port": 80, "nodePort": node_port}],
                "sessionAffinity": if self.affinity.is_some() { "ClientIP" } else { "None" },
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": self.affinity.unwrap_or(1)}},
            },
        });
        vec![service, self.slice(name, false), self.slice(name, true)]
    }

    fn slice(&self, name: &str, v6: bool) -> Value {
        let address = |i: u16| match v6 {
            true => format!("fd00:2::{i:x}"),
            false => format!("10.2.{}.{}", i / 250, i % 250),
        };
        let endpoint =
            |i: u16| json!({"addresses": [address(i)], "zone": if i.is_multiple_of(3) { "a" } else { "b" }});
        let family = if v6 { "IPv6" } else { "IPv4" };
        // Most of the demand and a third of the endpoints are in zone a, so that it spills.
        let spill = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=200,b=56"});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": format!("{name}-{}", family.to_lowercase()), "namespace": "ns",
                "labels": {"kubernetes.io/service-name": name},
                "annotations": if self.is_weighted { spill } else { json!({}) },
            },
            "ports": [{"name": "", "port": 8080}],
            "endpoints": (0..self.endpoints).map(endpoint).collect::<Vec<_>>(),
        })
    }
}
