//! No object panics: good objects are broken at random, parsed, and everything is planned on what is left.
//!
//! `cargo test` runs it for ten seconds, `cargo xtask soak no_input_panics --seconds N` for longer. A failure names its
//! round; `ZONEWARD_FUZZ_ROUND=N` runs that one alone.

mod corpus;
mod mutate;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use apimachinery::cluster_ips;
use model::backend::ConsumerLocation;
use model::gateway_api::CONTROLLER;
use model::random::Random;
use model::route::{Arrival, EdgeSettings, Routing, Scheme, rule_value};
use model::{Family, Interner, Notice, Object, Service, Snapshot, parse, write};
use plan::FeatureGates;
use plan::PlanningConfig;
use plan::forward::{self, NodeConfig, ProxySettings};
use plan::gateway_api::{
    ArrivingRequest, AssignedAddresses, UnboundPorts, gateway_table, statuses, trace_at_gateway,
};
use plan::hints::{ClusterTopology, HintInput, Hysteresis, assign};
use plan::routes::{self, MeshClient, TracedRequest};
use plan::select::{NodeView, explain, select};
use plan::slices::{self, TriggerTimes};
use serde_json::Value;

fn seconds() -> u64 {
    std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10)
}

#[test]
fn soak_fuzz_no_input_panics() {
    if let Some(round) = std::env::var("ZONEWARD_FUZZ_ROUND").ok().and_then(|r| r.parse().ok()) {
        return run(round);
    }
    let end = Instant::now() + Duration::from_secs(seconds());
    let mut round = 0;
    while Instant::now() < end {
        let outcome = std::panic::catch_unwind(|| run(round));
        assert!(outcome.is_ok(), "round {round} panicked: run it again with ZONEWARD_FUZZ_ROUND={round}");
        round += 1;
    }
    println!("{round} rounds");
}

/// One world with some broken objects, all the way through.
fn run(round: u64) {
    let mut random = Random::seeded(round);
    let mut values = corpus::objects();
    // Not in every world: they decide instead of Mesh* policies.
    if random.below(2) == 0 {
        values.extend(corpus::standard());
    }
    for _ in 0..random.below(12) {
        let at = random.below(values.len());
        mutate::mutate(&mut values[at], &mut random);
    }
    let (snapshot, notices) = read(&values);
    for notice in &notices {
        assert!(!notice.message.is_empty() && !notice.object.name.is_empty(), "{notice:?}");
    }
    for value in &values {
        apimachinery::validate::validate(value);
        apimachinery::validate::validate_update(value, &values[random.below(values.len())]);
    }
    for (service, _) in snapshot.services() {
        plan_one(&snapshot, service, &mut random);
    }
    plan_addresses(&snapshot, round);
    forward_all(&snapshot);
    route_all(&snapshot);
}

/// Every pod's and gateway's table, a request through each part of it, and the backends behind.
fn route_all(snapshot: &Snapshot) {
    let place = ConsumerLocation { node: "node-a".into(), zone: Some("zone-a".into()) };
    let mut tables: Vec<_> = snapshot.mesh_gateways().map(|g| routes::gateway(snapshot, g).0).collect();
    tables.extend(snapshot.gateways().map(|gateway| gateway_table(snapshot, gateway).0));
    let addresses = AssignedAddresses::Any(vec![[127, 0, 0, 1].into()]);
    for own in statuses(snapshot, CONTROLLER, &addresses, &UnboundPorts::new()) {
        assert!(own.status.is_object(), "{own:?}");
    }
    tables.extend(
        snapshot.pods().take(2).map(|pod| routes::sidecar(snapshot, &MeshClient::of_pod(snapshot, pod)).0),
    );
    let incoming = TracedRequest {
        method: "GET".into(),
        host: "x.a.io:80".into(),
        path: "/v1/../v1/é%zz?q=1".into(),
        ..TracedRequest::default()
    };
    for table in &tables {
        for (port, is_udp) in [(80, false), (443, false), (90, false), (90, true), (7, false)] {
            let at = ArrivingRequest { port, is_udp, sni: Some("t.a.io".into()), is_grpc: port == 80 };
            let traced = trace_at_gateway(table, &at, &incoming, &EdgeSettings::default());
            assert!(!traced.why.is_empty());
        }
        let listeners = table.ports().flat_map(|port| port.listener(&incoming.host));
        let routings = listeners.flat_map(|listener| listener.routing(&incoming.host));
        for routing in routings.chain(table.outbounds().map(|outbound| &outbound.routing)) {
            let Routing::Http(routes) = routing else { continue };
            let traced = routes::trace(
                Some(routes),
                &incoming,
                &Arrival { scheme: Scheme::Http, port: Some(80) },
                &EdgeSettings::default(),
            );
            assert!(!traced.why.is_empty());
            let shown = routes.rules().map(|rule| rule_value(&rule.rule));
            assert!(shown.into_iter().all(|rule| rule["matches"].is_array()));
        }
        let backends = table.backends();
        let known = plan::backends::table(snapshot, table, &place, FeatureGates::ALL);
        assert_eq!(known.backends().count(), backends.len(), "what a route leads to is there");
    }
    for pod in snapshot.pods() {
        routes::unused_targets(snapshot, &pod.key.namespace);
    }
}

fn forward_all(snapshot: &Snapshot) {
    let ranges: Vec<_> = snapshot.service_cidrs().flat_map(|cidr| cidr.cidrs.iter().copied()).collect();
    for node in snapshot.nodes().values() {
        let (config, _) = NodeConfig::new(&ProxySettings::without_flags(), node, &ranges, &[]);
        forward::table(snapshot, &config);
    }
}

fn read(values: &[Value]) -> (Snapshot, Vec<Notice>) {
    let (mut snapshot, mut interner, mut notices) = (Snapshot::default(), Interner::default(), Vec::new());
    for value in values {
        let (object, told) = parse::object(value, &mut interner);
        let known_kind = parsed_kind(value);
        assert!(object.is_some() || !told.is_empty() || !known_kind, "lost without a word: {value}");
        notices.extend(told);
        if let Some(object) = object {
            if let Object::Slice(slice) = &object {
                write::update_slice(&mut value.clone(), &slice.content);
            }
            snapshot.apply(object);
        }
    }
    (snapshot, notices)
}

fn parsed_kind(value: &Value) -> bool {
    let group = value["apiVersion"].as_str().unwrap_or_default().split_once('/').map_or("", |(g, _)| g);
    let kinds = [
        ("", "Service"),
        ("", "Pod"),
        ("", "Node"),
        ("", "Namespace"),
        ("discovery.k8s.io", "EndpointSlice"),
        ("networking.k8s.io", "ServiceCIDR"),
        ("networking.k8s.io", "IPAddress"),
        ("zoneward.dev", "MeshHTTPRoute"),
        ("zoneward.dev", "MeshGatewayHTTPRoute"),
        ("zoneward.dev", "MeshTCPRoute"),
        ("zoneward.dev", "MeshGateway"),
        ("zoneward.dev", "MeshLoadBalancing"),
        ("zoneward.dev", "MeshRouteFilter"),
    ];
    kinds.contains(&(group, value["kind"].as_str().unwrap_or_default()))
}

fn plan_one(snapshot: &Snapshot, service: &Service, random: &mut Random) {
    let existing = snapshot.slices(&service.key);
    let selector = service.selector.as_ref();
    let pods = selector.map(|s| snapshot.pods_selected(&service.key.namespace, s)).unwrap_or_default();
    let trigger = TriggerTimes::default();
    let input = slices::SliceInput {
        service,
        pods: &pods,
        nodes: snapshot.nodes(),
        slices: existing,
        trigger: &trigger,
    };
    let max = 1 + random.below(5);
    let options = slices::SliceOptions::new(max).expect("within 1 to 1000");
    let topology = ClusterTopology::from_nodes(snapshot.nodes());
    let config = PlanningConfig::without_flags();
    let namespace = snapshot.namespace(&service.key.namespace);
    let namespace_default = namespace.and_then(|n| n.default_traffic_distribution.as_ref());
    let plan = slices::plan(&input, &options, |family, packing| {
        let hysteresis = Hysteresis::from_slices(family, existing);
        let (topology, config, hysteresis) = (&topology, &config, &hysteresis);
        let input = HintInput {
            service,
            family,
            topology,
            namespace_default,
            config,
            hysteresis,
            with_notices: true,
        };
        let outcome = assign(&input, packing);
        assert!(outcome.notices.iter().all(|notice| !notice.message.is_empty()));
    });
    for content in plan.creates.iter().chain(plan.updates.iter().map(|(_, content)| content)) {
        assert!(content.endpoints.len() <= max);
    }
    for name in ["node-a", "node-b", "nowhere", ""] {
        let zone = snapshot.node(name).and_then(|n| n.zone.as_deref());
        let node = NodeView { name, zone, gates: FeatureGates::ALL };
        for family in [Family::V4, Family::V6] {
            for selection in select(service, existing, family, &node) {
                assert!(!explain(service, &selection, &node).is_empty());
                let all = selection.reachable();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "each address once");
            }
        }
    }
}

fn plan_addresses(snapshot: &Snapshot, seed: u64) {
    let services: Vec<_> = snapshot.services().map(|(service, _)| service).collect();
    let cidrs: Vec<_> = snapshot.service_cidrs().collect();
    let ips: Vec<_> = snapshot.ip_addresses().collect();
    let input = cluster_ips::AddressInput {
        services: &services,
        unreadable: &[],
        service_cidrs: &cidrs,
        ip_addresses: &ips,
        seed,
        now: None,
    };
    let plan = cluster_ips::plan(&input);
    let given: Vec<_> = plan.assigned.iter().flat_map(|a| &a.cluster_ips).collect();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "addresses never collide");
}
