//! Capacities, slow start and drains: from Pods to slices, and from slices to the weights of a node.

use fixtures::{node, object};
use model::{Family, Object, ObjectKey, Snapshot, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::PlanningConfig;
use crate::feature_gates::FeatureGates;
use crate::hints::Hysteresis;
use crate::planner::Planner;
use crate::select::{NodeView, select};
use crate::slices::{SlicePlan, TriggerTimes};

const START: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(START + seconds)
}

/// Three zones with a node each, and a Service.
fn cluster(annotations: &Value) -> Snapshot {
    let mut snapshot = fixtures::snapshot(["za", "zb", "zc"].map(|zone| node(&format!("n-{zone}"), zone)));
    snapshot.apply(object(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations},
            "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
                "ports": [{"name": "p", "port": 80, "targetPort": 8080}]}})));
    snapshot
}

fn pod(snapshot: &mut Snapshot, number: u8, zone: &str, capacity: Option<&str>, ready_at: i64) {
    let annotations = capacity.map_or(json!({}), |capacity| json!({"zoneward.dev/capacity": capacity}));
    snapshot.apply(object(&json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": format!("web-{number}"), "uid": format!("p{number}"),
                "labels": {"app": "web"}, "annotations": annotations},
            "spec": {"nodeName": format!("n-{zone}")},
            "status": {"podIPs": [{"ip": format!("10.0.0.{number}")}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(ready_at).to_string()}]}})));
}

fn plan(snapshot: &Snapshot, drains: &[(Name, DrainWindow)]) -> SlicePlan {
    let mut planner = Planner::new(snapshot, PlanningConfig::without_flags());
    planner.drains = Some(crate::drain::ZoneDrains::new(drains.to_vec()));
    let (service, stored) = snapshot.services().next().expect("there is one");
    let hysteresis = |family| Hysteresis::from_slices(family, stored);
    planner.plan(snapshot, service, stored, &TriggerTimes::default(), hysteresis).0
}

/// What the controller says of Spill.
fn programmed(snapshot: &Snapshot) -> String {
    let planner = Planner::new(snapshot, PlanningConfig::without_flags());
    let (service, stored) = snapshot.services().next().expect("there is one");
    let plan = planner.plan(snapshot, service, stored, &TriggerTimes::default(), |_| Hysteresis::default());
    plan.1.into_iter().flat_map(|outcome| outcome.notices).map(|notice| notice.message).collect()
}

/// Plans, stores what is written, and returns the number of writes.
fn sync(snapshot: &mut Snapshot, drains: &[(Name, DrainWindow)]) -> usize {
    let plan = plan(snapshot, drains);
    let writes = plan.creates.len() + plan.updates.len();
    let service = snapshot.services().next().expect("there is one").0.clone();
    let created = plan.creates.into_iter().enumerate().map(|(at, content)| (format!("web-{at}"), content));
    let updated = plan.updates.into_iter().map(|(key, content)| (key.name.to_string(), content));
    for (name, content) in created.chain(updated).collect::<Vec<_>>() {
        snapshot.apply(Object::Slice(Slice::owned_by(&service, &name, content).into()));
    }
    writes
}

fn annotation_of(snapshot: &Snapshot, key: &str) -> Option<String> {
    let slice = snapshot.slice(&ObjectKey::new(&"shop".into(), &"web-0".into())).expect("it was written");
    slice.content.annotation(key).map(ToString::to_string)
}

/// The share of each endpoint, by the last number of its address, in percent.
fn shares(snapshot: &mut Snapshot, zone: &str, seconds: i64) -> Vec<(u8, f64)> {
    advance(snapshot, at(seconds));
    let (service, slices) = snapshot.services().next().expect("there is one");
    let name = format!("n-{zone}");
    let node = NodeView { name: &name, zone: Some(zone), gates: FeatureGates::ALL };
    let selected =
        select(service, slices, Family::V4, &node).remove(0).cluster.expect("it applies").endpoints;
    let sum: f64 = selected.iter().map(|endpoint| endpoint.weight).sum();
    let share = |endpoint: &crate::select::SelectedEndpoint| {
        let IpAddr::V4(ip) = endpoint.address.ip() else { panic!("IPv4") };
        (ip.octets()[3], (endpoint.weight / sum * 1_000.0).round() / 10.0)
    };
    selected.iter().map(share).filter(|(_, share)| *share > 0.0).collect()
}

#[test]
fn capacities_of_pods_weigh_endpoints_and_bad_ones_count_as_one() {
    let mut snapshot = cluster(&json!({}));
    pod(&mut snapshot, 1, "za", Some("2.5"), 0);
    pod(&mut snapshot, 2, "zb", Some("0.5"), 0);
    pod(&mut snapshot, 3, "zc", Some("fast"), 0);
    pod(&mut snapshot, 4, "zc", None, 0);
    let notices = plan(&snapshot, &[]).notices;
    assert_eq!(notices.len(), 1);
    let wanted = "Pod web-3 has zoneward.dev/capacity: \"fast\", which counts as 1: expected a number from 0.01 to 100 \
                  with up to three decimal places";
    assert_eq!((notices[0].reason, notices[0].message.as_str()), (BAD_CAPACITY, wanted));
    assert_eq!(sync(&mut snapshot, &[]), 1);
    let text = annotation_of(&snapshot, annotation::CAPACITY);
    assert_eq!(text.as_deref(), Some("10.0.0.1=2.5,10.0.0.2=0.5"));
    assert_eq!(sync(&mut snapshot, &[]), 0, "what is stored is right");
    assert_eq!(shares(&mut snapshot, "za", 0), [(1, 50.0), (2, 10.0), (3, 20.0), (4, 20.0)]);
    pod(&mut snapshot, 1, "za", None, 0);
    pod(&mut snapshot, 2, "zb", None, 0);
    assert_eq!(sync(&mut snapshot, &[]), 1, "the annotation goes with its cause");
    assert_eq!(annotation_of(&snapshot, annotation::CAPACITY), None);
    assert_eq!(shares(&mut snapshot, "za", 0), [(1, 25.0), (2, 25.0), (3, 25.0), (4, 25.0)]);
    for text in ["0", "-1", "1e3", "101", "NaN", "", "1.2345", "0.001"] {
        assert_eq!(parse_capacity(text), None, "{text}");
    }
    assert_eq!((parse_capacity("0.01"), parse_capacity("100")), (Some(10), Some(100_000)));
}

#[test]
fn under_spill_a_zone_keeps_traffic_by_the_capacity_of_its_endpoints() {
    let spill = json!({"zoneward.dev/traffic-distribution": "Spill"});
    let mut snapshot = cluster(&spill);
    for (number, zone) in [(1, "za"), (2, "zb"), (3, "zb"), (4, "zc"), (5, "zc")] {
        pod(&mut snapshot, number, zone, None, 0);
    }
    sync(&mut snapshot, &[]);
    let (_, kept) = shares(&mut snapshot, "za", 0)[0];
    assert!((kept - 60.0).abs() < 1.0, "one of five endpoints for a third of the demand: {kept}");
    let text = programmed(&snapshot);
    assert!(
        text.contains("za keeps 60 % with 1 endpoint, the rest") && text.contains("; 5 ready endpoints,"),
        "{text}"
    );
    pod(&mut snapshot, 1, "za", Some("1.5"), 0);
    let text = programmed(&snapshot);
    let wanted = "za keeps 81 % with 1 endpoint of capacity 1.5, the rest goes to zones with spare capacity; 5 ready \
                  endpoints of capacity 5.5,";
    assert!(text.contains(wanted), "{text}");
    pod(&mut snapshot, 1, "za", Some("2"), 0);
    let text = programmed(&snapshot);
    assert!(text.contains("all traffic stays in its zone; 5 ready endpoints of capacity 6,"), "{text}");
    sync(&mut snapshot, &[]);
    assert_eq!(shares(&mut snapshot, "za", 0), [(1, 100.0)], "as much as the two of another zone");
}

#[test]
fn a_new_endpoint_warms_up_in_eight_steps_after_one_write() {
    let mut snapshot = cluster(&json!({"zoneward.dev/slow-start": "80s"}));
    pod(&mut snapshot, 1, "za", None, -1_000);
    sync(&mut snapshot, &[]);
    pod(&mut snapshot, 2, "za", None, 0);
    assert_eq!(sync(&mut snapshot, &[]), 1);
    let text = annotation_of(&snapshot, annotation::WARMING);
    assert_eq!(text, Some(format!("80s 10.0.0.2={START}")));
    assert_eq!(sync(&mut snapshot, &[]), 0);
    let mut seen = Vec::new();
    let mut now = 0;
    while let Some(next) = advance(&mut snapshot, at(now)).next {
        let (_, slices) = snapshot.services().next().expect("there is one");
        seen.push(slices[0].capacity("10.0.0.2".parse().expect("an address")));
        assert_eq!(next, at(now + 10));
        now += 10;
    }
    assert_eq!(seen, [100, 212, 325, 437, 550, 662, 775, 887]);
    assert_eq!(now, 80);
    assert_eq!(shares(&mut snapshot, "za", 80), [(1, 50.0), (2, 50.0)]);
    assert_eq!(sync(&mut snapshot, &[]), 0, "its end needs no write");
    let text = annotation_of(&snapshot, annotation::SLOW_START);
    assert_eq!(text, None, "that one is the Service's");
}

#[test]
fn under_spill_the_zone_of_a_cold_endpoint_spills_until_it_is_warm() {
    let annotations = json!({"zoneward.dev/traffic-distribution": "Spill", "zoneward.dev/slow-start": "80s"});
    let mut snapshot = cluster(&annotations);
    for (number, zone) in [(2, "zb"), (3, "zb"), (4, "zc"), (5, "zc"), (6, "za")] {
        pod(&mut snapshot, number, zone, None, -1_000);
    }
    sync(&mut snapshot, &[]);
    pod(&mut snapshot, 1, "za", None, 0);
    sync(&mut snapshot, &[]);
    let own = |shares: Vec<(u8, f64)>| -> f64 {
        shares.iter().filter(|(number, _)| [1, 6].contains(number)).map(|(_, share)| share).sum()
    };
    let mut kept: Vec<f64> = (0..9).map(|step| own(shares(&mut snapshot, "za", step * 10))).collect();
    assert!(kept[0] > 60.0 && kept[0] < 70.0, "1.1 of 5.1 endpoints for a third of the demand: {kept:?}");
    assert_eq!(kept.pop(), Some(100.0));
    assert!(kept.is_sorted(), "{kept:?}");
}

#[test]
fn a_drain_moves_traffic_in_ten_steps_and_ends_by_itself() {
    let window = DrainWindow { percent: 100, start: START, over_seconds: 100, until: START + 1_000 };
    assert_eq!(window.to_string().parse(), Ok(window));
    for mechanism in ["", "Spill", "PreferSameZone"] {
        let annotations = match mechanism {
            "" => json!({}),
            name => json!({"zoneward.dev/traffic-distribution": name}),
        };
        let mut snapshot = cluster(&annotations);
        for (number, zone) in [(1, "za"), (2, "zb"), (3, "zc")] {
            pod(&mut snapshot, number, zone, None, -1_000);
        }
        sync(&mut snapshot, &[]);
        let before = shares(&mut snapshot, "za", -1);
        assert_eq!(sync(&mut snapshot, &[("za".into(), window)]), 1);
        assert_eq!(shares(&mut snapshot, "za", -1), before, "{mechanism}: it has not started");
        let own = |shares: Vec<(u8, f64)>| -> f64 {
            shares.iter().filter(|(number, _)| *number == 1).map(|(_, share)| *share).sum()
        };
        let all = own(before.clone());
        for step in 0..10 {
            let left = own(shares(&mut snapshot, "za", step * 10));
            let planned = all * (1.0 - 0.1 * (step + 1) as f64);
            assert!((left - planned).abs() < 0.2, "{mechanism}, step {step}: {left} of {planned}");
        }
        assert_eq!(shares(&mut snapshot, "za", 999), [(2, 50.0), (3, 50.0)], "{mechanism}");
        assert_eq!(shares(&mut snapshot, "za", 1_000), before, "{mechanism}: it has ended");
        assert_eq!(shares(&mut snapshot, "za", 500).len(), 2);
        assert_eq!(sync(&mut snapshot, &[]), 1, "an end before its time is one write");
        assert_eq!(shares(&mut snapshot, "za", 500), before, "{mechanism}");
    }
}

#[test]
fn a_zone_that_has_the_only_endpoints_keeps_its_traffic() {
    let window = DrainWindow { percent: 100, start: START, over_seconds: 0, until: START + 1_000 };
    let mut snapshot = cluster(&json!({}));
    pod(&mut snapshot, 1, "za", None, 0);
    sync(&mut snapshot, &[("za".into(), window)]);
    assert_eq!(shares(&mut snapshot, "zb", 1), [(1, 100.0)]);
    let mut snapshot = cluster(&json!({"endpointslice.kubernetes.io/same-zone": "Require"}));
    pod(&mut snapshot, 1, "za", None, 0);
    pod(&mut snapshot, 2, "zb", None, 0);
    sync(&mut snapshot, &[("za".into(), window)]);
    assert_eq!(shares(&mut snapshot, "za", 1), [(1, 100.0)], "its traffic must stay");
}

#[test]
fn annotations_that_cannot_be_read_change_nothing() {
    for (key, text) in [
        (annotation::CAPACITY, "10.0.0.1,=,10.0.0.1=x,300.0.0.1=2"),
        (annotation::WARMING, "soon 10.0.0.1=5"),
        (annotation::WARMING, "0s 10.0.0.1=5"),
        (annotation::DRAIN, "za=100%@x+1..2,za,=,za=101%@0+0..99999999999"),
    ] {
        let mut snapshot = cluster(&json!({}));
        pod(&mut snapshot, 1, "za", None, 0);
        sync(&mut snapshot, &[]);
        let (service, slices) = snapshot.services().next().expect("there is one");
        let mut content = slices[0].content.clone();
        content.annotations = [(key, text)].into_iter().collect();
        let slice = Slice::owned_by(service, "web-0", content);
        snapshot.apply(Object::Slice(slice.into()));
        assert_eq!(advance(&mut snapshot, at(0)), ShareChanges::default(), "{key}: {text}");
    }
}
