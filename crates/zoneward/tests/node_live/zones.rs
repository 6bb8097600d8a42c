//! A running controller and a running node: what a Service asks for becomes hints, and hints become connections, as seen
//! from each zone. The end-to-end rows of KEP-4444 and of seed 003.

use std::collections::{BTreeMap, BTreeSet};

use model::Timestamp;
use serde_json::{Value, json};

use super::addresses::{OWN, endpoint};
use super::place::Source::Masqueraded;
use super::place::{From, Place, VIPS};
use super::traffic::meanwhile;
use super::world::{Proxy, service};

pub(crate) const ZONES: [&str; 3] = ["za", "zb", "zc"];
const SAME_ZONE: &str = "endpointslice.kubernetes.io/same-zone";

/// A node in each zone; this machine can be any of them.
fn put_nodes(place: &Place) {
    for zone in ZONES {
        let addresses = OWN[..2].iter().map(|ip| json!({"type": "InternalIP", "address": ip}));
        let addresses = json!({"status": {"addresses": addresses.collect::<Vec<_>>()}});
        place.world.put(fixtures::with(fixtures::node(&format!("node-{zone}"), zone), &addresses));
    }
    place.world.remove("Node", "", "n1");
}

pub(crate) fn pod(index: u8, zone: &str) -> Value {
    let (v4, v6) = (endpoint(false, index), endpoint(true, index));
    fixtures::pod("ns", &format!("web-{index}"), "web", &format!("node-{zone}"), &[&v4, &v6])
}

/// The Service, with a traffic distribution or an annotation.
pub(crate) fn put_service(place: &Place, field: Option<&str>, same_zone: Option<&str>) {
    let mut web = service("web", &VIPS);
    web["metadata"]["uid"] = "web".into();
    web["spec"]["selector"] = json!({"app": "web"});
    web["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    web["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
    if let Some(value) = field {
        web["spec"]["trafficDistribution"] = value.into();
    }
    if let Some(value) = same_zone {
        web["metadata"]["annotations"] = json!({SAME_ZONE: value});
    }
    place.world.put(web);
}

/// The pods by the zones that they are hinted for; those without a hint under `""`.
fn hinted(place: &Place, v6: bool) -> BTreeMap<String, BTreeSet<u8>> {
    let mut found: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
    let family = if v6 { "IPv6" } else { "IPv4" };
    for slice in place.world.list("EndpointSlice").iter().filter(|slice| slice["addressType"] == family) {
        for one in slice["endpoints"].as_array().into_iter().flatten() {
            let address = one["addresses"][0].as_str().unwrap();
            let index = (0..=u8::MAX).find(|index| endpoint(v6, *index) == address).unwrap();
            let zones = one["hints"]["forZones"].as_array().cloned().unwrap_or_default();
            let names: Vec<&str> = zones.iter().filter_map(|zone| zone["name"].as_str()).collect();
            for zone in if names.is_empty() { vec![""] } else { names } {
                found.entry(zone.to_owned()).or_default().insert(index);
            }
        }
    }
    found
}

fn by_zone(zones: &[(&str, &[u8])]) -> BTreeMap<String, BTreeSet<u8>> {
    zones.iter().map(|(zone, pods)| ((*zone).to_owned(), pods.iter().copied().collect())).collect()
}

fn until_hinted(place: &Place, zones: &[(&str, &[u8])]) {
    let wanted = by_zone(zones);
    place
        .world
        .until(&format!("hints {wanted:?}"), || [false, true].iter().all(|v6| hinted(place, *v6) == wanted));
}

/// This machine as the node of a zone, with all slices programmed.
fn be(place: &Place, zone: &str) -> Proxy {
    let proxy = place
        .world
        .node(&format!("node-{zone}"), &["--proxy-mode=nftables", "--cluster-cidr=10.1.0.0/16,fd00:1::/64"]);
    let slices = place.world.list("EndpointSlice");
    let versions = slices.iter().map(|slice| slice["metadata"]["resourceVersion"].as_str().unwrap());
    let wanted: u64 = versions.map(|version| version.parse().unwrap()).max().unwrap_or(0);
    place.world.until("programmed", || {
        super::world::metric("zoneward_node_programmed_revision").is_some_and(|seen| seen >= wanted as f64)
    });
    proxy
}

/// From a zone, connections reach just these pods.
fn from_zone(place: &Place, zone: &str, pods: &[u8]) {
    let _node = be(place, zone);
    VIPS.iter().for_each(|vip| place.goes(From::Outside, (vip, 80), pods, Masqueraded));
}

/// A place that can be a node of any zone, without a controller.
pub(crate) fn nodes_of_zones(name: &str) -> Place {
    let place = Place::new(name);
    put_nodes(&place);
    place
}

fn cluster(name: &str) -> (Place, Proxy) {
    let place = nodes_of_zones(name);
    let controller =
        place.world.part(&["controller", "--bind-address", "127.0.0.1:0", "--leader-elect=false"]);
    (place, controller)
}

#[test]
fn prefer_close_stays_in_the_zone_and_blackholes_nobody() {
    toolbox::in_own_namespaces!();
    // KEP-4444, e2e: hints are populated; requests of a zone with pods stay there; others go to any pod.
    let (place, _controller) = cluster("prefer-close");
    place.world.put_all((1..=4).map(|index| pod(index, ZONES[usize::from(index % 2)])).collect());
    for value in ["PreferClose", "PreferSameZone"] {
        put_service(&place, Some(value), None);
        until_hinted(&place, &[("za", &[2, 4]), ("zb", &[1, 3])]);
        from_zone(&place, "za", &[2, 4]);
        from_zone(&place, "zb", &[1, 3]);
        from_zone(&place, "zc", &[1, 2, 3, 4]);
        put_service(&place, None, None);
        until_hinted(&place, &[("", &[1, 2, 3, 4])]);
        from_zone(&place, "za", &[1, 2, 3, 4]);
    }
}

#[test]
fn prefer_same_node_goes_to_the_node_then_the_zone_then_anywhere() {
    toolbox::in_own_namespaces!();
    let (place, _controller) = cluster("prefer-node");
    // A second node in za, without a pod.
    place.world.put(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-za2", "labels": {"topology.kubernetes.io/zone": "za"}},
        "status": {"addresses": [{"type": "InternalIP", "address": OWN[0]}, {"type": "InternalIP", "address": OWN[1]}]}}));
    place.world.put_all(vec![pod(1, "za"), pod(2, "za"), pod(3, "zb")]);
    put_service(&place, Some("PreferSameNode"), None);
    until_hinted(&place, &[("za", &[1, 2]), ("zb", &[3])]);
    from_zone(&place, "za", &[1, 2]);
    from_zone(&place, "za2", &[1, 2]);
    from_zone(&place, "zb", &[3]);
    from_zone(&place, "zc", &[1, 2, 3]);
}

#[test]
fn require_and_prefer_are_reachable_from_each_zone_as_they_promise() {
    toolbox::in_own_namespaces!();
    // Seed 003, Traffic Reliability Test.
    let (mut place, _controller) = cluster("reliability");
    (11..=25).for_each(|index| place.site.add_pod(index));
    // Five pods for each of three zones: above the starting threshold of nine and its padding.
    let zone_of = |index: u8| ZONES[usize::from(index % 3)];
    let pods: Vec<Value> = (11..=25).map(|index| pod(index, zone_of(index))).collect();
    place.world.put_all(pods);
    let of = |zone: &str| (11..=25).filter(|index| zone_of(*index) == zone).collect::<Vec<u8>>();
    let zones = ZONES.map(|zone| (zone, of(zone)));
    for value in ["Prefer", "Require"] {
        put_service(&place, None, Some(value));
        until_hinted(&place, &zones.each_ref().map(|(zone, pods)| (*zone, pods.as_slice())));
        zones.iter().for_each(|(zone, pods)| from_zone(&place, zone, pods));
    }
    // A zone loses its pods: under Require nobody is there for it, under Prefer everybody helps.
    zones[2].1.iter().for_each(|index| place.world.remove("Pod", "ns", &format!("web-{index}")));
    until_hinted(&place, &[("za", &zones[0].1), ("zb", &zones[1].1)]);
    from_zone(&place, "za", &zones[0].1);
    let node = be(&place, "zc");
    VIPS.iter().for_each(|vip| place.is_refused(From::Outside, (vip, 80)));
    drop(node);
    put_service(&place, None, Some("Prefer"));
    let is_complete = |v6| {
        let hints = hinted(&place, v6);
        hints.get("zc").is_none_or(|pods| !pods.is_empty()) && hints.values().flatten().count() >= 10
    };
    place.world.until("hints under Prefer", || is_complete(false) && is_complete(true));
    for zone in ZONES {
        let _node = be(&place, zone);
        for vip in VIPS {
            let hints = hinted(&place, vip.contains(':'));
            let all: BTreeSet<u8> = hints.values().flatten().copied().collect();
            // Every zone reaches the pods that are meant for it, or all if none is.
            let meant: Vec<u8> = hints.get(zone).unwrap_or(&all).iter().copied().collect();
            place.goes(From::Outside, (vip, 80), &meant, Masqueraded);
        }
    }
}

#[test]
fn aggressive_rolling_update_under_prefer_fails_nobody_and_ends_as_expected() {
    toolbox::in_own_namespaces!();
    // Seed 003, Rolling Update Test.
    let (mut place, _controller) = cluster("rolling-prefer");
    (11..=40).for_each(|index| place.site.add_pod(index));
    let zone_of = |index: u8| ZONES[usize::from(index % 3)];
    put_service(&place, None, Some("Prefer"));
    place.world.put_all((11..=25).map(|index| pod(index, zone_of(index))).collect());
    let of = |zone: &str, first: u8| (first..first + 15).filter(|i| zone_of(*i) == zone).collect::<Vec<u8>>();
    let until_spread = |first: u8| {
        let zones = ZONES.map(|zone| (zone, of(zone, first)));
        until_hinted(&place, &zones.each_ref().map(|(zone, pods)| (*zone, pods.as_slice())));
    };
    until_spread(11);
    let node = be(&place, "za");
    let (made, failed) = meanwhile(&place, || {
        // A third of all pods at a time: new ones come, old ones end and go.
        for step in 0..3 {
            let old = 11 + step * 5..16 + step * 5;
            place.world.put_all(old.clone().map(|index| pod(index + 15, zone_of(index + 15))).collect());
            let ending = old.clone().map(|index| {
                let mut ending = pod(index, zone_of(index));
                ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                ending["metadata"]["deletionGracePeriodSeconds"] = 30.into();
                ending
            });
            place.world.put_all(ending.collect());
            std::thread::sleep(std::time::Duration::from_millis(300));
            old.for_each(|index| place.world.remove("Pod", "ns", &format!("web-{index}")));
        }
        until_spread(26);
    });
    assert!(made > 50, "{made}");
    assert_eq!(failed, 0, "of {made}");
    drop(node);
    ZONES.iter().for_each(|zone| from_zone(&place, zone, &of(zone, 26)));
}

/// A time so many seconds from now, as the API writes it.
fn in_seconds(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_seconds(now.as_secs() as i64 + seconds).to_string()
}

/// A pod that became ready so many seconds ago, with a capacity.
fn weighed_pod(index: u8, zone: &str, capacity: &str, ready_for: i64) -> Value {
    let mut pod = pod(index, zone);
    pod["metadata"]["annotations"] = json!({"zoneward.dev/capacity": capacity});
    pod["status"]["conditions"][0]["lastTransitionTime"] = in_seconds(-ready_for).into();
    pod
}

fn annotation(place: &Place, key: &str) -> Vec<String> {
    let slices = place.world.list("EndpointSlice");
    let texts = slices.iter().filter_map(|slice| slice["metadata"]["annotations"][key].as_str());
    texts.map(str::to_owned).collect()
}

fn versions(place: &Place) -> Vec<String> {
    let slices = place.world.list("EndpointSlice");
    slices.iter().map(|slice| slice["metadata"]["resourceVersion"].to_string()).collect()
}

/// The share of each pod in connections to a cluster IP.
fn shares(place: &Place, vip: &str, connections: u32) -> BTreeMap<u8, f64> {
    let mut shares = BTreeMap::new();
    for _ in 0..connections {
        *shares.entry(place.answering(From::Outside, (vip, 80))).or_default() += 1.0 / f64::from(connections);
    }
    shares
}

#[test]
fn capacity_and_slow_start_weigh_connections() {
    toolbox::in_own_namespaces!();
    let (place, _controller) = cluster("shares");
    place.world.put_all(vec![weighed_pod(1, "za", "2", 7_200), weighed_pod(2, "zb", "1", 7_200)]);
    let slow_start = |duration: &str| {
        let mut web = service("web", &VIPS);
        web["metadata"]["uid"] = "web".into();
        web["metadata"]["annotations"] = json!({"zoneward.dev/slow-start": duration});
        web["spec"]["selector"] = json!({"app": "web"});
        web["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        web["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        place.world.put(web);
    };
    slow_start("1h");
    place.world.put(weighed_pod(3, "zc", "1", 0));
    place.world.until("capacities and a new endpoint", || {
        let all = [annotation(&place, "zoneward.dev/capacity"), annotation(&place, "zoneward.dev/warming")];
        all.iter().all(|texts| texts.len() == 2)
    });
    let node = be(&place, "za");
    for vip in VIPS {
        // Capacities 2 and 1, and a tenth of 1: five standard deviations of 300 connections.
        let shares = shares(&place, vip, 300);
        for (pod, share) in [(1, 2.0 / 3.1), (2, 1.0 / 3.1), (3, 0.1 / 3.1)] {
            let (seen, most) =
                (shares.get(&pod).copied().unwrap_or(0.0), 5.0 * (share * (1.0 - share) / 300.0_f64).sqrt());
            assert!((seen - share).abs() <= most + 1.0 / 256.0, "{vip}: pod {pod}: {seen}, planned {share}");
        }
    }
    // The node computes the steps by its own clock: after one write the share grows to a quarter without another.
    place.world.put(weighed_pod(3, "zc", "1", 0));
    slow_start("8s");
    place.world.until("the shorter start", || {
        annotation(&place, "zoneward.dev/warming").iter().filter(|text| text.starts_with("8s ")).count() == 2
    });
    let written = versions(&place);
    place
        .world
        .until("a warm endpoint", || shares(&place, VIPS[0], 200).get(&3).is_some_and(|share| *share > 0.2));
    assert_eq!(versions(&place), written);
    drop(node);
}

#[test]
fn drained_zone_gets_no_connections_until_the_drain_ends() {
    toolbox::in_own_namespaces!();
    let (place, _controller) = cluster("drained");
    place.world.put_all((1..=4).map(|index| pod(index, ZONES[usize::from(index % 2)])).collect());
    put_service(&place, Some("PreferSameZone"), None);
    until_hinted(&place, &[("za", &[2, 4]), ("zb", &[1, 3])]);
    from_zone(&place, "za", &[2, 4]);
    let drain = |percent: u32| {
        place.world.put(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "ZoneDrain",
            "metadata": {"name": format!("za-{percent}"), "uid": format!("za-{percent}"), "generation": 1,
                "creationTimestamp": in_seconds(-1)},
            "spec": {"zone": "za", "over": "0s", "percent": percent, "expiresAt": in_seconds(3_600)}}));
        place.world.until("slices with the drain", || {
            let wanted = format!("za={percent}%@");
            annotation(&place, "zoneward.dev/drain").iter().filter(|text| text.starts_with(&wanted)).count()
                == 2
        });
    };
    drain(100);
    from_zone(&place, "za", &[1, 3]);
    from_zone(&place, "zb", &[1, 3]);
    place.world.remove("ZoneDrain", "", "za-100");
    place.world.until("slices without it", || annotation(&place, "zoneward.dev/drain").is_empty());
    from_zone(&place, "za", &[2, 4]);
    // A part of the traffic, as in a rehearsal.
    drain(50);
    let _node = be(&place, "za");
    let moved: f64 = shares(&place, VIPS[0], 300)
        .into_iter()
        .filter(|(pod, _)| pod % 2 == 1)
        .map(|(_, share)| share)
        .sum();
    assert!((moved - 0.5).abs() < 0.15, "{moved}");
}
