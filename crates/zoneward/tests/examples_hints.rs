//! Plans the slices of the examples from scratch and compares them with those that the files carry.
//!
//! The files show what a node reads; this holds the controller to writing just that.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

/// The objects of an example, each as its own YAML text.
fn documents(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(format!("examples/seeds/{name}.yaml")));
    let text = text.expect("the example can be read");
    text.split("\n---\n").map(str::to_owned).collect()
}

fn is_slice(document: &str) -> bool {
    document.lines().any(|line| line == "kind: EndpointSlice")
}

/// The plan for these objects, read from standard input.
fn plan(documents: &[String]) -> Value {
    let mut program = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "slices", "-f", "-", "-o", "json", "--all"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    let mut input = program.stdin.take().expect("it was asked for");
    input.write_all(documents.join("\n---\n").as_bytes()).expect("the program reads it");
    drop(input);
    let output = program.wait_with_output().expect("the program ends");
    serde_json::from_slice(&output.stdout).expect("the answer is JSON")
}

/// The one slice that the file carries, as stored.
fn stored(name: &str) -> Value {
    let slices: Vec<String> = documents(name).into_iter().filter(|document| is_slice(document)).collect();
    let [only] = &slices[..] else { panic!("{name} carries {} slices", slices.len()) };
    serde_saphyr::from_str(only).expect("the example is YAML")
}

/// The one slice that is made when there is none.
fn planned(name: &str) -> Value {
    let others: Vec<String> = documents(name).into_iter().filter(|document| !is_slice(document)).collect();
    let plan = plan(&others);
    let creates = plan["creates"].as_array().expect("a list of slices");
    let [only] = &creates[..] else { panic!("{name}: {plan}") };
    only.clone()
}

/// How many endpoints of each zone are hinted to which zones and nodes.
fn hints(slice: &Value) -> BTreeMap<String, usize> {
    let listed = |list: &Value| -> String {
        let names = list.as_array().into_iter().flatten().filter_map(|hint| hint["name"].as_str());
        names.collect::<Vec<_>>().join(",")
    };
    let mut counts = BTreeMap::new();
    for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
        let zone = endpoint["zone"].as_str().unwrap_or_default();
        let (zones, nodes) = (&endpoint["hints"]["forZones"], &endpoint["hints"]["forNodes"]);
        let line = format!("{zone} -> zones {} nodes {}", listed(zones), listed(nodes));
        *counts.entry(line).or_default() += 1;
    }
    counts
}

fn annotation(slice: &Value, key: &str) -> Value {
    slice["metadata"]["annotations"][key].clone()
}

const FILES: [&str; 9] = [
    "traffic-distribution-none",
    "traffic-distribution-prefer-same-zone",
    "traffic-distribution-prefer-same-node",
    "traffic-distribution-prefer-close",
    "traffic-distribution-spill",
    "topology-mode-auto",
    "same-zone-balanced",
    "same-zone-require",
    "same-zone-prefer",
];

#[test]
fn planning_from_scratch_makes_the_slice_that_the_file_carries() {
    for name in FILES {
        let (stored, planned) = (stored(name), planned(name));
        assert_eq!(hints(&planned), hints(&stored), "{name}");
        for key in ["zoneward.dev/mechanism", "zoneward.dev/demand"] {
            assert_eq!(annotation(&planned, key), annotation(&stored, key), "{name}: {key}");
        }
        assert_eq!(planned["ports"], stored["ports"], "{name}");
        assert_eq!(planned["addressType"], stored["addressType"], "{name}");
    }
}

#[test]
fn a_slice_that_says_what_it_should_is_left_alone() {
    for name in FILES {
        let plan = plan(&documents(name));
        for list in ["creates", "updates", "deletes"] {
            assert_eq!(plan[list], json!([]), "{name}: {list}");
        }
        assert_eq!(plan["unchanged"].as_array().map(Vec::len), Some(1), "{name}");
    }
}

/// The weights that a node gives to these addresses of the Service in `traffic-distribution-spill`.
fn spill_weights(node: &str, addresses: [&str; 4]) -> [f64; 4] {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args([
            "trace",
            "select",
            "--node",
            node,
            "-o",
            "json",
            "-f",
            "examples/seeds/traffic-distribution-spill.yaml",
        ])
        .current_dir(root())
        .output()
        .expect("the program can be started");
    let list: Value = serde_json::from_slice(&output.stdout).expect("the answer is JSON");
    let set = &list[0]["cluster"];
    assert_eq!(set["mode"], "spill", "{list}");
    addresses.map(|address| {
        let mut endpoints = set["endpoints"].as_array().into_iter().flatten();
        let found = endpoints.find(|endpoint| endpoint["address"] == address);
        found.and_then(|endpoint| endpoint["weight"].as_f64()).unwrap_or(0.0)
    })
}

// KEP-4444, "Implementation specific heuristics": our Spill.
#[test]
fn spill_sends_away_only_what_the_zone_cannot_take() {
    let all = ["10.244.1.5:8080", "10.244.3.5:8080", "10.244.3.6:8080", "10.244.4.5:8080"];
    for (node, shares) in [
        ("node-a1", [0.5, 0.25, 0.25, 0.0]),
        ("node-b1", [0.0, 0.5, 0.5, 0.0]),
        ("node-c1", [0.0, 0.0, 0.0, 1.0]),
    ] {
        let weights = spill_weights(node, all);
        let sum: f64 = weights.iter().sum();
        for (weight, share) in weights.into_iter().zip(shares) {
            assert!((weight / sum - share).abs() < 1e-9, "{node}: {weights:?}");
        }
    }
}
