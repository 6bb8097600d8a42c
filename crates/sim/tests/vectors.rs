//! The published tool's own output, for every algorithm that it has: metrics within 1e-9, statuses and groups exact.

use std::collections::BTreeMap;

use serde_json::Value;
use sim::metrics::measure;
use sim::{Algorithm, AlgorithmSettings, SimulationInput, SliceGroup, Zone};

const TOLERANCE: f64 = 1e-9;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/simulator.json");
    let text = std::fs::read_to_string(path).expect("vectors/simulator.json is in the repository");
    serde_json::from_str(&text).expect("it is JSON")
}

fn input(value: &Value) -> SimulationInput {
    let zone = |z: &Value| Zone {
        name: z["name"].as_str().expect("name").into(),
        nodes: z["nodes"].as_u64().expect("nodes"),
        endpoints: z["endpoints"].as_u64().expect("endpoints"),
    };
    let zones = value["zones"].as_array().expect("zones").iter().map(zone).collect();
    SimulationInput::new(value["id"].as_str().expect("id"), zones).expect("a good input")
}

type Shape = BTreeMap<String, (BTreeMap<String, u64>, BTreeMap<String, f64>)>;

fn published(result: &Value) -> Shape {
    let counts = |g: &Value| -> BTreeMap<String, u64> {
        let entries = g["composition"].as_object().expect("composition").iter();
        entries.map(|(zone, n)| (zone.clone(), n.as_u64().expect("count"))).collect()
    };
    let weights = |g: &Value| -> BTreeMap<String, f64> {
        let entries = g["zone_weights"].as_object().expect("weights").iter();
        entries.map(|(zone, w)| (zone.clone(), w.as_f64().expect("weight"))).collect()
    };
    let groups = result["groups"].as_array().expect("groups").iter();
    groups.map(|g| (g["label"].as_str().expect("label").to_owned(), (counts(g), weights(g)))).collect()
}

fn ours(groups: &[SliceGroup], zones: &[Zone]) -> Shape {
    let name = |at: usize| zones[at].name.to_string();
    let counts = |g: &SliceGroup| {
        let some = g.composition.iter().enumerate().filter(|(_, n)| **n > 0);
        some.map(|(at, n)| (name(at), *n)).collect()
    };
    let weights =
        |g: &SliceGroup| g.weights.iter().enumerate().filter_map(|(at, w)| Some((name(at), (*w)?))).collect();
    groups.iter().map(|g| (g.label.to_string(), (counts(g), weights(g)))).collect()
}

/// Weights may differ in the last bit: serde_json reads numbers quickly, not to the last bit.
fn assert_same(found: &Shape, wanted: &Shape, what: &str) {
    let rounded = |shape: &Shape| -> Vec<String> {
        let weights =
            |w: &BTreeMap<String, f64>| -> Vec<_> { w.iter().map(|(z, w)| format!("{z}={w:.12}")).collect() };
        shape.iter().map(|(label, (counts, w))| format!("{label} {counts:?} {:?}", weights(w))).collect()
    };
    assert_eq!(rounded(found), rounded(wanted), "{what}");
}

#[test]
fn metrics_statuses_and_groups_are_those_of_the_published_tool() {
    let vectors = vectors();
    let settings = AlgorithmSettings::default();
    let mut rows = 0;
    for value in vectors["inputs"].as_array().expect("inputs") {
        let input = input(value);
        for (name, result) in value["results"].as_object().expect("results") {
            let algorithm: Algorithm = name.parse().expect("an algorithm that we have");
            let groups = algorithm.groups(input.zones(), &settings);
            let what = format!("{} {name}", input.id());
            let (found, wanted) = (ours(&groups, input.zones()), published(result));
            assert_same(&found, &wanted, &what);
            let metrics = measure(input.zones(), &groups, &settings.weights);
            let status = if metrics.is_some() { "ok" } else { "invalid" };
            assert_eq!(status, result["status"], "{what}");
            rows += 1;
            let Some(m) = metrics else { continue };
            let figures = [
                ("in_zone_pct", m.in_zone),
                ("max_overload_pct", m.max_overload),
                ("mean_overload_pct", m.mean_overload),
                ("sd_deviation", m.deviation),
                ("slices", m.slices as f64),
                ("slice_score", m.slice_score),
                ("overload_score", m.overload_score),
                ("total_score", m.total),
            ];
            for (figure, found) in figures {
                let wanted = result[figure].as_f64().expect("a number");
                assert!((found - wanted).abs() <= TOLERANCE, "{what} {figure}: {found} instead of {wanted}");
            }
        }
    }
    assert!(rows > 1100, "only {rows} rows were compared");
}
