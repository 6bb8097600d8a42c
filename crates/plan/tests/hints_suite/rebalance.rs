//! `local` against the published tool's own output: the groups of every row, exactly.

use std::collections::BTreeMap;

use plan::hints::same_zone::rebalance::{ZoneLoad, rebalance_zones};
use serde_json::Value;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/simulator.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("vectors/simulator.json is in the repository"))
        .expect("it is JSON")
}

/// Zone by name, in the order of the names' bytes.
fn zones(input: &Value) -> BTreeMap<&str, ZoneLoad> {
    let zones = input["zones"].as_array().expect("zones");
    let load = |z: &Value| ZoneLoad {
        nodes: z["nodes"].as_u64().expect("nodes"),
        endpoints: z["endpoints"].as_u64().expect("endpoints") as usize,
    };
    zones.iter().map(|z| (z["name"].as_str().expect("name"), load(z))).collect()
}

/// label -> giver -> endpoints
type Composition<'a> = BTreeMap<&'a str, BTreeMap<&'a str, u64>>;

fn published(result: &Value) -> Composition<'_> {
    fn pairs(g: &Value) -> impl Iterator<Item = (&str, u64)> {
        let composition = g["composition"].as_object().expect("composition");
        composition.iter().map(|(z, n)| (z.as_str(), n.as_u64().expect("count"))).filter(|(_, n)| *n > 0)
    }
    let groups = result["groups"].as_array().expect("groups");
    groups.iter().map(|g| (g["label"].as_str().expect("label"), pairs(g).collect())).collect()
}

fn ours<'a>(zones: &BTreeMap<&'a str, ZoneLoad>, start: usize, threshold: f64) -> Composition<'a> {
    let names: Vec<&str> = zones.keys().copied().collect();
    let loads: Vec<ZoneLoad> = zones.values().copied().collect();
    let by_giver = |counts: &[usize]| {
        let counts = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        counts.map(|(giver, n)| (names[giver], *n as u64)).collect()
    };
    match rebalance_zones(&loads, start, threshold) {
        Some(groups) => groups.iter().enumerate().map(|(z, counts)| (names[z], by_giver(counts))).collect(),
        None => {
            let all: Vec<usize> = loads.iter().map(|z| z.endpoints).collect();
            [("global", by_giver(&all))].into()
        }
    }
}

#[test]
fn groups_are_those_of_the_published_tool() {
    let vectors = vectors();
    let threshold = vectors["threshold"].as_f64().expect("threshold");
    let starts = [("local", 3), ("local-1x", 1), ("local-2x", 2), ("local-4x", 4), ("local-5x", 5)];
    let mut rows = 0;
    for input in vectors["inputs"].as_array().expect("inputs") {
        let zones = zones(input);
        for (algorithm, start) in starts {
            let result = &input["results"][algorithm];
            assert_eq!(ours(&zones, start, threshold), published(result), "{} {algorithm}", input["id"]);
            rows += 1;
        }
    }
    assert!(rows >= 500, "only {rows} rows were compared");
}
