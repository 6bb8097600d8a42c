//! Tests beyond the vectors: topology of headless Services, the sync, names, and the words.

use expect_test::{Expect, expect};
use fixtures::object;
use serde_json::{Value, json};

use super::*;
use crate::FeatureGates;

struct World {
    snapshot: Snapshot,
    domain: DnsName,
}

fn endpoint(address: &str, zone: &str, state: &str) -> Value {
    let (ready, serving, terminating) = match state {
        "ready" => (true, true, false),
        "terminating" => (false, true, true),
        "unready" => (false, false, false),
        other => panic!("{other}"),
    };
    json!({"addresses": [address], "zone": zone, "hints": {"forZones": [{"name": zone}]},
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
}

impl World {
    /// A headless Service db with these endpoints.
    fn headless(annotations: Value, endpoints: &[Value]) -> Self {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "db", "annotations": annotations},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "pg", "port": 5432}]}});
        let slice = fixtures::slice("shop", "db-1", "db", json!({"name": "pg", "port": 5432}), endpoints);
        let mut world =
            Self { snapshot: Snapshot::default(), domain: DnsName::parse("cluster.local").unwrap() };
        world.add(&service);
        world.add(&slice);
        world
    }

    fn add(&mut self, value: &Value) {
        self.snapshot.apply(object(value));
    }

    fn ask(&self, name: &str, kind: DnsQueryType, zone: Option<&str>) -> String {
        self.ask_with(name, kind, zone, true)
    }

    /// The answer and why, as text.
    fn ask_with(&self, name: &str, kind: DnsQueryType, zone: Option<&str>, synced: bool) -> String {
        let reverse = ReverseIndex::of(&self.snapshot);
        let view = DnsView {
            snapshot: &self.snapshot,
            reverse: &reverse,
            domain: &self.domain,
            node: NodeView { name: "n", zone, gates: FeatureGates::ALL },
            servers: &[],
            serial: 7,
            synced,
        };
        let question = DnsQuestion { name: DnsName::parse(name).unwrap(), kind };
        let DnsDecision::Answer(answer) = answer(&question, &view) else { return "forward\n".to_owned() };
        let mut text = format!("{}\n", answer.rcode.as_str());
        for record in answer.answers.iter().chain(&answer.additional) {
            text += &format!("{record}\n");
        }
        for reason in answer.why.iter().flat_map(|reason| reason.explain(&view)) {
            text += &format!("because {}: {}\n", reason.rule, reason.detail);
        }
        text
    }
}

fn check(actual: &str, expect: Expect) {
    expect.assert_eq(actual);
}

const DB: &str = "db.shop.svc.cluster.local";

#[test]
fn a_headless_service_gives_the_endpoints_of_the_zone() {
    let endpoints = [endpoint("10.1.0.1", "a", "ready"), endpoint("10.2.0.1", "b", "ready")];
    let world = World::headless(json!({}), &endpoints);
    check(
        &world.ask(DB, DnsQueryType::A, Some("a")),
        expect![[r#"
        NOERROR
        db.shop.svc.cluster.local. 5 IN A 10.1.0.1
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because zone hints: 1 of 2 ready endpoints have a hint for zone a
        because endpoints: 1 ready endpoint for zone a
    "#]],
    );
    check(
        &world.ask(DB, DnsQueryType::Srv, Some("b")),
        expect![[r#"
        NOERROR
        db.shop.svc.cluster.local. 5 IN SRV 0 100 5432 10-2-0-1.db.shop.svc.cluster.local.
        10-2-0-1.db.shop.svc.cluster.local. 5 IN A 10.2.0.1
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because zone hints: 1 of 2 ready endpoints have a hint for zone b
        because endpoints: 1 ready endpoint for zone b
    "#]],
    );
    // The safeguards of the selection.
    check(
        &world.ask(DB, DnsQueryType::A, Some("c")),
        expect![[r#"
        NOERROR
        db.shop.svc.cluster.local. 5 IN A 10.1.0.1
        db.shop.svc.cluster.local. 5 IN A 10.2.0.1
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because safeguard: zone not represented: no ready endpoint has a hint for zone c, so hints are not used
        because endpoints: every ready endpoint: 2 of 2 listed
    "#]],
    );
    check(
        &world.ask(DB, DnsQueryType::A, None),
        expect![[r#"
        NOERROR
        db.shop.svc.cluster.local. 5 IN A 10.1.0.1
        db.shop.svc.cluster.local. 5 IN A 10.2.0.1
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because safeguard: zone unknown: this node has no label topology.kubernetes.io/zone, so zone hints are not used
        because endpoints: every ready endpoint: 2 of 2 listed
    "#]],
    );
}

#[test]
fn an_endpoint_is_found_by_its_name_from_every_zone() {
    let endpoints = [endpoint("10.1.0.1", "a", "ready"), endpoint("10.2.0.1", "b", "ready")];
    let world = World::headless(json!({}), &endpoints);
    let text = world.ask("10-2-0-1.db.shop.svc.cluster.local", DnsQueryType::A, Some("a"));
    check(
        &text,
        expect![[r#"
        NOERROR
        10-2-0-1.db.shop.svc.cluster.local. 5 IN A 10.2.0.1
        because endpoint name: endpoints of Service shop/db named 10-2-0-1, whatever their zone
    "#]],
    );
}

#[test]
fn terminating_endpoints_are_given_where_none_is_ready() {
    let endpoints = [endpoint("10.1.0.1", "a", "terminating"), endpoint("10.2.0.1", "b", "unready")];
    let world = World::headless(json!({}), &endpoints);
    check(
        &world.ask(DB, DnsQueryType::A, Some("b")),
        expect![[r#"
        NOERROR
        db.shop.svc.cluster.local. 5 IN A 10.1.0.1
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because endpoints: no endpoint is ready: 1 of 1 terminating endpoints that still serve
    "#]],
    );
}

#[test]
fn a_required_zone_without_endpoints_is_no_proof_that_the_name_does_not_exist() {
    let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "shop", "name": "db-1",
            "annotations": {"zoneward.dev/mechanism": "RequireZone"},
            "labels": {"kubernetes.io/service-name": "db"}}});
    slice["endpoints"] = json!([endpoint("10.1.0.1", "a", "ready")]);
    let mut world = World::headless(json!({"endpointslice.kubernetes.io/same-zone": "Require"}), &[]);
    world.add(&slice);
    check(
        &world.ask(DB, DnsQueryType::A, Some("b")),
        expect![[r#"
        NOERROR
        because headless: Service shop/db is headless: its IPv4 addresses are those of endpoints
        because endpoints: 0 ready endpoints: the Service requires traffic to stay in zone b
        because no data: the name exists, without records of type A
    "#]],
    );
}

#[test]
fn before_the_sync_a_missing_name_is_a_failure() {
    let world = World::headless(json!({}), &[]);
    for name in [DB, "x.y.svc.cluster.local"] {
        let text = world.ask_with(name, DnsQueryType::A, None, false);
        assert!(text.starts_with("SERVFAIL\n"), "{text}");
    }
}

#[test]
fn the_reverse_index_follows_changes() {
    let endpoints = [endpoint("10.1.0.1", "a", "ready"), endpoint("10.2.0.1", "b", "ready")];
    let mut world = World::headless(json!({}), &endpoints);
    let mut index = ReverseIndex::of(&world.snapshot);
    let key = world.snapshot.services().next().unwrap().0.key.clone();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(index.with_endpoint(ip("10.1.0.1")).count(), 1);
    let mut slice = world.snapshot.slices(&key)[0].clone();
    slice.content.endpoints.remove(0);
    world.snapshot.apply(model::Object::Slice(slice.into()));
    index.update(&world.snapshot, &key);
    assert_eq!(index.with_endpoint(ip("10.1.0.1")).count(), 0);
    assert_eq!(index.with_endpoint(ip("10.2.0.1")).count(), 1);
    world.snapshot.remove_service(&key);
    index.update(&world.snapshot, &key);
    assert!(index.services_are_empty());
}

#[test]
fn names_of_ranges_end_at_labels() {
    let zones = |range: &str| {
        let zones = DnsName::reverse_zones(&range.parse().unwrap());
        zones.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(zones("10.96.0.0/16"), ["96.10.in-addr.arpa."]);
    assert_eq!(zones("10.96.0.0/15"), ["96.10.in-addr.arpa.", "97.10.in-addr.arpa."]);
    assert_eq!(zones("10.96.0.0/12").len(), 16);
    assert_eq!(zones("fd00::/7").len(), 2);
    let name = "0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.";
    assert_eq!(zones("fd00:10:96::/96"), [name]);
    for address in ["10.96.0.1", "fd00:10:96::1"] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(DnsName::reverse(address).reverse_net(), Some(address.into()));
    }
    for wrong in ["01.in-addr.arpa", "256.in-addr.arpa", "1.2.3.4.5.in-addr.arpa", "gg.ip6.arpa", "1.arpa"] {
        assert_eq!(DnsName::parse(wrong).unwrap().reverse_net(), None, "{wrong}");
    }
}

#[test]
fn a_dot_within_a_label_is_not_the_end_of_a_label() {
    let domain = DnsName::parse("cluster.local").unwrap();
    let name = DnsName::from_labels([&b"x.cluster"[..], b"local"].into_iter());
    assert_eq!(name.below(&domain), None);
    assert!(DnsName::parse("a..b").is_err());
    assert!(DnsName::parse(&"a.".repeat(128)).is_err());
    assert_eq!(DnsName::parse("A.b.").unwrap().to_string(), "a.b.");
}

#[test]
fn aliases_are_followed_up_to_a_limit() {
    let mut world = World::headless(json!({}), &[]);
    for at in 0..30 {
        world.add(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": format!("a{at}")},
            "spec": {"type": "ExternalName", "externalName": format!("a{}.shop.svc.cluster.local", at + 1)}}));
    }
    world.add(
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "a30"},
        "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}}),
    );
    let ask = |name: &str| world.ask(&format!("{name}.shop.svc.cluster.local"), DnsQueryType::A, None);
    assert!(ask("a25").contains("IN A 10.96.0.1"), "{}", ask("a25"));
    assert!(ask("a0").starts_with("NOERROR\nbecause"), "{}", ask("a0"));
}
