//! Tests of selection beyond the vectors: Require, Spill, the gates, and the words.

use expect_test::{Expect, expect};
use fixtures::object;
use model::{Object, Snapshot, annotation};
use serde_json::{Value, json};

use super::*;

/// An endpoint as (address, node, zone hints, condition), in words short enough for tables.
fn endpoint(address: &str, node: &str, zone: &str, hints: &[&str], state: &str) -> Value {
    let (ready, serving, terminating) = match state {
        "ready" => (true, true, false),
        "terminating" => (false, true, true),
        "unready" => (false, false, false),
        other => panic!("{other}"),
    };
    let mut endpoint = json!({"addresses": [address], "nodeName": node, "zone": zone,
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating}});
    if !hints.is_empty() {
        let zones: Vec<Value> = hints.iter().map(|z| json!({"name": z})).collect();
        endpoint["hints"] = json!({"forZones": zones});
    }
    endpoint
}

struct World {
    snapshot: Snapshot,
}

impl World {
    fn new(spec: Value, annotations: Value, endpoints: Vec<Value>) -> Self {
        let mut snapshot = Snapshot::default();
        let mut full = json!({"clusterIPs": ["10.0.0.1"], "ports": [{"name": "p", "port": 80}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "ns", "name": "svc"}, "spec": full});
        let slice = fixtures::with(
            fixtures::slice("ns", "svc-1", "svc", json!({"name": "p", "port": 8080}), &endpoints),
            &json!({"metadata": {"annotations": annotations}}),
        );
        for value in [service, slice] {
            snapshot.apply(object(&value));
        }
        Self { snapshot }
    }

    /// The same with annotations on the Service.
    fn asking(mut self, annotations: &[(&str, &str)]) -> Self {
        let (service, _) = self.snapshot.services().next().unwrap();
        let mut service = service.clone();
        service.annotations = annotations.iter().copied().collect();
        self.snapshot.apply(Object::Service(service.into()));
        self
    }

    fn on<'a>(&'a self, node: &NodeView<'_>) -> PortSelection<'a> {
        let (service, slices) = self.snapshot.services().next().unwrap();
        select(service, slices, Family::V4, node).remove(0)
    }

    fn check(&self, node: &NodeView<'_>, expect: Expect) {
        let (service, _) = self.snapshot.services().next().unwrap();
        let selection = self.on(node);
        let mut text = String::new();
        for (class, set) in [("cluster", &selection.cluster), ("local", &selection.local)] {
            let Some(set) = set else { continue };
            text += &format!("{class} {}:", set.mode.as_str());
            for target in &set.endpoints {
                text += &format!(" {}x{:.3}", target.address, target.weight);
            }
            text += "\n";
        }
        for reason in explain(service, &selection, node) {
            text += &format!("{}: {}\n", reason.rule, reason.detail);
        }
        expect.assert_eq(&text);
    }
}

fn node<'a>(name: &'a str, zone: &'a str) -> NodeView<'a> {
    NodeView { name, zone: Some(zone).filter(|z| !z.is_empty()), gates: FeatureGates::ALL }
}

fn two_zones() -> Vec<Value> {
    vec![
        endpoint("10.1.0.1", "a1", "a", &["a"], "ready"),
        endpoint("10.1.0.2", "b1", "b", &["b"], "ready"),
        endpoint("10.1.0.3", "b1", "b", &["b"], "ready"),
    ]
}

#[test]
fn zone_hints_keep_traffic_in_the_zone() {
    World::new(json!({}), json!({}), two_zones()).check(
        &node("b1", "b"),
        expect![[r#"
            cluster same-zone: 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            zone hints: 2 of 3 ready endpoints have a hint for zone b
            cluster set: 2 ready endpoints for zone b
        "#]],
    );
}

#[test]
fn each_safeguard_says_why_hints_are_set_aside() {
    let world = World::new(json!({}), json!({}), two_zones());
    world.check(
        &node("c1", "c"),
        expect![[r#"
            cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            safeguard: zone not represented: no ready endpoint has a hint for zone c, so hints are not used
            cluster set: every ready endpoint: 3 of 3 listed
        "#]],
    );
    world.check(
        &node("x", ""),
        expect![[r#"
            cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            safeguard: zone unknown: this node has no label topology.kubernetes.io/zone, so zone hints are not used
            cluster set: every ready endpoint: 3 of 3 listed
        "#]],
    );
    let mut endpoints = two_zones();
    endpoints.push(endpoint("10.1.0.4", "a2", "a", &[], "ready"));
    World::new(json!({}), json!({}), endpoints).check(
        &node("a1", "a"),
        expect![[r#"
            cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000 10.1.0.4:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            safeguard: a hint is missing: 1 of 4 ready endpoints have no zone hint: hints may be in transition, so none are used
            cluster set: every ready endpoint: 4 of 4 listed
        "#]],
    );
}

#[test]
fn local_policy_without_local_endpoints_drops_and_says_so() {
    World::new(json!({"internalTrafficPolicy": "Local"}), json!({}), two_zones()).check(
        &node("c1", "c"),
        expect![[r#"
            local local:
            traffic policy: internalTrafficPolicy is Local: all traffic of this port stays on this node
            local set: 0 ready endpoints on node c1, of 3 in all
            dropped: endpoints exist on other nodes, but the traffic policy excludes them
        "#]],
    );
}

#[test]
fn require_never_leaves_the_zone() {
    let require = json!({"zoneward.dev/mechanism": "RequireZone"});
    let mut endpoints = two_zones();
    endpoints.push(endpoint("10.1.0.9", "c1", "c", &[], "terminating"));
    let world = World::new(json!({}), require, endpoints).asking(&[(annotation::SAME_ZONE, "Require")]);
    let modes = |name, zone| {
        let selection = world.on(&node(name, zone));
        let set = selection.cluster.clone().unwrap();
        (set.mode, set.endpoints.len(), selection.has_any)
    };
    assert_eq!(modes("a1", "a"), (SelectionMode::Require, 1, true));
    assert_eq!(modes("b1", "b"), (SelectionMode::Require, 2, true));
    assert_eq!(modes("c1", "c"), (SelectionMode::Terminating, 1, true), "the fallback stays in the zone");
    assert_eq!(modes("d1", "d"), (SelectionMode::Require, 0, false), "nothing near: reject");
    assert_eq!(modes("x", ""), (SelectionMode::Require, 0, false));
}

#[test]
fn under_require_an_endpoint_without_a_hint_counts_where_it_runs() {
    let require = json!({"zoneward.dev/mechanism": "RequireZone"});
    let mut endpoints = two_zones();
    endpoints.push(endpoint("10.1.0.9", "a2", "a", &[], "ready"));
    let world = World::new(json!({}), require, endpoints).asking(&[(annotation::SAME_ZONE, "Require")]);
    let used = |name, zone| world.on(&node(name, zone)).cluster.clone().unwrap().endpoints.len();
    assert_eq!((used("a1", "a"), used("b1", "b"), used("d1", "d")), (2, 2, 0));
}

#[test]
fn spill_weighs_what_leaves_the_zone() {
    // Zone a has half of the demand and a third of the endpoints: it keeps 2/3 of its traffic.
    let spill = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    let endpoints = vec![
        endpoint("10.1.0.1", "a1", "a", &[], "ready"),
        endpoint("10.1.0.2", "b1", "b", &[], "ready"),
        endpoint("10.1.0.3", "b1", "b", &[], "ready"),
    ];
    let world =
        World::new(json!({}), spill, endpoints).asking(&[(annotation::TRAFFIC_DISTRIBUTION, "Spill")]);
    world.check(
        &node("a1", "a"),
        expect![[r#"
            cluster spill: 10.1.0.1:8080x2.000 10.1.0.2:8080x0.500 10.1.0.3:8080x0.500
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            cluster set: 3 of 3 ready endpoints, weighted: zone a keeps what its endpoints have capacity for
        "#]],
    );
    let set = world.on(&node("b1", "b")).cluster.clone().unwrap();
    assert_eq!(set.endpoints.len(), 2, "zone b has room for all of its own traffic");
}

#[test]
fn with_the_gate_off_hints_count_only_under_the_annotation() {
    let gates: FeatureGates = "ServiceTrafficDistribution=false".parse().unwrap();
    let old = NodeView { gates, ..node("b1", "b") };
    let plain = World::new(json!({}), json!({}), two_zones());
    assert_eq!(plain.on(&old).cluster.clone().unwrap().mode, SelectionMode::All);
    let mut annotated = World::new(json!({}), json!({}), two_zones());
    let (service, _) = annotated.snapshot.services().next().unwrap();
    let mut service = service.clone();
    service.annotations = [(annotation::TOPOLOGY_MODE, "Auto")].into_iter().collect();
    annotated.snapshot.apply(Object::Service(service.into()));
    assert_eq!(annotated.on(&old).cluster.clone().unwrap().mode, SelectionMode::SameZone);
}

#[test]
fn an_address_in_two_slices_counts_once_and_the_one_that_stays_wins() {
    let endpoints = vec![
        endpoint("10.1.0.1", "a1", "a", &[], "terminating"),
        endpoint("10.1.0.1", "a1", "a", &[], "ready"),
    ];
    let world = World::new(json!({}), json!({}), endpoints);
    let selection = world.on(&node("a1", "a"));
    let set = selection.cluster.as_ref().unwrap();
    assert_eq!((set.mode, set.endpoints.len(), set.counts.listed), (SelectionMode::All, 1, 1));
}

#[test]
fn services_that_a_proxy_leaves_alone_say_why() {
    for spec in [json!({"clusterIP": "None", "clusterIPs": ["None"]}), json!({"type": "ExternalName"})] {
        let world = World::new(spec, json!({}), vec![]);
        let (service, _) = world.snapshot.services().next().unwrap();
        assert!(not_proxied(service).is_some());
    }
}

#[test]
fn slices_beside_those_of_kubernetes_own_controller_are_preferred() {
    let hinted = |zone: &str| vec![endpoint("10.1.0.1", "n1", "za", &[zone], "ready")];
    let mut world = World::new(json!({}), json!({}), hinted("zb"));
    let labels =
        |name: &str, writer: &str| json!({name: "svc", "endpointslice.kubernetes.io/managed-by": writer});
    let slice = |name: &str, labels: Value, endpoints: Vec<Value>| {
        let value = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "ns", "name": name, "labels": labels},
            "ports": [{"name": "p", "port": 8080}], "endpoints": endpoints});
        object(&value)
    };
    let theirs = labels("kubernetes.io/service-name", "endpointslice-controller.k8s.io");
    let others = labels("kubernetes.io/service-name", "example.com");
    let ours = labels("zoneward.dev/service-name", "zoneward.dev");
    world.snapshot.apply(slice("svc-1", theirs, hinted("zb")));
    assert_eq!(world.on(&node("n1", "za")).cluster.unwrap().mode, SelectionMode::All);
    world.snapshot.apply(slice("beside", ours, hinted("za")));
    assert_eq!(world.on(&node("n1", "za")).cluster.unwrap().mode, SelectionMode::SameZone);
    // What a third writer lists counts as ever.
    world.snapshot.apply(slice("custom", others, vec![endpoint("10.1.0.9", "n1", "za", &["za"], "ready")]));
    assert_eq!(world.on(&node("n1", "za")).cluster.unwrap().endpoints.len(), 2);
}

#[test]
fn a_requirement_binds_only_while_the_service_asks_for_it() {
    let require = json!({"zoneward.dev/mechanism": "RequireZone"});
    let asked = |annotations: &[(&str, &str)], of_slice: &serde_json::Value| {
        let world = World::new(json!({}), of_slice.clone(), two_zones()).asking(annotations);
        world.on(&node("d1", "d")).cluster.unwrap().mode
    };
    assert_eq!(asked(&[(annotation::SAME_ZONE, "Require")], &require), SelectionMode::Require);
    assert_eq!(
        asked(&[(annotation::TRAFFIC_DISTRIBUTION, "RequireRegion")], &require),
        SelectionMode::Require
    );
    // Left behind by the way back to kube-controller-manager.
    assert_eq!(asked(&[], &require), SelectionMode::All);
    assert_eq!(asked(&[(annotation::SAME_ZONE, "Prefer")], &require), SelectionMode::All);
}

#[test]
fn a_requirement_of_a_default_binds_while_the_service_says_nothing() {
    let asked = |annotations: &[(&str, &str)], source: &str| {
        let of_slice =
            json!({"zoneward.dev/mechanism": "RequireZone", "zoneward.dev/mechanism-source": source});
        let world = World::new(json!({}), of_slice, two_zones()).asking(annotations);
        world.on(&node("d1", "d")).cluster.unwrap().mode
    };
    for default in ["namespace", "controller", "default"] {
        assert_eq!(asked(&[], default), SelectionMode::Require, "{default}");
        assert_eq!(
            asked(&[(annotation::SAME_ZONE, "Require")], default),
            SelectionMode::Require,
            "{default}"
        );
        assert_eq!(asked(&[(annotation::SAME_ZONE, "Balanced")], default), SelectionMode::All, "{default}");
    }
    assert_eq!(asked(&[], "service"), SelectionMode::All);
}

#[test]
fn a_requirement_that_is_set_aside_says_so() {
    World::new(json!({}), json!({"zoneward.dev/mechanism": "RequireZone"}), two_zones())
        .check(&node("d1", "d"), expect![[r#"
            cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            requirement set aside: a slice has the mechanism RequireZone, but neither the Service nor a default requests it any more, so it is ignored
            safeguard: zone not represented: no ready endpoint has a hint for zone d, so hints are not used
            cluster set: every ready endpoint: 3 of 3 listed
        "#]]);
}

#[test]
fn spill_is_obeyed_only_while_it_is_asked_for() {
    let of = |spec: Value, annotations: &[(&str, &str)], source: &str| {
        let of_slice = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128",
            "zoneward.dev/mechanism-source": source});
        let world = World::new(spec, of_slice, two_zones()).asking(annotations);
        world.on(&node("a1", "a")).cluster.unwrap().mode
    };
    let spill = [(annotation::TRAFFIC_DISTRIBUTION, "Spill")];
    assert_eq!(of(json!({}), &spill, "service"), SelectionMode::Spill);
    assert_eq!(
        of(json!({"trafficDistribution": "zoneward.dev/Spill"}), &[], "service"),
        SelectionMode::Spill
    );
    // kube-controller-manager has written the hints of the new setting and left our annotations.
    let same_zone = json!({"trafficDistribution": "PreferSameZone"});
    assert_eq!(of(same_zone.clone(), &[], "service"), SelectionMode::SameZone);
    assert_eq!(of(json!({}), &[], "service"), SelectionMode::SameZone);
    for default in ["namespace", "controller"] {
        assert_eq!(of(json!({}), &[], default), SelectionMode::Spill, "{default}");
        assert_eq!(of(same_zone.clone(), &[], default), SelectionMode::SameZone, "{default}");
        let disabled = [(annotation::TOPOLOGY_MODE, "Disabled")];
        assert_eq!(of(json!({}), &disabled, default), SelectionMode::SameZone, "{default}");
    }
}

#[test]
fn a_preferred_region_is_obeyed_only_while_it_is_asked_for() {
    let mode = |world: World| world.on(&node("n-w3", "w3")).cluster.unwrap().mode;
    assert_eq!(mode(wide_region("PreferRegion")), SelectionMode::SameRegion);
    let node_first = [(annotation::SAME_NODE, "Prefer"), (annotation::SAME_REGION, "Prefer")];
    assert_eq!(mode(wide_region("PreferRegion").asking(&node_first)), SelectionMode::SameRegion);
    assert_eq!(mode(wide_region("PreferRegion").asking(&[])), SelectionMode::All);
    assert_eq!(
        mode(wide_region("PreferRegion").asking(&[(annotation::SAME_ZONE, "Prefer")])),
        SelectionMode::All
    );
}

#[test]
fn a_mechanism_that_is_set_aside_says_so() {
    let of_slice = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    World::new(json!({"trafficDistribution": "PreferSameZone"}), of_slice, two_zones())
        .check(&node("a1", "a"), expect![[r#"
            cluster same-zone: 10.1.0.1:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            mechanism set aside: a slice has the mechanism Spill, but neither the Service nor a default requests it any more, so only hints are used
            zone hints: 1 of 3 ready endpoints have a hint for zone a
            cluster set: 1 ready endpoint for zone a
        "#]]);
}

/// Ten zones, w0 to w9, in the region west and one, e0, in the region east, each with an endpoint.
fn wide_region(mechanism: &str) -> World {
    let west: Vec<String> = (0..10).map(|i| format!("w{i}")).collect();
    let mut endpoints: Vec<Value> = west
        .iter()
        .enumerate()
        .map(|(i, zone)| endpoint(&format!("10.1.0.{i}"), &format!("n-{zone}"), zone, &[], "ready"))
        .collect();
    endpoints.push(endpoint("10.2.0.1", "n-e0", "e0", &[], "ready"));
    let regions = format!("west={};east=e0", west.join(","));
    let annotations = json!({"zoneward.dev/mechanism": mechanism, "zoneward.dev/regions": regions});
    let level = if mechanism.contains("Require") { "Require" } else { "Prefer" };
    World::new(json!({}), annotations, endpoints).asking(&[(annotation::SAME_REGION, level)])
}

#[test]
fn a_region_of_more_than_eight_zones_is_obeyed_without_hints() {
    for (mechanism, mode, elsewhere) in [
        ("PreferRegion", SelectionMode::SameRegion, (SelectionMode::All, 11)),
        ("RequireRegion", SelectionMode::Require, (SelectionMode::Require, 0)),
    ] {
        let world = wide_region(mechanism);
        let used = |name: &str, zone: &str| {
            let set = world.on(&node(name, zone)).cluster.unwrap();
            (set.mode, set.endpoints.len())
        };
        assert_eq!(used("n-w3", "w3"), (mode, 10), "{mechanism}");
        assert_eq!(used("n-e0", "e0"), (mode, 1), "{mechanism}");
        assert_eq!(used("x", "unknown"), elsewhere, "{mechanism}");
        assert_eq!(used("x", ""), elsewhere, "{mechanism}");
    }
}

#[test]
fn without_the_zones_of_its_region_a_requirement_holds_within_the_zone() {
    let annotations = json!({"zoneward.dev/mechanism": "RequireRegion"});
    let endpoints =
        vec![endpoint("10.1.0.1", "a1", "a", &[], "ready"), endpoint("10.1.0.2", "b1", "b", &[], "ready")];
    let world = World::new(json!({}), annotations, endpoints).asking(&[(annotation::SAME_REGION, "Require")]);
    let set = world.on(&node("a1", "a")).cluster.unwrap();
    assert_eq!((set.mode, set.endpoints.len()), (SelectionMode::Require, 1));
}

#[test]
fn a_wide_region_is_explained() {
    wide_region("PreferRegion").check(
        &node("n-e0", "e0"),
        expect![[r#"
            cluster same-region: 10.2.0.1:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            cluster set: 1 ready endpoint in the region of zone e0, by the zones in the slices' annotation
        "#]],
    );
    wide_region("RequireRegion").check(
        &node("n-e0", "e0"),
        expect![[r#"
        cluster require: 10.2.0.1:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        cluster set: 1 ready endpoint: the Service requires traffic to stay in the region of zone e0
    "#]],
    );
}

#[test]
fn a_gate_that_is_off_is_the_reason_and_no_safeguard_is() {
    let gates: FeatureGates = "ServiceTrafficDistribution=false".parse().unwrap();
    let off = NodeView { gates, ..node("b1", "b") };
    World::new(json!({}), json!({}), two_zones()).check(&off, expect![[r#"
        cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        feature gate: the feature gate ServiceTrafficDistribution is off, so hints are used only for Services with topology-mode Auto
        cluster set: every ready endpoint: 3 of 3 listed
    "#]]);
}

/// Endpoints with hints for the nodes that they run on, and none for zones.
fn by_node() -> Vec<Value> {
    let mut endpoints = two_zones();
    for endpoint in &mut endpoints {
        endpoint["hints"] = json!({"forNodes": [{"name": endpoint["nodeName"]}]});
    }
    endpoints
}

#[test]
fn hints_for_nodes_alone_are_explained_by_nodes() {
    let world = World::new(json!({}), json!({}), by_node());
    world.check(&node("c1", "c"), expect![[r#"
        cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        safeguard: node not represented: no ready endpoint has a hint for node c1, and there are no zone hints, so hints are not used
        cluster set: every ready endpoint: 3 of 3 listed
    "#]]);
    let gates: FeatureGates = "PreferSameTrafficDistribution=false".parse().unwrap();
    world.check(&NodeView { gates, ..node("b1", "b") }, expect![[r#"
        cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        feature gate: the feature gate PreferSameTrafficDistribution is off, so node hints are not used, and there are no zone hints
        cluster set: every ready endpoint: 3 of 3 listed
    "#]]);
    let mut endpoints = by_node();
    endpoints[0]["hints"] = json!(null);
    World::new(json!({}), json!({}), endpoints).check(&node("b1", "b"), expect![[r#"
        cluster all: 10.1.0.1:8080x1.000 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        safeguard: a hint is missing: 1 of 3 ready endpoints have no node hint: hints may be in transition, so none are used
        cluster set: every ready endpoint: 3 of 3 listed
    "#]]);
}

#[test]
fn a_required_node_is_explained_by_the_node() {
    let of_slice = json!({"zoneward.dev/mechanism": "RequireNode"});
    let world = World::new(json!({}), of_slice, by_node()).asking(&[(annotation::SAME_NODE, "Require")]);
    world.check(
        &node("b1", "b"),
        expect![[r#"
            cluster require: 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            cluster set: 2 ready endpoints: the Service requires traffic to stay on node b1
        "#]],
    );
    world.check(
        &node("b2", "b"),
        expect![[r#"
        cluster require:
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        cluster set: 0 ready endpoints: the Service requires traffic to stay on node b2
        rejected: no endpoint in scope is ready: connections are refused (add endpoints here, or use Prefer)
    "#]],
    );
}

#[test]
fn where_the_own_node_comes_first_the_reason_says_so() {
    let of_slice = json!({"zoneward.dev/mechanism": "PreferNodeRequireZone"});
    let mut endpoints = two_zones();
    endpoints.push(endpoint("10.1.0.4", "b2", "b", &["b"], "ready"));
    let asked = [(annotation::SAME_NODE, "Prefer"), (annotation::SAME_ZONE, "Require")];
    let world = World::new(json!({}), of_slice, endpoints).asking(&asked);
    world.check(&node("b2", "b"), expect![[r#"
        cluster require: 10.1.0.4:8080x1.000
        traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
        cluster set: 1 ready endpoint on node b2, which is preferred: the Service requires traffic to stay in zone b
    "#]]);
    world.check(
        &node("b3", "b"),
        expect![[r#"
            cluster require: 10.1.0.2:8080x1.000 10.1.0.3:8080x1.000 10.1.0.4:8080x1.000
            traffic policy: internalTrafficPolicy is Cluster: all traffic of this port may use every endpoint
            cluster set: 3 ready endpoints: the Service requires traffic to stay in zone b
        "#]],
    );
}
