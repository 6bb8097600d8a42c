//! The objects that a slice-packing vector stands for, and what its plan must come to.

use serde_json::{Value, json};

use super::items;

fn address(pod: &Value) -> String {
    let i = pod["i"].as_u64().expect("a number");
    format!("10.64.{}.{}", i / 250, i % 250 + 1)
}

fn namespace(vector: &Value) -> Value {
    vector["service"]["metadata"]["namespace"].clone()
}

fn pod(pod: &Value, vector: &Value) -> Value {
    let (i, address) = (&pod["i"], address(pod));
    let node = pod["node"].as_str().unwrap_or("node-1");
    let status = if pod["ready"] == true { "True" } else { "False" };
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod{i}"), "namespace": namespace(vector), "uid": format!("uid-pod{i}"),
            "labels": {"foo": "bar"}},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": status}]},
    });
    if let Some(port) = pod.get("namedPort") {
        object["spec"]["containers"][0]["ports"] =
            json!([{"name": port["name"], "containerPort": port["port"], "protocol": "TCP"}]);
    }
    if pod["terminating"] == true || pod["deleting"] == true {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    object
}

fn slice(slice: &Value, vector: &Value) -> Value {
    let endpoint = |e: &Value| {
        let i = &e["i"];
        json!({
            "addresses": [address(e)], "nodeName": "node-1",
            "conditions": {"ready": e["ready"], "serving": e["serving"], "terminating": e["terminating"]},
            "targetRef": {"kind": "Pod", "namespace": namespace(vector), "name": format!("pod{i}"),
                "uid": format!("uid-pod{i}")},
        })
    };
    let owner = |uid: &Value| {
        json!({"apiVersion": "v1", "kind": "Service", "name": vector["service"]["metadata"]["name"], "uid": uid,
            "controller": true, "blockOwnerDeletion": true})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": slice["name"], "namespace": namespace(vector), "labels": slice["labels"],
            "ownerReferences": items(&slice["ownerUIDs"]).iter().map(owner).collect::<Vec<_>>()},
        "addressType": slice["addressType"], "ports": slice["ports"],
        "endpoints": items(&slice["endpoints"]).iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Everything but the slices.
fn others(vector: &Value) -> Vec<Value> {
    let mut objects = vec![
        vector["service"].clone(),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}),
    ];
    objects.extend(items(&vector["pods"]).iter().map(|p| pod(p, vector)));
    objects
}

/// The world before.
pub fn objects(vector: &Value) -> Vec<Value> {
    let mut objects = others(vector);
    objects.extend(items(&vector["existingSlices"]).iter().map(|s| slice(s, vector)));
    objects
}

/// The world after the plan was carried out.
pub fn objects_after(vector: &Value, plan: &Value) -> Vec<Value> {
    let mut objects = others(vector);
    for (i, mut created) in items(&plan["creates"]).into_iter().enumerate() {
        created["metadata"]["name"] = format!("new-{i}").into();
        objects.push(created);
    }
    objects.extend(items(&plan["updates"]));
    objects.extend(items(&plan["unchanged"]));
    objects
}

/// Compares a plan with what the vector expects.
pub fn check(vector: &Value, plan: &Value) {
    let (id, expect) = (&vector["id"], &vector["expect"]);
    for change in ["creates", "updates", "deletes"] {
        assert_eq!(
            items(&plan[change]).len() as u64,
            expect[change].as_u64().expect("a count"),
            "{id}: {change}"
        );
    }
    let mut slices = items(&plan["creates"]);
    slices.extend(items(&plan["updates"]));
    slices.extend(items(&plan["unchanged"]));
    let mut lengths: Vec<u64> = slices.iter().map(|s| items(&s["endpoints"]).len() as u64).collect();
    let mut expected: Vec<u64> =
        items(&expect["sliceLengthsAfter"]).iter().map(|n| n.as_u64().expect("a length")).collect();
    lengths.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lengths, expected, "{id}: lengths");
    for slice in &slices {
        let known = items(&expect["portsAfter"]);
        assert!(known.contains(&slice["ports"]), "{id}: ports {}", slice["ports"]);
    }
}
