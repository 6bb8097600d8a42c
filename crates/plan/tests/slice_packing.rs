//! The cases of `vectors/slice-packing.json`: pods and stored slices -> operations and the slices after them.
//!
//! The field `expansion` of the file describes its short form.

use std::collections::BTreeMap;

use model::{Family, Interner, Name, Node, Object, Pod, Service, Slice, SlicePort, parse};
use plan::slices::{self, SliceInput, SliceOptions, SlicePlan, TriggerTimes};
use serde_json::{Value, json};

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/slice-packing.json");
    let text = std::fs::read_to_string(path).expect("the vectors are part of the repository");
    let mut file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    serde_json::from_value(file["vectors"].take()).expect("the vectors are a list")
}

/// The objects of one vector.
struct World {
    service: Service,
    pods: Vec<Pod>,
    nodes: BTreeMap<Name, Node>,
    slices: Vec<Slice>,
}

fn parsed(id: &str, value: Value) -> Object {
    let (object, notices) = parse::object(&value, &mut Interner::default());
    object.unwrap_or_else(|| panic!("{id}: {value} cannot be read: {notices:?}"))
}

fn world(id: &str, vector: &Value) -> World {
    let Object::Service(service) = parsed(id, vector["service"].clone()) else { panic!("{id}: no Service") };
    let list = |field: &str| vector[field].as_array().cloned().unwrap_or_default();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
    let Object::Node(node) = parsed(id, node) else { panic!("{id}: no Node") };
    let mut pods: Vec<Pod> = list("pods").iter().map(|short| pod(id, &service, short)).collect();
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    World {
        pods,
        nodes: [(node.name.clone(), *node)].into(),
        slices: list("existingSlices").iter().map(|short| slice(id, &service, short)).collect(),
        service: *service,
    }
}

fn address(i: u64) -> String {
    format!("10.64.{}.{}", i / 250, i % 250 + 1)
}

fn index(id: &str, short: &Value) -> u64 {
    short["i"].as_u64().unwrap_or_else(|| panic!("{id}: {short} has no i"))
}

fn pod(id: &str, service: &Service, short: &Value) -> Pod {
    let i = index(id, short);
    let known = ["i", "ready", "node", "namedPort"];
    for field in short.as_object().into_iter().flatten().map(|(field, _)| field.as_str()) {
        assert!(known.contains(&field), "{id}: nobody reads {field:?} of a pod");
    }
    let ports = match &short["namedPort"] {
        Value::Null => json!([]),
        named => json!([{"name": named["name"], "containerPort": named["port"], "protocol": "TCP"}]),
    };
    let ready = if short["ready"] == true { "True" } else { "False" };
    let value = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": service.key.namespace.as_str(), "name": format!("pod{i}"),
            "uid": format!("uid-pod{i}"), "labels": {"foo": "bar"}},
        "spec": {"nodeName": short["node"].as_str().unwrap_or("node-1"),
            "containers": [{"name": "c", "ports": ports}]},
        "status": {"podIP": address(i), "podIPs": [{"ip": address(i)}],
            "conditions": [{"type": "Ready", "status": ready}]}});
    let Object::Pod(pod) = parsed(id, value) else { panic!("{id}: no Pod") };
    *pod
}

fn slice(id: &str, service: &Service, short: &Value) -> Slice {
    let namespace = service.key.namespace.as_str();
    let endpoint = |short: &Value| {
        let i = index(id, short);
        json!({"addresses": [address(i)], "nodeName": "node-1",
            "conditions": {"ready": short["ready"], "serving": short["serving"],
                "terminating": short["terminating"]},
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": format!("pod{i}"),
                "uid": format!("uid-pod{i}")}})
    };
    let name = service.key.name.as_str();
    let owner = |uid: &Value| json!({"apiVersion": "v1", "kind": "Service", "name": name, "uid": uid});
    let each = |field: &str, make: &dyn Fn(&Value) -> Value| -> Vec<Value> {
        short[field].as_array().into_iter().flatten().map(make).collect()
    };
    let value = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": short["addressType"],
        "metadata": {"namespace": namespace, "name": short["name"], "labels": short["labels"],
            "ownerReferences": each("ownerUIDs", &owner)},
        "ports": short["ports"], "endpoints": each("endpoints", &endpoint)});
    let Object::Slice(slice) = parsed(id, value) else { panic!("{id}: no EndpointSlice") };
    *slice
}

/// Plans with hints left alone, and checks that the hook saw the family.
fn planned(world: &World, options: &SliceOptions) -> SlicePlan {
    let pods: Vec<&Pod> = world.pods.iter().collect();
    let input = SliceInput {
        service: &world.service,
        pods: &pods,
        nodes: &world.nodes,
        slices: &world.slices,
        trigger: &TriggerTimes::default(),
    };
    let mut seen: Vec<Family> = Vec::new();
    let plan = slices::plan(&input, options, |family, _| seen.push(family));
    assert_eq!(seen, slices::families(&world.service));
    plan
}

/// Lengths (longest first) and distinct port lists after the plan.
fn after(world: &World, plan: &SlicePlan) -> (Vec<usize>, Vec<Vec<SlicePort>>) {
    let kept = world.slices.iter().filter(|slice| plan.unchanged.contains(&slice.key)).map(|s| &s.content);
    let written = plan.updates.iter().map(|(_, content)| content).chain(&plan.creates);
    let contents: Vec<_> = kept.chain(written).collect();
    let mut lengths: Vec<usize> = contents.iter().map(|content| content.endpoints.len()).collect();
    lengths.sort_by_key(|length| std::cmp::Reverse(*length));
    let mut ports: Vec<Vec<SlicePort>> = contents.iter().map(|content| content.ports.to_vec()).collect();
    ports.sort();
    ports.dedup();
    (lengths, ports)
}

#[test]
fn every_packing_vector_holds() {
    let vectors = vectors();
    for vector in &vectors {
        let id = vector["id"].as_str().unwrap_or("?");
        let world = world(id, vector);
        let max = vector["maxEndpointsPerSlice"].as_u64().unwrap_or_default() as usize;
        let options = SliceOptions::new(max).unwrap_or_else(|error| panic!("{id}: {error}"));
        let plan = planned(&world, &options);
        let expect = &vector["expect"];
        let counts = [plan.creates.len(), plan.updates.len(), plan.deletes.len()];
        assert_eq!(
            counts.map(Value::from),
            ["creates", "updates", "deletes"].map(|f| expect[f].clone()),
            "{id}"
        );
        assert_eq!(counts[1] + counts[2] + plan.unchanged.len(), world.slices.len(), "{id}: each slice once");
        let (lengths, ports) = after(&world, &plan);
        assert_eq!(Value::from(lengths), expect["sliceLengthsAfter"], "{id}");
        let listed = |ports: &Value| {
            let short = json!({"name": "p", "addressType": "IPv4", "ports": ports});
            slice(id, &world.service, &short).content.ports.to_vec()
        };
        let mut expected: Vec<_> =
            expect["portsAfter"].as_array().into_iter().flatten().map(listed).collect();
        expected.sort();
        assert_eq!(ports, expected, "{id}");
        assert_eq!(plan.notices, [], "{id}");
    }
    assert_eq!(vectors.len(), 20);
}
