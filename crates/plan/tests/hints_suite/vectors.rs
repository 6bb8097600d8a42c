//! The shared test cases: hints-auto.json and trafficdist-hints.json.

use std::collections::BTreeMap;

use model::{Family, Interner, Name, Node, Object, Slice, SliceContent, parse};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, HintInput, HintOutcome, Hysteresis, Mechanism, assign, event_reason};
use plan::slices::Packing;
use serde_json::{Value, json};

use crate::hints_suite::world::{self, World};

fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let all: Value = serde_json::from_str(&text).expect("they are JSON");
    all["vectors"].as_array().expect("a list of vectors").clone()
}

fn of_kind(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = vectors("hints-auto.json").into_iter().filter(|v| v["kind"] == kind).collect();
    assert!(!found.is_empty(), "no vector of kind {kind}");
    found
}

fn nodes(values: &Value) -> BTreeMap<Name, Node> {
    let mut interner = Interner::default();
    let parsed =
        values.as_array().expect("nodes").iter().map(|value| match parse::object(value, &mut interner) {
            (Some(Object::Node(node)), _) => (node.name.clone(), *node),
            other => panic!("not a node: {other:?}"),
        });
    parsed.collect()
}

fn slice(value: &Value, name: &str) -> Slice {
    let mut whole = value.clone();
    whole["apiVersion"] = json!("discovery.k8s.io/v1");
    whole["kind"] = json!("EndpointSlice");
    whole["addressType"] = json!("IPv4");
    if whole["metadata"]["name"].is_null() {
        whole["metadata"] = json!({"name": name});
    }
    match parse::object(&whole, &mut Interner::default()) {
        (Some(Object::Slice(slice)), _) => *slice,
        other => panic!("not a slice: {other:?}"),
    }
}

fn slices(values: &Value) -> Vec<Slice> {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    values.iter().enumerate().map(|(i, v)| slice(v, &format!("slice-{i}"))).collect()
}

/// The slices of a packing, without annotations: the vectors know none.
struct Planned {
    creates: Vec<SliceContent>,
    updates: Vec<SliceContent>,
    unchanged: Vec<SliceContent>,
    outcome: HintOutcome,
}

fn run(
    input: &Value,
    topology: &ClusterTopology,
    service: &model::Service,
    hysteresis: &Hysteresis,
) -> Planned {
    let bare = |mut c: SliceContent| {
        c.annotations = model::Labels::EMPTY;
        c
    };
    let unchanged = slices(&input["slicesUnchanged"]);
    let mut packing = Packing {
        creates: slices(&input["slicesToCreate"]).into_iter().map(|s| s.content).collect(),
        updates: slices(&input["slicesToUpdate"]).into_iter().map(|s| (s.key.name, s.content)).collect(),
        unchanged: unchanged.iter().collect(),
        ..Packing::default()
    };
    let config = PlanningConfig::without_flags();
    let input = HintInput {
        service,
        family: Family::V4,
        topology,
        namespace_default: None,
        config: &config,
        hysteresis,
        with_notices: true,
    };
    let outcome = assign(&input, &mut packing);
    Planned {
        creates: packing.creates.into_iter().map(bare).collect(),
        updates: packing.updates.into_iter().map(|(_, c)| bare(c)).collect(),
        unchanged: packing.unchanged.iter().map(|s| bare(s.content.clone())).collect(),
        outcome,
    }
}

fn expected(values: &Value) -> Vec<SliceContent> {
    slices(values).into_iter().map(|s| s.content).collect()
}

fn auto() -> model::Service {
    world::service(&[(model::annotation::TOPOLOGY_MODE, "Auto")], None)
}

#[test]
fn traffic_distribution_hints() {
    for vector in vectors("trafficdist-hints.json") {
        let service = world::service(&[], vector["trafficDistribution"].as_str());
        let topology = ClusterTopology::from_nodes(&BTreeMap::new());
        let planned = run(&vector, &topology, &service, &Hysteresis::default());
        let expect = &vector["expect"];
        assert_eq!(planned.creates, expected(&expect["slicesToCreate"]), "{} creates", vector["id"]);
        assert_eq!(planned.updates, expected(&expect["slicesToUpdate"]), "{} updates", vector["id"]);
        assert_eq!(planned.unchanged, expected(&expect["slicesUnchanged"]), "{} unchanged", vector["id"]);
    }
}

#[test]
fn auto_reads_the_nodes() {
    for vector in of_kind("node-ratios") {
        let topology = ClusterTopology::from_nodes(&nodes(&vector["input"]["nodes"]));
        check_ratios(&vector, &topology);
        assert_eq!(
            topology.missing_node_info().is_none(),
            vector["expect"]["sufficientNodeInfo"] == true,
            "{}",
            vector["id"]
        );
    }
}

/// serde_json reads a float to within one unit in the last place, unless asked for more.
fn check_ratios(vector: &Value, topology: &ClusterTopology) {
    let expect = &vector["expect"]["cpuRatiosByZone"];
    let Some(ratios) = topology.cpu_ratios() else { return assert!(expect.is_null(), "{}", vector["id"]) };
    let ratios: BTreeMap<&str, f64> = ratios.map(|(zone, ratio)| (zone.as_str(), ratio)).collect();
    assert_eq!(Some(ratios.len()), expect.as_object().map(|o| o.len()), "{}", vector["id"]);
    for (zone, ratio) in ratios {
        let read = expect[zone].as_f64().expect("a ratio");
        assert!(read.to_bits().abs_diff(ratio.to_bits()) <= 1, "{} {zone}: {read} {ratio}", vector["id"]);
    }
}

/// Events as upstream sends them: the type, the reason and a message that ours starts with.
fn check_events(vector: &Value, outcome: &HintOutcome) {
    let events = vector["expect"]["events"].as_array().expect("events");
    let news: Vec<_> = outcome.news().collect();
    assert_eq!(news.len(), events.len(), "{}: {news:?}", vector["id"]);
    for (notice, event) in news.iter().zip(events) {
        assert_eq!(notice.reason, event["reason"].as_str().expect("reason"), "{}", vector["id"]);
        assert_eq!(event_reason::is_warning(notice.reason), event["type"] == "Warning", "{}", vector["id"]);
        let message = event["message"].as_str().expect("message");
        assert!(notice.message.starts_with(message), "{}: {}", vector["id"], notice.message);
    }
}

fn hints_by_zone(planned: &Planned) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    let slices = planned.creates.iter().chain(&planned.updates).chain(&planned.unchanged);
    for endpoint in slices.flat_map(|s| &s.endpoints).filter(|e| e.conditions.is_ready_for_hints()) {
        endpoint.zone_hints().iter().for_each(|zone| *counts.entry(zone.as_str()).or_default() += 1);
    }
    counts
}

#[test]
fn auto_assigns_hints() {
    for vector in of_kind("assign-hints") {
        let input = &vector["input"];
        let mut world = World::new(&[], auto());
        for (zone, ratio) in input["cpuRatiosByZone"].as_object().into_iter().flatten() {
            let cpu = (ratio.as_f64().expect("ratio") * 1_000_000.0).round() as u64;
            world.add_node(world::node(zone, zone, cpu));
        }
        let hysteresis = match input["hintsPreviouslyPopulated"] == true {
            true => populated(),
            false => Hysteresis::default(),
        };
        let planned = run(input, &world.topology(), &auto(), &hysteresis);
        let expect = &vector["expect"];
        assert_eq!(planned.creates, expected(&expect["slicesToCreate"]), "{} creates", vector["id"]);
        assert_eq!(planned.updates, expected(&expect["slicesToUpdate"]), "{} updates", vector["id"]);
        let counts = hints_by_zone(&planned);
        let counts = if counts.is_empty() { Value::Null } else { json!(counts) };
        assert_eq!(counts, expect["hintsPerZone"], "{}", vector["id"]);
        check_events(&vector, &planned.outcome);
    }
}

/// The hysteresis of a Service whose hints Auto has set.
fn populated() -> Hysteresis {
    let mut world = World::new(&[("a", 1), ("b", 1)], auto());
    world.add_endpoints(&[("a", 3), ("b", 3)]);
    world.sync().hysteresis
}

#[test]
fn auto_from_nodes_to_hints() {
    for vector in of_kind("end-to-end") {
        let topology = ClusterTopology::from_nodes(&nodes(&vector["input"]["nodes"]));
        check_ratios(&vector, &topology);
        let mut endpoints = Vec::new();
        for group in vector["input"]["readyEndpointsInSliceOrder"].as_array().expect("endpoints") {
            let zone = group["zone"].as_str().unwrap_or_default();
            for _ in 0..group["count"].as_u64().expect("count") {
                let address = format!("10.0.0.{}", endpoints.len() + 1);
                let mut endpoint = json!({"addresses": [address], "conditions": {"ready": true}});
                if !zone.is_empty() {
                    endpoint["zone"] = json!(zone);
                }
                endpoints.push(endpoint);
            }
        }
        let planned = run(
            &json!({"slicesToCreate": [{"endpoints": endpoints}]}),
            &topology,
            &auto(),
            &Hysteresis::default(),
        );
        let hints = planned.creates[0].endpoints.iter().map(|e| match e.zone_hints() {
            [] => Value::Null,
            [zone] => json!(zone.as_str()),
            more => panic!("{more:?}"),
        });
        let hints: Vec<Value> = hints.collect();
        let expect = &vector["expect"];
        // Left out where upstream's answer depends on the order of its maps.
        if !expect["hintPerEndpoint"].is_null() {
            assert_eq!(json!(hints), expect["hintPerEndpoint"], "{}", vector["id"]);
        }
        let counts = hints_by_zone(&planned);
        let counts = if counts.is_empty() { Value::Null } else { json!(counts) };
        assert_eq!(counts, expect["hintsPerZone"], "{}", vector["id"]);
        let own = |e: &&model::Endpoint| !e.zone_hints().is_empty() && e.zone_hints() != e.zone.as_slice();
        let crossing = planned.creates[0].endpoints.iter().filter(own).count();
        assert_eq!(json!(crossing), vector["expect"]["crossZoneHints"], "{}", vector["id"]);
        check_events(&vector, &planned.outcome);
    }
}

#[test]
fn auto_is_switched_on_by_exactly_these_words() {
    for vector in of_kind("annotation") {
        let annotations = vector["input"]["annotations"].as_object().expect("annotations");
        let annotations: Vec<(&str, &str)> =
            annotations.iter().map(|(k, v)| (k.as_str(), v.as_str().expect("text"))).collect();
        let service = world::service(&annotations, None);
        let choice = PlanningConfig::without_flags().choose(&service, None);
        assert_eq!(
            choice.mechanism == Mechanism::Auto,
            vector["expect"]["topologyModeAuto"] == true,
            "{}",
            vector["id"]
        );
    }
}
