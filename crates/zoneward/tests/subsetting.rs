//! Slices by zone on the command line: what is written, and what a node does with the slices that it receives.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const FOR_ZONE: &str = "zoneward.dev/for-zone";
const ZONES: [&str; 3] = ["za", "zb", "zc"];

fn run(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.env_remove("KUBECONFIG").env("HOME", env!("CARGO_TARGET_TMPDIR"));
    let output = command.args(args).output().expect("the binary runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn run_json(args: &[&str]) -> Value {
    serde_json::from_str(&run(&[args, &["-o", "json"]].concat())).expect("JSON")
}

fn write(name: &str, objects: &[Value]) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("subsetting-{name}-{}.json", std::process::id()));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&path, list.to_string()).expect("written");
    path
}

/// Three zones with a node and twelve pods each, and a Service.
fn cluster() -> Vec<Value> {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
            "ipFamilies": ["IPv4"], "trafficDistribution": "PreferSameZone",
            "ports": [{"name": "p", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}})];
    for (i, zone) in ZONES.iter().enumerate() {
        let (node, own) = (format!("node-{zone}"), format!("192.0.2.{i}"));
        let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": own}]}});
        objects.push(fixtures::with(fixtures::node(&node, zone), &addresses));
        for number in 1..=12 {
            let name = format!("web-{zone}-{number:02}");
            objects.push(fixtures::pod("shop", &name, "web", &node, &[&format!("10.1.{i}.{number}")]));
        }
    }
    objects
}

/// The slices that the controller would write.
fn slices(objects: &[Value]) -> Vec<Value> {
    let path = write("objects", objects);
    let file = path.display().to_string();
    let plan = run_json(&["plan", "slices", "-f", &file, "--subset-slices", "--subset-from", "12"]);
    let mut slices = plan["creates"].as_array().expect("creates").clone();
    for (i, slice) in slices.iter_mut().enumerate() {
        slice["metadata"]["name"] = format!("web-{i}").into();
    }
    slices
}

#[test]
fn plan_slices_writes_them_by_zone() {
    let objects = cluster();
    let zones = |slices: &[Value]| -> Vec<(String, usize)> {
        let mut zones: Vec<(String, usize)> = slices
            .iter()
            .map(|slice| {
                let zone = slice["metadata"]["labels"][FOR_ZONE].as_str().unwrap_or_default().to_owned();
                (zone, slice["endpoints"].as_array().expect("endpoints").len())
            })
            .collect();
        zones.sort();
        zones
    };
    let wanted = [("", 9), ("za", 9), ("zb", 9), ("zc", 9)].map(|(zone, n)| (zone.to_owned(), n));
    assert_eq!(zones(&slices(&objects)), wanted);
    let file = write("plain", &objects).display().to_string();
    for flags in [&[][..], &["--subset-slices"]] {
        let plan = run_json(&[&["plan", "slices", "-f", &file], flags].concat());
        assert_eq!(zones(plan["creates"].as_array().expect("creates")), [(String::new(), 36)], "{flags:?}");
    }
}

/// Conflict 6: `trace` and `plan node` would lie without the node's view.
#[test]
fn trace_and_plan_node_apply_the_view_of_the_node() {
    let mut objects = cluster();
    let mut slices = slices(&objects);
    objects.retain(|object| object["kind"] != "Pod");
    let selected = |file: &str, flags: &[&str]| -> BTreeSet<String> {
        let select = [&["trace", "select", "-f", file, "--node", "node-za"], flags].concat();
        let traced = run_json(&select)[0]["cluster"]["endpoints"].clone();
        let packet = [
            "trace",
            "packet",
            "-f",
            file,
            "--node",
            "node-za",
            "--packet",
            "tcp 192.0.2.0:40000 -> 10.96.0.7:80",
        ];
        let packet = run_json(&[&packet[..], flags].concat())["endpoints"].clone();
        let addresses = |list: &Value| -> BTreeSet<String> {
            let list = list.as_array().expect("endpoints").iter();
            list.map(|endpoint| endpoint["address"].as_str().expect("an address").to_owned()).collect()
        };
        assert_eq!(addresses(&traced), addresses(&packet), "{flags:?}");
        // Only rules of selected endpoints are loaded.
        let plan = run(&[&["plan", "node", "-f", file, "--node", "node-za"], flags].concat());
        for endpoint in addresses(&traced) {
            let ip = endpoint.split(':').next().expect("an address").to_owned();
            assert!(plan.contains(&ip), "{ip}: {plan}");
        }
        for zone in 1..=2 {
            let is_used =
                addresses(&traced).iter().any(|address| address.starts_with(&format!("10.1.{zone}.12:")));
            assert_eq!(plan.contains(&format!("10.1.{zone}.12")), is_used, "{flags:?}");
        }
        addresses(&traced)
    };
    let own: BTreeSet<String> = (1..=12).map(|number| format!("10.1.0.{number}:8080")).collect();
    let file = write("ready", &[objects.clone(), slices.clone()].concat()).display().to_string();
    assert_eq!(selected(&file, &[]), own);
    assert_eq!(selected(&file, &["--watch-own-zone"]), own);
    // The zone loses its endpoints: all others, or as long as labels are there, the reserve.
    for endpoint in slices.iter_mut().flat_map(|slice| slice["endpoints"].as_array_mut().expect("endpoints"))
    {
        if endpoint["zone"] == "za" {
            endpoint["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
        }
    }
    let file = write("lost", &[objects, slices].concat()).display().to_string();
    assert_eq!(selected(&file, &[]).len(), 24);
    assert_eq!(selected(&file, &["--watch-own-zone"]).len(), 6);
}

/// Bytes of watch events count for the nodes that receive them.
#[test]
fn replay_weighs_bytes_by_what_nodes_receive() {
    let replay = |flags: &[&str]| {
        let size =
            ["simulate", "replay", "--zones", "3", "--nodes", "12", "--services", "1", "--endpoints", "150"];
        let value = run_json(&[&size[..], &["--events", "10", "--seed", "3"], flags].concat());
        let rows = value["mechanisms"].as_array().expect("mechanisms").clone();
        let bytes = |name: &str| {
            let row = rows.iter().find(|row| row["mechanism"] == name).unwrap_or_else(|| panic!("{rows:?}"));
            row["watch_bytes"].as_u64().expect("bytes") as f64
        };
        (bytes("PreferSameZone"), bytes("Spill"))
    };
    let (all, subset) = (replay(&[]), replay(&["--subset-slices"]));
    assert_eq!(all.1, subset.1, "Spill has no labels");
    assert!(subset.0 < 0.75 * all.0, "{all:?} {subset:?}");
}
