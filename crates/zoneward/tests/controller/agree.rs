//! Random worlds, gates and defaults: what `plan slices` shows is what the controller writes, label repair, exposed slices and slices without
//! a Service included.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use clap::Parser;
use fixtures::eventually_async;
use serde_json::{Value, json};
use zoneward::cli::{CoexistFlag, SliceMaking};

use crate::controller::world::{World, config, items, pod_status};

const WORLDS: u64 = 16;

/// A seeded stream of numbers (xorshift), the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.roll(words.len() as u64) as usize]
    }
}

const SAME_ZONE: &str = "endpointslice.kubernetes.io/same-zone";
const SAME_NODE: &str = "endpointslice.kubernetes.io/same-node";
const SAME_REGION: &str = "endpointslice.kubernetes.io/same-region";
const OWN: &str = "zoneward.dev/traffic-distribution";
const TOPOLOGY: &str = "service.kubernetes.io/topology-mode";
const DEFAULT: &str = "zoneward.dev/default-traffic-distribution";

async fn put_nodes(world: &World, dice: &mut Dice) {
    for i in 0..1 + dice.roll(14) {
        let mut labels = json!({});
        if !dice.one_in(8) {
            labels["topology.kubernetes.io/zone"] = format!("z{}", dice.roll(12)).into();
        }
        if !dice.one_in(4) {
            labels["topology.kubernetes.io/region"] = dice.pick(&["east", "west"]).into();
        }
        let ready = if dice.one_in(8) { "False" } else { "True" };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{i}"), "labels": labels},
            "status": {"allocatable": {"cpu": dice.pick(&["2", "4", "16"])},
                "conditions": [{"type": "Ready", "status": ready}]}});
        world.put(&node).await;
    }
}

fn service(dice: &mut Dice, name: &str) -> Value {
    let mut annotations = json!({});
    let levels = ["Prefer", "Require", "Balanced", "Nonsense"];
    for key in [SAME_ZONE, SAME_NODE, SAME_REGION] {
        if dice.one_in(4) {
            annotations[key] = dice.pick(&levels).into();
        }
    }
    if dice.one_in(4) {
        annotations[OWN] = dice.pick(&["Spill", "RequireZone", "PreferRegion", "None", "Spil"]).into();
    }
    if dice.one_in(4) {
        annotations[TOPOLOGY] = dice.pick(&["Auto", "Disabled", "AUTO"]).into();
    }
    let mut spec =
        json!({"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
    match dice.roll(6) {
        0 => {
            spec["trafficDistribution"] =
                dice.pick(&["PreferSameZone", "PreferSameNode", "PreferClose"]).into()
        }
        1 => spec["clusterIP"] = "None".into(),
        2 => spec["ipFamilyPolicy"] = "PreferDualStack".into(),
        3 if dice.one_in(2) => drop(spec.as_object_mut().unwrap().remove("selector")),
        _ => {}
    }
    json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
        "metadata": {"name": name, "namespace": "default", "annotations": annotations}})
}

fn pod(dice: &mut Dice, app: &str, number: u64) -> Value {
    let address = format!("10.1.{}.{}", number / 200, number % 200 + 1);
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{app}-{number}"), "namespace": "default", "labels": {"app": app}},
        "spec": {"nodeName": format!("n{}", dice.roll(15)), "containers": [{"name": "c", "image": "i"}]},
        "status": pod_status(&address, !dice.one_in(5))});
    if dice.one_in(9) {
        pod["metadata"]["deletionTimestamp"] = true.into();
    }
    pod
}

/// A stored slice that something is wrong with.
fn slice(dice: &mut Dice, service: &Value, number: u64) -> Value {
    let name = service["metadata"]["name"].as_str().unwrap();
    let writer =
        dice.pick(&["endpointslice-controller.k8s.io", "expose.zoneward.dev", "example.com", "zoneward.dev"]);
    let mut labels =
        json!({"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": writer});
    if writer == "zoneward.dev" {
        labels = json!({"zoneward.dev/service-name": name, "endpointslice.kubernetes.io/managed-by": writer});
    }
    let lost = ["kubernetes.io/service-name", "endpointslice.kubernetes.io/managed-by", ""];
    if dice.one_in(3) {
        labels.as_object_mut().unwrap().remove(dice.pick(&lost));
    }
    let endpoints = (0..dice.roll(4)).map(|i| {
        let zone = format!("z{}", dice.roll(12));
        json!({"addresses": [format!("10.9.{number}.{}", i + 1)], "zone": zone, "conditions": {"ready": true},
            "hints": {"forZones": [{"name": dice.pick(&["z1", "z2"])}]}})
    });
    let endpoints: Vec<Value> = endpoints.collect();
    let mechanism = dice.pick(&["RequireZone", "PreferZone", "Spill"]);
    let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{name}-{number}"), "namespace": "default", "labels": labels,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name,
                "uid": service["metadata"]["uid"]}]},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}], "endpoints": endpoints});
    if dice.one_in(2) {
        slice["metadata"]["annotations"] = json!({"zoneward.dev/mechanism": mechanism});
    }
    slice
}

async fn random_world(seed: u64) -> World {
    let dice = &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let world = World::new().await;
    put_nodes(&world, dice).await;
    if dice.one_in(3) {
        let default = dice.pick(&["Spill", "RequireZone", "PreferSameZone"]);
        let patch = json!({"metadata": {"annotations": {DEFAULT: default}}});
        world.merge("/api/v1/namespaces/default", &patch).await;
    }
    let mut number = 0;
    for i in 0..2 + dice.roll(5) {
        let name = format!("s{i}");
        let service = world.put(&service(dice, &name)).await;
        for _ in 0..dice.roll(20) {
            number += 1;
            world.put(&pod(dice, &name, number)).await;
        }
        for _ in 0..dice.roll(3) {
            number += 1;
            world.put(&slice(dice, &service, number)).await;
        }
        if dice.one_in(6) {
            let path = format!("/api/v1/namespaces/default/services/{name}");
            world.send("DELETE", &path, &Value::Null).await;
        }
    }
    world
}

async fn objects(world: &World) -> Vec<Value> {
    let mut objects = Vec::new();
    for path in ["/api/v1/nodes", "/api/v1/namespaces", "/api/v1/services", "/api/v1/pods", SLICES] {
        objects.extend(items(&world.get(path).await["items"]));
    }
    objects
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// Gates and defaults by chance, as both programs take them.
fn flags(seed: u64) -> Vec<String> {
    let dice = &mut Dice(seed.wrapping_mul(0xd134_2543_de82_ef95) | 1);
    let mut flags = vec!["--max-endpoints-per-slice=7".to_owned()];
    let gates = ["ServiceTrafficDistribution", "PreferSameTrafficDistribution", "TopologyAwareHints"];
    let off: Vec<String> =
        gates.iter().filter(|_| dice.one_in(4)).map(|gate| format!("{gate}=false")).collect();
    flags.push(format!("--feature-gates={}", off.join(",")));
    flags.push(format!("--prefer-by={}", dice.pick(&["nodes", "cpu"])));
    if dice.one_in(2) {
        let default = dice.pick(&["Spill", "RequireZone", "PreferSameZone", "Nonsense"]);
        flags.push(format!("--default-traffic-distribution={default}"));
    }
    flags
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    making: SliceMaking,
}

fn plan(objects: &[Value], flags: &[String]) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "slices", "-f", "-", "-o", "json"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
}

/// A slice by what the controller decides of it. The names of new ones are the API's to give.
fn essence(slice: &Value, known: &BTreeSet<String>) -> String {
    let metadata = &slice["metadata"];
    let name = metadata["name"].as_str().filter(|name| known.contains(*name)).unwrap_or("(new)");
    let parts = [&metadata["labels"], &metadata["annotations"], &slice["ports"], &slice["endpoints"]];
    format!("{name} {} {}", slice["addressType"], parts.map(sorted).join(" "))
}

/// A value as text, whatever the order of its fields; what is empty is not there.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(key, v)| format!("{key}={}", sorted(v))).collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(sorted).collect::<Vec<_>>().join(",")),
        Value::Null => String::new(),
        other => other.to_string(),
    }
    .replace("{}", "")
    .replace("[]", "")
}

/// The stored slices after a plan was carried out.
fn carried_out(stored: &[Value], plan: &Value) -> Vec<Value> {
    let key = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut slices: BTreeMap<String, Value> =
        stored.iter().map(|slice| (key(slice), slice.clone())).collect();
    for gone in items(&plan["deletes"]) {
        assert!(slices.remove(gone["name"].as_str().unwrap()).is_some(), "{gone} is stored");
    }
    for update in items(&plan["updates"]) {
        slices.insert(key(&update), update);
    }
    slices.into_values().chain(items(&plan["creates"])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_slices_shows_what_the_controller_writes() {
    let mut written = 0;
    for seed in 1..=WORLDS {
        let mut world = random_world(seed).await;
        let stored = world.slices("default").await;
        let known: BTreeSet<String> =
            stored.iter().filter_map(|slice| Some(slice["metadata"]["name"].as_str()?.to_owned())).collect();
        let flags = flags(seed);
        let plan_before = plan(&objects(&world).await, &flags);
        written +=
            ["creates", "updates", "deletes"].map(|c| items(&plan_before[c]).len()).iter().sum::<usize>();
        let mut planned: Vec<String> =
            carried_out(&stored, &plan_before).iter().map(|slice| essence(slice, &known)).collect();
        planned.sort();
        let mut config = config();
        let making = Flags::parse_from(["controller".to_owned()].iter().chain(&flags)).making;
        config.settings.planning =
            making.planning(CoexistFlag { coexist: false }, plan::PlanningConfig::without_flags());
        world.start(config);
        let running = &world;
        let (known, planned) = (&known, &planned);
        eventually_async(&format!("world {seed}: the slices are as planned"), || async {
            let slices = running.slices("default").await;
            let mut have: Vec<String> = slices.iter().map(|slice| essence(slice, known)).collect();
            have.sort();
            if have == *planned { Ok(()) } else { Err(format!("{have:#?} instead of {planned:#?}")) }
        })
        .await;
        world.stop().await;
        let again = plan(&objects(&world).await, &flags);
        for change in ["creates", "updates", "deletes"] {
            assert_eq!(again[change], json!([]), "world {seed}: nothing is left to do");
        }
    }
    assert!(written > 40, "the worlds give work: {written}");
}
