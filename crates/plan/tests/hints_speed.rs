//! What hints cost: 10,000 Services with 10 endpoints each, under the main mechanisms; a tenth of them in a build that
//! is not optimised. Figures print with `--no-capture`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use model::{
    AddressType, Addresses, ClusterIps, Conditions, Endpoint, Family, Interner, Labels, Name, Node,
    ObjectKey, Service, ServiceKey, ServiceType, Slice, SliceContent, TrafficPolicy, annotation,
};
use plan::hints::{ClusterFacts, Config, HintInput, Mechanism, Memory, assign};
use plan::slices::Packing;

const SERVICES: usize = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
const ENDPOINTS: usize = 10;
const NODES: usize = 1_000;
const ZONES: usize = 3;
const MECHANISMS: [Mechanism; 8] = [
    Mechanism::None,
    Mechanism::Auto,
    Mechanism::PreferSameZone,
    Mechanism::PreferSameNode,
    Mechanism::RequireZone,
    Mechanism::PreferZone,
    Mechanism::PreferRegion,
    Mechanism::Spill,
];

/// Far above what an unoptimised build on a busy machine needs, far below what a slip into quadratic work would.
const PER_SERVICE: Duration = Duration::from_micros(500);

fn nodes(interner: &mut Interner) -> BTreeMap<Name, Node> {
    let node = |i: usize| Node {
        name: interner.name(&format!("node-{i}")),
        zone: Some(interner.name(&format!("zone-{}", i % ZONES))),
        region: None,
        ready: true,
        control_plane: false,
        cpu_millis: Some(4_000),
        deleting: false,
        to_be_deleted: false,
        addresses: Box::default(),
        pod_cidrs: Box::default(),
    };
    (0..NODES).map(node).map(|n| (n.name.clone(), n)).collect()
}

fn service(number: usize, mechanism: Mechanism) -> Service {
    let annotations = match mechanism {
        Mechanism::None => Labels::EMPTY,
        named => [
            (annotation::TRAFFIC_DISTRIBUTION, named.as_str()),
            // Ten endpoints are too few for Prefer to start otherwise.
            (annotation::SAME_ZONE_STARTING_THRESHOLD, "3"),
        ]
        .into_iter()
        .collect(),
    };
    Service {
        key: ServiceKey::new(&Name::new("default"), &Name::new(&format!("service-{number}"))),
        uid: None,
        labels: Labels::EMPTY,
        annotations,
        created: None,
        deleting: false,
        kind: ServiceType::ClusterIp,
        selector: None,
        ports: Box::default(),
        cluster_ips: ClusterIps::Unset,
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
        traffic_distribution: None,
    }
}

fn content(service: usize, nodes: &BTreeMap<Name, Node>, interner: &mut Interner) -> SliceContent {
    let endpoint = |i: usize| {
        let number = service * ENDPOINTS + i;
        let node = &nodes[&interner.name(&format!("node-{}", number * 7 % NODES))];
        let address = Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).expect("a small number"));
        Endpoint {
            addresses: Addresses::one(address.into()),
            conditions: Conditions::new(true, true, false),
            hostname: None,
            node: Some(node.name.clone()),
            zone: node.zone.clone(),
            target: None,
            hints: None,
        }
    };
    SliceContent {
        address_type: AddressType::Ip(Family::V4),
        labels: Labels::EMPTY,
        annotations: Labels::EMPTY,
        ports: [].into(),
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
    }
}

struct World {
    facts: ClusterFacts,
    contents: Vec<SliceContent>,
}

/// Plans all Services from nothing, then again with what was written. Gives the time of each, and the slices that the
/// second look wrote.
fn run(world: &World, mechanism: Mechanism) -> (Duration, Duration, usize) {
    let config = Config::default();
    let services: Vec<Service> = (0..SERVICES).map(|i| service(i, mechanism)).collect();
    let input = |service, memory| HintInput {
        service,
        family: Family::V4,
        facts: &world.facts,
        namespace_default: None,
        config: &config,
        memory,
    };
    let nothing = Memory::default();
    let fresh = world.contents.iter().map(|c| Packing { creates: vec![c.clone()], ..Packing::default() });
    let mut fresh: Vec<Packing> = fresh.collect();
    let start = Instant::now();
    let memories: Vec<Memory> = services
        .iter()
        .zip(&mut fresh)
        .map(|(s, packing)| assign(&input(s, &nothing), packing).memory)
        .collect();
    let first = start.elapsed();
    let slice = |(i, packing): (usize, Packing)| Slice {
        key: ObjectKey::new(&Name::new("default"), &Name::new(&format!("service-{i}"))),
        uid: None,
        generation: 1,
        resource_version: None,
        deleting: false,
        owners: Box::default(),
        content: packing.creates.into_iter().next().expect("one slice"),
    };
    let stored: Vec<Slice> = fresh.into_iter().enumerate().map(slice).collect();
    let mut again: Vec<Packing> =
        stored.iter().map(|s| Packing { unchanged: vec![s], ..Packing::default() }).collect();
    let start = Instant::now();
    for ((service, memory), packing) in services.iter().zip(&memories).zip(&mut again) {
        assign(&input(service, memory), packing);
    }
    let second = start.elapsed();
    (first, second, again.iter().map(|p| p.updates.len()).sum())
}

#[test]
fn hints_of_many_services() {
    let mut interner = Interner::default();
    let nodes = nodes(&mut interner);
    let start = Instant::now();
    let facts = ClusterFacts::from_nodes(&nodes);
    println!("facts of {NODES} nodes: {:?}", start.elapsed());
    let world = World { facts, contents: (0..SERVICES).map(|i| content(i, &nodes, &mut interner)).collect() };
    println!("{:<16} {:>12} {:>12}   of {SERVICES} Services", "mechanism", "new slices", "no change");
    for mechanism in MECHANISMS {
        let (first, second, written) = run(&world, mechanism);
        println!("{:<16} {first:>12.1?} {second:>12.1?}", mechanism.as_str());
        assert_eq!(written, 0, "{mechanism:?}");
        let allowed = PER_SERVICE * u32::try_from(SERVICES).expect("a small number");
        assert!(first < allowed && second < allowed, "{mechanism:?}: {first:?}, {second:?}");
    }
}
