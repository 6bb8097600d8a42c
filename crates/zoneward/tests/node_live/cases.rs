//! The cases of packetflow-nftables.json and topology-selection.json on the kernel that a running node programmed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::backend::TracedVerdict;
use serde_json::{Value, json};

use super::world::{World, config, fate, held, metric};

fn vectors(name: &str, list: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    file[list].as_array().unwrap().clone()
}

fn texts(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn word(verdict: TracedVerdict) -> &'static str {
    match verdict {
        TracedVerdict::Dnat => "DNAT",
        TracedVerdict::Reject => "REJECT",
        TracedVerdict::Drop => "DROP",
        TracedVerdict::Accept => "ACCEPT",
        TracedVerdict::Untouched => "UNTOUCHED",
    }
}

/// The first flow that does not fare as it should.
fn mismatch(scenario: &Value) -> Option<String> {
    let program = held();
    let local: Vec<IpAddr> =
        texts(&scenario["config"]["nodeLocalAddresses"]).iter().map(|text| text.parse().unwrap()).collect();
    scenario["flows"].as_array().unwrap().iter().find_map(|flow| {
        let (packet, expect) = (&flow["packet"], &flow["expect"]);
        let address = |name: &str| packet[name].as_str().unwrap().parse::<IpAddr>().unwrap();
        let port = packet["port"].as_u64().unwrap();
        let src = std::net::SocketAddr::new(address("src"), 40_000).to_string();
        let dst = std::net::SocketAddr::new(address("dst"), port as u16).to_string();
        let found = fate(&program, &src, &dst, &local);
        let endpoints: BTreeSet<String> = found.endpoints.iter().map(|(e, _)| e.to_string()).collect();
        let is_right = word(found.verdict) == expect["verdict"]
            && endpoints == texts(&expect["endpoints"])
            && (found.verdict == TracedVerdict::Dnat && found.masquerade) == (expect["masquerade"] == true);
        (!is_right)
            .then(|| format!("flow {}: {} {endpoints:?}, not {expect}", flow["n"], word(found.verdict)))
    })
}

#[test]
fn packets_fare_as_the_cases_say() {
    toolbox::in_own_namespaces!();
    let mut flows = 0;
    // Each starts over the rules that the one before left.
    for scenario in vectors("packetflow-nftables", "scenarios") {
        let world = World::new("packets");
        let asked = &scenario["config"];
        world.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": asked["nodeName"]},
            "status": {"addresses": [{"type": "InternalIP", "address": asked["nodeIP"]}]}}));
        world.put(json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": asked["serviceCIDRs"]}}));
        for list in ["services", "endpointSlices"] {
            for object in scenario[list].as_array().unwrap() {
                world.put(object.clone());
            }
        }
        let addresses = &asked["nodePortAddresses"];
        let lines = format!(
            "clusterCIDR: {}\nnodePortAddresses: {addresses}\nnftables: {{masqueradeAll: {}}}",
            asked["detectLocal"]["cidr"], asked["masqueradeAll"]
        );
        let config = config(&world.folder, &lines);
        let node = world.node(asked["nodeName"].as_str().unwrap(), &["--config", &config]);
        let mut found = None;
        let mut tries = 0;
        world.until(&format!("{}: {found:?}", scenario["id"]), || {
            found = mismatch(&scenario);
            tries += 1;
            if tries == 1000 {
                panic!("{}: {found:?}\n{}", scenario["id"], world.log());
            }
            found.is_none()
        });
        flows += scenario["flows"].as_array().unwrap().len();
        drop(node);
    }
    assert_eq!(flows, 89);
}

/// Where a frontend should lead: to these, or nowhere.
fn expected(expect: &Value, is_local: bool) -> (&'static str, BTreeSet<String>) {
    let set = texts(&expect[if is_local { "localEndpoints" } else { "clusterEndpoints" }]);
    match (set.is_empty(), expect["hasAnyEndpoints"] == true) {
        (false, _) => ("DNAT", set),
        (true, true) => ("DROP", set),
        (true, false) => ("REJECT", set),
    }
}

fn leads(dst: &str, is_outside: bool) -> (&'static str, BTreeSet<String>) {
    let src = if is_outside { "203.0.113.9:40000" } else { "10.200.0.9:40000" };
    let found = fate(&held(), src, dst, &["192.0.2.1".parse().unwrap()]);
    (word(found.verdict), found.endpoints.iter().map(|(e, _)| e.to_string()).collect())
}

#[test]
fn endpoints_are_selected_as_the_cases_say() {
    toolbox::in_own_namespaces!();
    let all = vectors("topology-selection", "vectors");
    for is_on in [true, false] {
        let of_gate: Vec<&Value> = all
            .iter()
            .filter(|v| v["featureGates"]["PreferSameTrafficDistribution"].as_bool().unwrap_or(true) == is_on)
            .collect();
        let world = World::new("selection");
        let gates = format!("PreferSameTrafficDistribution={is_on}");
        world.put_service_cidr("kubernetes", &["172.30.0.0/16"]);
        let name = of_gate[0]["node"]["name"].as_str().unwrap();
        let more = ["--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8", "--feature-gates", &gates];
        let node = world.node(name, &more);
        for vector in of_gate {
            one_selection(&world, vector);
        }
        drop(node);
    }
}

fn one_selection(world: &World, vector: &Value) {
    assert_eq!(vector["node"]["name"], "node-1", "one node serves all cases");
    world.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": vector["node"],
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    for slice in world.list("EndpointSlice") {
        let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
        world.remove("EndpointSlice", slice["metadata"]["namespace"].as_str().unwrap(), &name);
    }
    world.put(vector["service"].clone());
    let slices = vector["endpointSlices"].as_array().unwrap();
    let revision = slices.iter().map(|slice| world.put(slice.clone())).max().unwrap_or(0);
    let (spec, expect) = (&vector["service"]["spec"], &vector["expect"]);
    let port = spec["ports"][0]["port"].as_u64().unwrap();
    let ip = spec["clusterIP"].as_str().unwrap();
    let dst = format!("{ip}:{port}");
    let wanted = expected(expect, spec["internalTrafficPolicy"] == "Local");
    world.until(&format!("{}: {dst} should lead to {wanted:?}", vector["id"]), || {
        metric("zoneward_node_programmed_revision").is_some_and(|seen| seen >= revision as f64)
            && leads(&dst, false) == wanted
    });
    if let Some(node_port) = spec["ports"][0]["nodePort"].as_u64() {
        let wanted = expected(expect, spec["externalTrafficPolicy"] == "Local");
        let dst = format!("192.0.2.1:{node_port}");
        world.until(&format!("{}: {dst} should lead to {wanted:?}", vector["id"]), || {
            leads(&dst, true) == wanted
        });
    }
}
