//! From what was heard to what is reported.

use std::time::SystemTime;

use clock::ManualTime;
use fixtures::object;
use model::Object;
use plan::forward::{ProxySettings, table};
use serde_json::json;

use super::conntrack_events::{Growth, Sums};
use super::*;

struct World {
    snapshot: Snapshot,
    table: ForwardingTable,
    node: NodeConfig,
    heard: Arc<Mutex<TrafficCounts>>,
    traffic: TrafficCounters,
    metrics: NodeMetrics,
    zones: watch::Sender<ZoneLookup>,
    published: watch::Receiver<NodeTraffic>,
    time: ManualTime,
}

/// Node n1 of zone za, and a Service with a pod here, one in this zone, one in another, one nowhere.
fn world() -> World {
    let mut snapshot = Snapshot::default();
    let pod = |last: u8, node: &str, zone: Option<&str>| json!({"addresses": [format!("10.1.0.{last}")], "nodeName": node, "zone": zone});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "za"}},
            "spec": {"podCIDR": "10.1.0.0/25", "podCIDRs": ["10.1.0.0/25"]},
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
        snapshot.apply(object(&value));
    }
    let node = snapshot.node("n1").unwrap().clone();
    let node = NodeConfig::new(&ProxySettings::without_flags(), &node, &[], &[]).0;
    let table = table(&snapshot, &node).0;
    let heard: Arc<Mutex<TrafficCounts>> = Arc::default();
    let (zones, looked_up) = watch::channel(ZoneLookup::default());
    let (sums, published) = watch::channel(NodeTraffic::default());
    let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH);
    let traffic = TrafficCounters::new(Some(heard.clone()), time.clock().now(), looked_up, sums);
    let metrics = NodeMetrics::default();
    World { snapshot, table, node, heard, traffic, metrics, zones, published, time }
}

fn pair(frontend: &str, endpoint: &str) -> FlowPair {
    let (frontend, endpoint) = (frontend.parse().unwrap(), endpoint.parse().unwrap());
    FlowPair { protocol: model::Protocol::Tcp, frontend, endpoint }
}

impl World {
    fn count(&mut self) {
        self.count_while(true);
    }

    fn count_while(&mut self, is_programmed: bool) {
        let known = Known { snapshot: &self.snapshot, table: &self.table, node: &self.node, is_programmed };
        self.traffic.count(&known, &self.metrics, self.time.clock().now());
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

/// After a sync whose reply was lost, the kernel forwards for a Service that the table does not have yet.
#[test]
fn counts_wait_for_their_service_until_rules_are_programmed() {
    let mut world = world();
    let table = std::mem::replace(&mut world.table, ForwardingTable::new(world.node.rules.clone()));
    let at = pair("10.96.0.7:80", "10.1.0.2:8080");
    let hear = |world: &World| {
        let foreign = pair("10.96.0.99:80", "10.1.0.3:1");
        world.heard.lock().unwrap().connections = Sums::from([(at, 7), (foreign, 1)]);
        world.heard.lock().unwrap().bytes = Sums::from([(at, 700)]);
    };
    hear(&world);
    world.count_while(false);
    world.count_while(false);
    assert_eq!(world.value("zoneward_service_connections_total", "same-zone"), None);
    let without = std::mem::replace(&mut world.table, table);
    world.count();
    assert_eq!(world.value("zoneward_service_connections_total", "same-zone"), Some(7));
    assert_eq!(world.value("zoneward_service_bytes_total", "same-zone"), Some(700));
    assert!(world.traffic.unresolved.is_empty(), "another program's rules do not wait any more");
    world.table = without;
    hear(&world);
    world.count();
    assert!(world.traffic.unresolved.is_empty(), "the Service was deleted");
}

#[test]
fn bytes_are_reported_and_published_with_the_connections() {
    let mut world = world();
    let at = pair("10.96.0.7:80", "10.1.0.3:8080");
    for _ in 0..2 {
        world.heard.lock().unwrap().bytes = Sums::from([(at, 1000)]);
        world.heard.lock().unwrap().connections = Sums::from([(at, 1)]);
        world.count();
    }
    assert_eq!(world.value("zoneward_service_bytes_total", "cross-zone"), Some(2000));
    let sums = world.published.borrow().clone();
    let owner = TrafficOwner::Service { namespace: "ns".to_owned(), name: "web".to_owned() };
    let zone_pairs = vec![ZonePairTraffic {
        from_zone: "za".to_owned(),
        to_zone: "zb".to_owned(),
        connections: 2,
        bytes: 2000,
    }];
    assert_eq!(sums.rows, [TrafficRow { owner, zone_pairs }]);
}

/// The slice without the endpoint that ends in 3.
fn without_third(world: &World) -> Slice {
    let key = world.snapshot.slice_keys().next().unwrap().clone();
    let mut slice = world.snapshot.slice(&key).unwrap().clone();
    slice.content.endpoints.retain(|e| e.addresses.first() != IpAddr::from([10, 1, 0, 3]));
    slice
}

#[test]
fn an_endpoint_that_has_gone_keeps_its_zone_for_a_minute() {
    let mut world = world();
    let (slice, now) = (without_third(&world), world.time.clock().now());
    let (service, old) = (slice.service().unwrap(), world.snapshot.slice(&slice.key).unwrap().clone());
    world.traffic.slice_changes(&service, &old, Some(&slice), now);
    world.snapshot.apply(Object::Slice(Box::new(slice)));
    for (seconds, known, unknown) in [(59, 10, None), (2, 10, Some(10))] {
        world.time.advance(Duration::from_secs(seconds));
        world.heard.lock().unwrap().bytes = Sums::from([(pair("10.96.0.7:80", "10.1.0.3:8080"), 10)]);
        world.count();
        assert_eq!(world.value("zoneward_service_bytes_total", "cross-zone"), Some(known));
        assert_eq!(world.value("zoneward_service_bytes_total", "unknown"), unknown);
    }
}

/// Conflict 3 of subsetting: connections to endpoints that the node does not see any more, or never saw.
#[test]
fn an_endpoint_out_of_view_keeps_its_zone() {
    let mut world = world();
    let now = world.time.clock().now();
    let key = world.snapshot.slice_keys().next().unwrap().clone();
    let slice = world.snapshot.slice(&key).unwrap().clone();
    world.traffic.slice_leaves(&slice.service().unwrap(), &slice, now);
    world.snapshot.remove_slice(&key);
    let count = |world: &mut World, seconds, endpoint: &str| {
        world.time.advance(Duration::from_secs(seconds));
        world.heard.lock().unwrap().bytes = Sums::from([(pair("10.96.0.7:80", endpoint), 10)]);
        world.count();
        let value = |locality| world.value("zoneward_service_bytes_total", locality);
        (value("cross-zone"), value("unknown"))
    };
    assert_eq!(count(&mut world, 1800, "10.1.0.3:8080"), (Some(10), None), "after half an hour");
    assert_eq!(count(&mut world, 1, "10.1.1.9:8080"), (Some(10), Some(10)), "never seen");
    let cidrs_by_zone = [("zb".to_owned(), vec!["10.1.1.0/24".parse().unwrap()])].into();
    let zones = PodZones { version: 1, cidrs_by_zone, ..PodZones::default() };
    world.zones.send_replace(zones.into());
    assert_eq!(count(&mut world, 1, "10.1.1.9:8080"), (Some(20), Some(10)), "the controller knows it");
}

#[test]
fn connections_from_pod_to_pod_are_one_row_at_the_node_of_the_client() {
    let mut world = world();
    let cidrs = [("za", vec!["10.1.0.0/25"]), ("zb", vec!["10.1.1.0/24"])];
    let cidrs_by_zone = cidrs.map(|(zone, cidrs)| {
        (zone.to_owned(), cidrs.into_iter().map(|cidr| cidr.parse().unwrap()).collect())
    });
    let proxies = [IpAddr::from([10, 1, 0, 77])].into();
    world.zones.send_replace(PodZones { version: 1, cidrs_by_zone: cidrs_by_zone.into(), proxies }.into());
    let direct = |src: &str, dst: &str| DirectPair { src: src.parse().unwrap(), dst: dst.parse().unwrap() };
    let grown = |bytes| Growth { connections: 1, bytes };
    world.heard.lock().unwrap().direct = BTreeMap::from([
        (direct("10.1.0.5", "10.1.1.9"), grown(100)),
        (direct("192.0.2.1", "10.1.1.9"), grown(10)),
        (direct("10.1.0.5", "10.1.0.6"), grown(1_000)),
        // From another node, to an address that is no pod's, and of a proxy that counts itself.
        (direct("10.1.1.9", "10.1.0.5"), grown(7)),
        (direct("10.1.0.5", "198.51.100.7"), grown(7)),
        (direct("10.1.0.77", "10.1.1.9"), grown(7)),
    ]);
    world.count();
    assert_eq!(world.value("zoneward_direct_bytes_total", "cross-zone"), Some(110));
    assert_eq!(world.value("zoneward_direct_connections_total", "cross-zone"), Some(2));
    assert_eq!(world.value("zoneward_direct_bytes_total", "same-node"), Some(1_000));
    assert_eq!(world.published.borrow().rows[0].owner, TrafficOwner::NotThroughService);
}

#[test]
fn what_is_not_counted_is_reported() {
    let mut world = world();
    let counts =
        TrafficCounts { lost_events: 2, dropped: 3, unaccounted: Some(5), ..TrafficCounts::default() };
    *world.heard.lock().unwrap() = counts;
    world.count();
    let text = world.metrics.text();
    for line in [
        "zoneward_traffic_lost_events_total 2",
        "zoneward_traffic_dropped_counts_total 3",
        "zoneward_traffic_unaccounted_flows 5",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let gaps = TrafficGaps { lost_events: 2, dropped_counts: 3, unaccounted_flows: 5 };
    assert_eq!(world.published.borrow().gaps, gaps);
}

#[test]
fn services_beyond_the_bound_of_a_report_share_a_row() {
    let mut world = world();
    for i in 0..MAX_REPORT_PAIRS + 10 {
        let service = ServiceKey::new(&"ns".into(), &format!("s{i}").as_str().into());
        let (from_zone, to_zone) = ("za".to_owned(), "zb".to_owned());
        let route = Route { service: Some(service), from_zone, to_zone, locality: Locality::CrossZone };
        world.traffic.add(route, RouteTotals { connections: 1, bytes: 1 }, &world.metrics);
    }
    assert!(world.traffic.reported.len() <= MAX_REPORT_PAIRS / 2 + 1);
    assert_eq!(world.traffic.reported.values().map(|t| t.bytes).sum::<u64>(), MAX_REPORT_PAIRS as u64 + 10);
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
