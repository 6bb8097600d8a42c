//! `zoneward trace packet --live` beside a running node: what the kernel holds answers as the files say it should.

use std::process::Command;

use serde_json::{Value, json};

use super::addresses::{OUTSIDE, OWN, endpoint};
use super::place::{Place, VIPS, here, there};
use super::world::config;

fn trace(place: &Place, words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["trace", "packet", "--node", "n1", "-o", "json", "--packets"])
        .arg(place.world.folder.join("packets.json"))
        .args(words)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words:?}: {errors}\n{answer}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {errors}"))
}

/// From everybody to everything, TCP and UDP.
fn packets() -> Vec<Value> {
    let mut packets = Vec::new();
    for i in [0, 1] {
        let targets = [
            (VIPS[i], 80),
            (VIPS[i], 81),
            (["10.96.9.9", "fd00:96::99"][i], 80),
            (OWN[i], 30_080),
            (OWN[i + 2], 30_080),
            (["198.18.0.5", "2001:db8:18::5"][i], 80),
            (["10.1.0.5", "fd00:1::5"][i], 8080),
        ];
        let clients = [
            endpoint(i == 1, 1),
            endpoint(i == 1, 2),
            OUTSIDE[i * 3].to_owned(),
            OUTSIDE[i * 3 + 1].to_owned(),
            OWN[i].to_owned(),
        ];
        for (dst, dport) in targets {
            for src in &clients {
                for proto in ["tcp", "udp"] {
                    packets.push(
                        json!({"src": src, "sport": 40_000, "dst": dst, "dport": dport, "proto": proto}),
                    );
                }
            }
        }
    }
    packets
}

#[test]
fn trace_of_the_live_kernel_answers_as_the_files_do() {
    toolbox::in_own_namespaces!();
    let place = Place::new("live");
    place.put_web(
        json!({"type": "LoadBalancer", "nodePort": 30_080, "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["203.0.113.0/25", "2001:db8:203::/64"],
            "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.5"}, {"ip": "2001:db8:18::5"}]}}}),
        &[here(1), here(2), there(5)],
    );
    let lines = "clusterCIDR: 10.1.0.0/16,fd00:1::/64";
    let _node = place.start(lines);
    let path = config(&place.world.folder, lines);
    let packets = packets();
    let folder = &place.world.folder;
    std::fs::write(folder.join("packets.json"), Value::from(packets.clone()).to_string()).unwrap();
    let kinds = ["Node", "Service", "EndpointSlice", "ServiceCIDR"];
    let objects: Vec<Value> = kinds.iter().flat_map(|kind| place.world.list(kind)).collect();
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = folder.join("objects.json").display().to_string();
    std::fs::write(&file, objects.to_string()).unwrap();
    let socket = place.world.socket().display().to_string();

    let by_files = trace(&place, &["-f", &file, "--config", &path]);
    let verdicts: std::collections::BTreeSet<&str> =
        by_files.as_array().unwrap().iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts.into_iter().collect::<Vec<_>>(), ["dnat", "drop", "reject", "untouched"]);
    for words in [
        &["-f", &file, "--config", &path, "--live"][..],
        &["--api-socket", &socket, "--config", &path, "--live"],
    ] {
        let live = trace(&place, words);
        for (i, packet) in packets.iter().enumerate() {
            assert_eq!(live[i], by_files[i], "{packet}");
        }
    }
    // It is the kernel that answers: without its rules, it does so differently.
    super::namespace::run("nft", &["flush", "chain", "ip", "zoneward", "services"]);
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["trace", "packet", "--node", "n1", "--live", "-f", &file, "--config", &path, "-o", "json"])
        .args(["--packet", "tcp 10.1.0.1:40000 -> 10.96.0.7:80"])
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["verdict"], "untouched", "{answer}");
    assert_eq!(output.status.code(), Some(1), "what the kernel holds is not what it should");
}

fn zoneward(words: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn live_commands_go_by_the_running_nodes_configuration() {
    toolbox::in_own_namespaces!();
    let place = Place::new("effective");
    place.put_web(json!({"externalIPs": ["198.18.0.5"]}), &[here(1), there(5)]);
    let node =
        place.start("clusterCIDR: 10.1.0.0/16,fd00:1::/64\nfeatureGates: {AllowServiceExternalIPs: false}");
    // A pod is no stranger, external IPs are not served, and no flag says so.
    let packet = |src: &str, dst: &str| {
        let packet = format!("tcp {src}:40000 -> {dst}:80");
        let (ok, answer, errors) =
            zoneward(&["trace", "packet", "--live", "-o", "json", "--packet", &packet]);
        assert!(ok, "{packet}: {errors}\n{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let from_pod = packet("10.1.0.9", VIPS[0]);
    assert_eq!((&from_pod["verdict"], &from_pod["masquerade"]), (&"dnat".into(), &false.into()));
    assert_eq!(packet(OUTSIDE[0], VIPS[0])["masquerade"], true);
    assert_eq!(packet("10.1.0.9", "198.18.0.5")["verdict"], "untouched");
    // What a first load leaves out comes with the first sweep.
    place.world.until("the kernel holds everything", || {
        let (ok, text, errors) = zoneward(&["plan", "node", "--live"]);
        assert!(ok && text.contains("running node proxy: node n1"), "{text}{errors}");
        text.contains("No changes")
    });

    // After an external change the summary names the Service and no element, the full list has them all.
    super::namespace::run("nft", &["flush", "map", "ip", "zoneward", "endpoints-1k"]);
    let (_, text, errors) = zoneward(&["plan", "node", "--live"]);
    assert!(
        text.contains("ns/web:") && text.contains("endpoints") && !text.contains("10.1.0.1"),
        "{text}{errors}"
    );
    let (_, text, _) = zoneward(&["plan", "node", "--live", "--full"]);
    assert!(text.contains("10.1.0.1 . 8080"), "{text}");

    // Another node's name, and no node at all: said, and the defaults explain.
    let socket = place.world.socket().display().to_string();
    place.world.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}));
    let elsewhere = ["plan", "node", "--live", "--node", "n2", "--api-socket", &socket];
    let (_, text, _) = zoneward(&elsewhere);
    assert!(text.contains("is that of node n1"), "{text}");
    drop(node);
    let (_, text, _) = zoneward(&elsewhere);
    assert!(text.contains("no node proxy runs in this network namespace"), "{text}");
    let (ok, _, errors) = zoneward(&["plan", "node", "--live", "--api-socket", &socket]);
    assert!(!ok && errors.contains("--node"), "{errors}");
}
