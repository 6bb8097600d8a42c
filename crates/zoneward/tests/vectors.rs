//! The vectors through the command line, as an operator would ask: objects in by `-f -`, JSON out.

mod gateway_api;
mod hints;
mod packetflow;
mod packing;
mod routes;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Runs the binary with objects on standard input and reads the JSON that it prints.
fn zoneward(args: &[&str], objects: &[Value]) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(args)
        .args(["-f", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(list.to_string().as_bytes()).expect("the binary reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the binary ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {errors}"))
}

fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let mut file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    serde_json::from_value(file["vectors"].take()).expect("a list of vectors")
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn set_of(set: &Value) -> Option<BTreeSet<String>> {
    let endpoints = set["endpoints"].as_array()?;
    Some(endpoints.iter().map(|e| e["address"].as_str().expect("an address").to_owned()).collect())
}

fn strings(list: &Value) -> Option<BTreeSet<String>> {
    list.as_array().map(|l| l.iter().map(|a| a.as_str().expect("a string").to_owned()).collect())
}

#[test]
fn trace_select_gives_the_endpoints_of_topology_selection() {
    for vector in vectors("topology-selection.json") {
        let (id, expect) = (&vector["id"], &vector["expect"]);
        let node = vector["node"]["name"].as_str().expect("a node");
        let mut objects = items(&vector["endpointSlices"]);
        objects.push(vector["service"].clone());
        objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": vector["node"]}));
        let gates = vector["featureGates"].as_object().into_iter().flatten();
        let gates: Vec<String> = gates.map(|(name, on)| format!("{name}={on}")).collect();
        let rows =
            zoneward(&["trace", "select", "--node", node, "--feature-gates", &gates.join(",")], &objects);
        let row = &rows[0];
        assert_eq!(set_of(&row["cluster"]), strings(&expect["clusterEndpoints"]), "{id}: cluster");
        assert_eq!(set_of(&row["local"]), strings(&expect["localEndpoints"]), "{id}: local");
        assert_eq!(row["hasAny"], expect["hasAnyEndpoints"], "{id}: hasAny");
        assert!(!items(&row["why"]).is_empty(), "{id}: a choice comes with its reason");
    }
}

#[test]
fn plan_addresses_reports_the_bands_and_capacities_of_ip_allocation() {
    let wanted = |v: &Value| v["kind"] == "bands" || v["kind"] == "capacity";
    for vector in vectors("ip-allocation.json").into_iter().filter(wanted) {
        let (id, cidr, expect) = (&vector["id"], &vector["input"]["cidr"], &vector["expect"]);
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "test"}, "spec": {"cidrs": [cidr]}});
        let plan = zoneward(&["plan", "addresses", "--seed", "1"], &[object]);
        let range = &plan["ranges"][0];
        assert_eq!(range["cidr"], *cidr, "{id}");
        assert_eq!(range["free"], expect["availableAddresses"], "{id}: free");
        if vector["kind"] == "bands" {
            assert_eq!(range["static"], expect["staticBand"], "{id}: static band");
            assert_eq!(range["dynamic"], expect["dynamicBand"], "{id}: dynamic band");
        }
    }
}

#[test]
fn plan_slices_makes_the_changes_of_slice_packing() {
    for vector in vectors("slice-packing.json") {
        let id = &vector["id"];
        let max = vector["maxEndpointsPerSlice"].to_string();
        let args = ["plan", "slices", "--all", "--max-endpoints-per-slice", &max];
        let plan = zoneward(&args, &packing::objects(&vector));
        packing::check(&vector, &plan);
        let after: Vec<Value> = packing::objects_after(&vector, &plan);
        let again = zoneward(&args, &after);
        for change in ["creates", "updates", "deletes"] {
            assert_eq!(again[change], json!([]), "{id}: planned again, nothing is left to do");
        }
    }
}
