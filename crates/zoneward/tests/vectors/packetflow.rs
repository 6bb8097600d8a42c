//! The packet-flow cases as an operator would ask: objects and a KubeProxyConfiguration in, verdicts out.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{items, set_of, strings, zoneward};

/// A file for one scenario, gone when the test is done with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &Value) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, content.to_string()).expect("the file can be written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn scenarios(mode: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/packetflow-{mode}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    items(&file["scenarios"])
}

fn objects(scenario: &Value) -> Vec<Value> {
    let config = &scenario["config"];
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": config["nodeName"]},
        "status": {"addresses": [{"type": "InternalIP", "address": config["nodeIP"]}]}});
    let mut objects = vec![node];
    if config["serviceCIDRs"].is_array() {
        objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": config["serviceCIDRs"]}}));
    }
    objects.extend(items(&scenario["services"]));
    objects.extend(items(&scenario["endpointSlices"]));
    objects
}

#[test]
fn trace_packet_gives_the_verdicts_of_packetflow() {
    trace_all("nftables");
}

#[test]
fn trace_packet_in_mode_iptables_gives_the_verdicts_of_packetflow() {
    trace_all("iptables");
}

fn trace_all(mode: &str) {
    for scenario in scenarios(mode) {
        let (id, config) = (scenario["id"].as_str().expect("an id"), &scenario["config"]);
        let settings = Scratch::new(
            &format!("{id}.config.json"),
            &json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
                "clusterCIDR": config["detectLocal"]["cidr"],
                "nodePortAddresses": config["nodePortAddresses"],
                "iptables": {"masqueradeAll": config["masqueradeAll"],
                    "localhostNodePorts": config["localhostNodePorts"]},
                "nftables": {"masqueradeAll": config["masqueradeAll"]}}),
        );
        let flows = items(&scenario["flows"]);
        let packet = |flow: &Value| {
            let given = &flow["packet"];
            json!({"src": given["src"], "sport": 40000, "dst": given["dst"], "dport": given["port"],
                "proto": given["protocol"]})
        };
        let packets = Scratch::new(&format!("{id}.packets.json"), &flows.iter().map(packet).collect());
        let node = config["nodeName"].as_str().expect("a name");
        let mut args =
            vec!["trace", "packet", "--node", node, "--config", settings.path(), "--packets", packets.path()];
        args.extend(["--proxy-mode", mode]);
        let local = items(&config["nodeLocalAddresses"]);
        for address in &local {
            args.extend(["--local-address", address.as_str().expect("an address")]);
        }
        let answers = zoneward(&args, &objects(&scenario));
        assert_eq!(items(&answers).len(), flows.len(), "{id}");
        for (answer, flow) in items(&answers).iter().zip(&flows) {
            check(&format!("{id} flow {}: {answer:#}", flow["n"]), answer, &flow["expect"]);
        }
    }
}

fn check(whose: &str, answer: &Value, expect: &Value) {
    let verdict = answer["verdict"].as_str().expect("a word").to_uppercase();
    assert_eq!(Value::from(verdict), expect["verdict"], "{whose}");
    assert_eq!(set_of(answer), strings(&expect["endpoints"]).or(Some(Default::default())), "{whose}");
    assert_eq!(answer["masquerade"], expect["masquerade"], "{whose}");
    assert_eq!(answer["affinity"], Value::Null, "{whose}");
    let is_of_service = answer["service"].as_str().is_some_and(|s| s.contains('/'));
    assert!(is_of_service || expect["verdict"] == "ACCEPT", "{whose}");
    assert!(!items(&answer["why"]).is_empty(), "{whose}");
    assert!(items(&answer["why"]).iter().all(|w| w["rule"] != "disagreement"), "{whose}");
}
