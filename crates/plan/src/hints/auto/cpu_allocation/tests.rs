//! The shared test cases that are about single steps of Auto.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn of_kind(kind: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/hints-auto.json");
    let text = std::fs::read_to_string(path).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let found: Vec<Value> =
        all["vectors"].as_array().unwrap().iter().filter(|v| v["kind"] == kind).cloned().collect();
    assert!(!found.is_empty(), "no vector of kind {kind}");
    found
}

/// The zones of some objects keyed by zone, in the order of their names.
fn zones(objects: &[&Value]) -> Vec<String> {
    let names = objects.iter().filter_map(|o| o.as_object()).flat_map(|o| o.keys());
    let mut names: Vec<String> = names.cloned().collect();
    names.sort();
    names.dedup();
    names
}

fn by_zone(names: &[String], counts: &[usize]) -> Value {
    let counts = names.iter().zip(counts).filter(|(_, n)| **n > 0);
    json!(counts.collect::<BTreeMap<_, _>>())
}

fn numbers(names: &[String], by_zone: &Value) -> Vec<usize> {
    names.iter().map(|z| by_zone[z].as_u64().unwrap_or(0) as usize).collect()
}

/// serde_json reads a float to within one unit in the last place, unless asked for more.
fn assert_read_as(read: &Value, ours: f64, what: &str) {
    let apart = read.as_f64().unwrap().to_bits().abs_diff(ours.to_bits());
    assert!(apart <= 1, "{what}: {read} and {ours}");
}

#[test]
fn allocations_follow_the_published_formula() {
    for vector in of_kind("allocation") {
        let cpu = vector["input"]["allocatableCPU"].as_object().unwrap();
        let total: f64 = cpu.values().map(|c| c.as_f64().unwrap()).sum();
        let ratios: Vec<(usize, f64)> =
            cpu.values().enumerate().map(|(z, c)| (z, c.as_f64().unwrap() / total)).collect();
        let ready = vector["input"]["readyEndpoints"].as_u64().unwrap() as usize;
        let allocations = allocate(&ratios, ready, OVERLOAD).unwrap();
        for (zone, ours) in cpu.keys().zip(&allocations) {
            let expect = &vector["expect"]["allocations"][zone];
            let what = format!("{} {zone}", vector["id"]);
            assert_eq!(json!(ours.minimum), expect["minimum"], "{what}");
            assert_eq!(json!(ours.maximum), expect["maximum"], "{what}");
            assert_read_as(&expect["desired"], ours.desired, &what);
        }
    }
}

#[test]
fn doubles_round_as_upstream_rounds_them() {
    // Semantics A2: 0.2 x 6 is a little more than 1.2, so its minimum is 2.
    assert_eq!(needed(0.2, 6), 2);
    // Two equal zones with 5 endpoints need 3 + 3.
    assert_eq!(allocate(&[(0, 0.5), (1, 0.5)], 5, OVERLOAD), Err(Shortage::Minimum));
    // [4, 4, 3] over three equal zones (kubernetes#122437): 4 x 3 is more than 11.
    let third = 1.0 / 3.0;
    assert_eq!(allocate(&[(0, third), (1, third), (2, third)], 11, OVERLOAD), Err(Shortage::Minimum));
    assert_eq!(allocate(&[(0, 0.5), (1, 0.5)], 1, OVERLOAD), Err(Shortage::Zones));
}

#[test]
fn zones_give_and_receive() {
    for vector in of_kind("giving-receiving") {
        let (wanted, has) = (&vector["input"]["allocations"], &vector["input"]["hintsPerZone"]);
        let names = zones(&[wanted, has]);
        let allocation = |(zone, name): (usize, &String)| ZoneAllocation {
            zone,
            minimum: 0,
            desired: wanted[name]["desired"].as_f64().unwrap(),
            maximum: 0,
        };
        let allocations: Vec<ZoneAllocation> = names.iter().enumerate().map(allocation).collect();
        let (giving, receiving) = giving_and_receiving(&allocations, &numbers(&names, has));
        assert_eq!(by_zone(&names, &giving), vector["expect"]["giving"], "{}", vector["id"]);
        assert_eq!(by_zone(&names, &receiving), vector["expect"]["receiving"], "{}", vector["id"]);
    }
}

#[test]
fn endpoints_are_re_hinted_in_slice_order() {
    for vector in of_kind("redistribute") {
        let input = &vector["input"];
        let names =
            zones(&[&input["givingZones"], &input["receivingZones"], &vector["expect"]["changesPerZone"]]);
        let number = |zone: &Value| names.iter().position(|n| zone == n.as_str());
        let endpoints =
            input["slices"].as_array().unwrap().iter().flat_map(|s| s["endpoints"].as_array().unwrap());
        let ready = endpoints.filter(|e| e["conditions"]["ready"] == true);
        let before: Vec<Option<usize>> = ready.map(|e| number(&e["zone"])).collect();
        let mut after = before.clone();
        let (mut giving, mut receiving) =
            (numbers(&names, &input["givingZones"]), numbers(&names, &input["receivingZones"]));
        redistribute(&mut after, &mut giving, &mut receiving);
        let mut changes: BTreeMap<&str, i64> = BTreeMap::new();
        for (from, to) in before.iter().zip(&after).filter(|(from, to)| from != to) {
            *changes.entry(&names[from.unwrap()]).or_default() -= 1;
            *changes.entry(&names[to.unwrap()]).or_default() += 1;
        }
        assert_eq!(json!(changes), vector["expect"]["changesPerZone"], "{}", vector["id"]);
    }
}

#[test]
fn endpoints_of_giving_zones_go_to_receiving_zones_until_the_quotas_are_spent() {
    // Zones a to d; two of a's three go, to b first, and one of c's.
    let mut serves = [Some(0), None, Some(2), Some(0), Some(0), Some(3)];
    redistribute(&mut serves, &mut [2, 0, 1, 0], &mut [0, 2, 0, 1]);
    assert_eq!(serves, [Some(1), None, Some(1), Some(3), Some(0), Some(3)]);
}

#[test]
fn hints_set_under_other_ratios_may_leave_a_zone_short() {
    for vector in of_kind("overloaded") {
        let input = &vector["input"];
        let counts: Vec<(&str, usize)> = input["hintsPerZone"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(z, n)| (z.as_str(), n.as_u64().unwrap() as usize))
            .collect();
        let ratios: Vec<(&str, f64)> = input["cpuRatiosByZone"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(z, r)| (z.as_str(), r.as_f64().unwrap()))
            .collect();
        assert_eq!(
            is_overloaded(&counts, &ratios),
            vector["expect"]["overloaded"] == true,
            "{}",
            vector["id"]
        );
    }
}
