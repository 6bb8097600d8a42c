//! The cases of vectors/topology-selection.json: one Service port on one node.

use std::collections::BTreeSet;

use model::{Family, Interner, Snapshot, parse};
use plan::FeatureGates;
use plan::select::{NodeView, PortSelection, SelectedEndpoints, select};
use serde_json::{Value, json};

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/topology-selection.json");
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let mut file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    serde_json::from_value(file["vectors"].take()).expect("a list of vectors")
}

fn gates(vector: &Value) -> FeatureGates {
    let gates = vector["featureGates"].as_object().into_iter().flatten();
    let text: Vec<String> = gates.map(|(name, on)| format!("{name}={on}")).collect();
    text.join(",").parse().expect("known gates")
}

fn addresses(set: Option<&SelectedEndpoints>) -> Option<BTreeSet<String>> {
    set.map(|s| s.endpoints.iter().map(|t| t.address.to_string()).collect())
}

fn expected(list: &Value) -> Option<BTreeSet<String>> {
    list.as_array().map(|l| l.iter().map(|a| a.as_str().expect("an address").to_owned()).collect())
}

fn world(vector: &Value) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": vector["node"]});
    let slices = vector["endpointSlices"].as_array().expect("slices");
    for value in slices.iter().chain([&vector["service"], &node]) {
        let (object, notices) = parse::object(value, &mut Interner::default());
        assert!(notices.is_empty(), "{}: {notices:?}", vector["id"]);
        snapshot.apply(object.expect("a known kind"));
    }
    snapshot
}

fn check(vector: &Value, selection: &PortSelection<'_>) {
    let (id, expect) = (&vector["id"], &vector["expect"]);
    assert_eq!(Value::from(selection.cluster.is_some()), expect["usesClusterEndpoints"], "{id}");
    assert_eq!(Value::from(selection.local.is_some()), expect["usesLocalEndpoints"], "{id}");
    assert_eq!(addresses(selection.cluster.as_ref()), expected(&expect["clusterEndpoints"]), "{id}: cluster");
    assert_eq!(addresses(selection.local.as_ref()), expected(&expect["localEndpoints"]), "{id}: local");
    let reachable = selection.reachable().iter().map(|a| a.to_string()).collect();
    assert_eq!(
        Some(reachable),
        expected(&expect["allReachable"]).or(Some(BTreeSet::new())),
        "{id}: reachable"
    );
    assert_eq!(Value::from(selection.has_any), expect["hasAnyEndpoints"], "{id}: hasAny");
}

#[test]
fn every_case_selects_the_expected_endpoints() {
    let vectors = vectors();
    assert!(vectors.len() >= 34);
    for vector in &vectors {
        let snapshot = world(vector);
        let name = vector["node"]["name"].as_str().expect("a node name");
        let zone = snapshot.node(name).and_then(|n| n.zone.as_deref());
        let view = NodeView { name, zone, gates: gates(vector) };
        let (service, slices) = snapshot.services().next().expect("one Service");
        let family = Family::of(service.cluster_ips.addresses()[0]);
        let selections = select(service, slices, family, &view);
        assert_eq!(selections.len(), 1, "{}: one port", vector["id"]);
        check(vector, &selections[0]);
    }
}
