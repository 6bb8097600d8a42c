//! From what was heard to what is reported.

use model::{Interner, parse};
use plan::forward::{ProxySettings, table};
use serde_json::json;

use super::*;

struct World {
    snapshot: Snapshot,
    table: ForwardingTable,
    node: NodeConfig,
    heard: Arc<Mutex<TrafficCounts>>,
    traffic: TrafficCounters,
    metrics: NodeMetrics,
}

/// Node n1 of zone za, and a Service with a pod here, one in this zone, one in another, one nowhere.
fn world() -> World {
    let mut snapshot = Snapshot::default();
    let pod = |last: u8, node: &str, zone: Option<&str>| json!({"addresses": [format!("10.1.0.{last}")], "nodeName": node, "zone": zone});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "za"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "web"},
            "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.7"],
                "ports": [{"name": "p", "port": 80, "nodePort": 30080}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "ns", "name": "web", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}],
            "endpoints": [pod(1, "n1", Some("za")), pod(2, "n2", Some("za")), pod(3, "n3", Some("zb")), pod(4, "n4", None)]}),
    ];
    for value in objects {
        snapshot.apply(parse::object(&value, &mut Interner::default()).0.unwrap());
    }
    let node = snapshot.node("n1").unwrap().clone();
    let node = NodeConfig::new(&ProxySettings::default(), &node, &[], &[]).0;
    let table = table(&snapshot, &node).0;
    let heard: Arc<Mutex<TrafficCounts>> = Arc::default();
    let traffic = TrafficCounters::new(Some(heard.clone()), Clock::system().now());
    World { snapshot, table, node, heard, traffic, metrics: NodeMetrics::default() }
}

fn pair(frontend: &str, endpoint: &str) -> FlowPair {
    let (frontend, endpoint) = (frontend.parse().unwrap(), endpoint.parse().unwrap());
    FlowPair { protocol: model::Protocol::Tcp, frontend, endpoint }
}

impl World {
    fn count(&mut self) {
        let known = Known { snapshot: &self.snapshot, table: &self.table, node: &self.node };
        self.traffic.count(&known, &self.metrics, Clock::system().now());
    }

    fn value(&self, name: &str, locality: &str) -> Option<u64> {
        let text = self.metrics.text();
        let line = text.lines().find(|line| {
            line.starts_with(name)
                && line.contains(&format!("locality=\"{locality}\""))
                && !line.contains(" 0")
        })?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

#[test]
fn connections_are_reported_by_how_far_they_went() {
    let mut world = world();
    let sums = Sums::from([
        (pair("10.96.0.7:80", "10.1.0.1:8080"), 3),
        (pair("192.0.2.1:30080", "10.1.0.1:8080"), 2),
        (pair("10.96.0.7:80", "10.1.0.2:8080"), 7),
        (pair("10.96.0.7:80", "10.1.0.3:8080"), 11),
        (pair("10.96.0.7:80", "10.1.0.4:8080"), 13),
        // Somebody else's translation, and a node port on an address of another node.
        (pair("10.96.0.99:80", "10.1.0.3:8080"), 100),
        (pair("192.0.2.9:30080", "10.1.0.3:8080"), 100),
    ]);
    for times in 1..=2 {
        world.heard.lock().unwrap().connections = sums.clone();
        world.count();
        for (locality, count) in [("same-node", 5), ("same-zone", 7), ("cross-zone", 11), ("unknown", 13)] {
            assert_eq!(world.value("zoneward_service_connections_total", locality), Some(count * times));
        }
    }
}

#[test]
fn bytes_of_a_connection_that_ends_are_reported_once() {
    let mut world = world();
    let at = pair("10.96.0.7:80", "10.1.0.3:8080");
    let bytes = |world: &World| world.value("zoneward_service_bytes_total", "cross-zone");
    world.heard.lock().unwrap().open = Some(Sums::from([(at, 1000)]));
    world.count();
    assert_eq!(bytes(&world), Some(1000));
    // It ends with 1,200 before the open ones are asked again; then they are, and it is not among them.
    world.heard.lock().unwrap().ended = Sums::from([(at, 1200)]);
    world.count();
    world.heard.lock().unwrap().open = Some(Sums::from([(at, 50)]));
    world.count();
    let reported = bytes(&world).unwrap();
    assert!((1250..=2200).contains(&reported), "{reported}");
    // From here on the sum is right again as soon as it has caught up.
    world.heard.lock().unwrap().open = Some(Sums::from([(at, 2000)]));
    world.count();
    assert_eq!(bytes(&world), Some(3200));
}

#[test]
fn service_that_is_gone_takes_its_counts_with_it() {
    let mut world = world();
    world.heard.lock().unwrap().connections = Sums::from([(pair("10.96.0.7:80", "10.1.0.2:8080"), 7)]);
    world.count();
    assert_eq!(world.value("zoneward_service_connections_total", "same-zone"), Some(7));
    world.snapshot = Snapshot::default();
    world.count();
    assert_eq!(world.value("zoneward_service_connections_total", "same-zone"), None);
}
