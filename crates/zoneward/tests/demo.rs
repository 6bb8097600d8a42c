//! The demo as a newcomer runs it: a cluster of namespaces, real connections, and the plan's shares.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Runs the demo, and returns what it measured.
fn demo(family: &str) -> Value {
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{family}-{}", std::process::id()));
    let run = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["demo", "-o", "json", "--ip-family", family, "--data-dir"])
        .arg(&folder)
        .output()
        .expect("the demo starts");
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}");
    std::fs::remove_dir_all(&folder).expect("the demo leaves its folder behind where it is named");
    serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// How often connections went from a zone to a zone, and how many of that zone there were.
fn counted(connections: &Value, from: &str, to: &str) -> (f64, f64) {
    let row = connections[from].as_object().expect("every zone has connections");
    let all: u64 = row.values().filter_map(Value::as_u64).sum();
    (connections[from][to].as_u64().unwrap_or_default() as f64, all as f64)
}

fn check(told: &Value) {
    let mechanisms = told["mechanisms"].as_array().expect("mechanisms");
    let named = |name: &str| mechanisms.iter().find(|m| m["name"] == name).expect("every mechanism is shown");
    for zone in ["zone-a", "zone-b", "zone-c"] {
        for name in ["PreferSameZone", "Require"] {
            let (inside, all) = counted(&named(name)["connections"], zone, zone);
            assert_eq!(inside, all, "{name} stays in {zone}");
        }
        for to in ["zone-a", "zone-b", "zone-c"] {
            let spill = named("Spill");
            let planned = spill["expected"][zone][to].as_f64().unwrap_or_default();
            let (count, all) = counted(&spill["connections"], zone, to);
            assert!(
                (count / all - planned).abs() < 0.02,
                "Spill {zone} -> {to}: {} of {planned}",
                count / all
            );
        }
    }
    assert_eq!(told["fallback"]["failed"], 0, "a zone without endpoints is served by the others");
    assert_eq!(told["rolling"]["failed"], 0, "no connection fails while pods are replaced");
    assert!(told["rolling"]["connections"].as_u64() > Some(100));
    assert_eq!(told["complaints"], serde_json::json!([]));
}

#[test]
fn real_connections_go_where_the_plan_says_by_ipv4() {
    check(&demo("ipv4"));
}

#[test]
fn real_connections_go_where_the_plan_says_by_ipv6() {
    check(&demo("ipv6"));
}
