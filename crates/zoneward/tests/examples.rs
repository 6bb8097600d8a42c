//! Runs the program on every file below `examples/` and holds the answers against the documents they come from.
//!
//! A newcomer tries these first: a row of examples/README.md that does not hold would be worse than none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The root of the repository: file names in tests are those of the README.
fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

fn run(args: &[&str]) -> Output {
    let program = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(args).current_dir(root()).output();
    program.expect("the program can be started")
}

fn answer(args: &[&str]) -> Value {
    let output = run(&[args, &["-o", "json"]].concat());
    let stdout = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&stdout).unwrap_or_else(|error| {
        panic!("{args:?}: {error}\n{stdout}\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// What a node would do for a Service's only port.
fn select(file: &str, node: &str, service: &str) -> Value {
    let list = answer(&["trace", "select", "-f", file, "--node", node]);
    let all = list.as_array().unwrap_or_else(|| panic!("not a list: {list}"));
    let found: Vec<&Value> = all.iter().filter(|entry| entry["service"] == service).collect();
    let [only] = found[..] else { panic!("{service} on {node}: {list}") };
    only.clone()
}

fn seed(name: &str) -> String {
    format!("examples/seeds/{name}.yaml")
}

fn mode(set: &Value) -> &str {
    set["mode"].as_str().unwrap_or_else(|| panic!("no set: {set}"))
}

/// The addresses of a set, all of the same weight.
fn addresses(set: &Value) -> Vec<&str> {
    let list = set["endpoints"].as_array().unwrap_or_else(|| panic!("no set: {set}"));
    let weights: Vec<f64> = list.iter().filter_map(|endpoint| endpoint["weight"].as_f64()).collect();
    assert_eq!(weights.len(), list.len(), "each endpoint has a weight: {set}");
    assert!(weights.windows(2).all(|pair| pair[0] == pair[1]), "equal shares: {set}");
    list.iter().filter_map(|endpoint| endpoint["address"].as_str()).collect()
}

/// The names in a list of objects or of names.
fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("not a list: {list}"));
    let name = |entry: &Value| {
        let places = [&entry["metadata"]["name"], &entry["metadata"]["generateName"], &entry["name"], entry];
        places.iter().find_map(|place| place.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let mut names: Vec<String> = list.iter().map(name).collect();
    names.sort();
    names
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).expect("the folder can be listed");
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if path.extension().is_some_and(|ending| ending == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[test]
fn every_object_of_the_examples_would_be_accepted() {
    let files = files_below(&root().join("examples"));
    assert!(files.len() >= 26, "{files:?}");
    for file in files {
        let file = file.to_str().unwrap();
        let verdict = answer(&["plan", "validate", "-f", file]);
        assert_eq!(verdict, json!({"accepted": true, "violations": []}), "{file}");
        assert_eq!(run(&["plan", "validate", "-f", file]).status.code(), Some(0), "{file}");
    }
}

// Requests for `trace http` lie in the same tree; their names end in .request, which no folder is read for.
#[test]
fn the_whole_folder_of_examples_would_be_accepted() {
    let output = run(&["plan", "validate", "-R", "-f", "examples"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_readme_has_a_row_for_every_example_and_no_other() {
    let readme = std::fs::read_to_string(root().join("examples/README.md")).unwrap();
    for file in files_below(&root().join("examples/seeds")) {
        let name = format!("seeds/{}", file.file_name().unwrap().to_str().unwrap());
        assert!(readme.contains(&format!("[{name}]({name})")), "no row for {name}");
    }
    // Those in the tables; sentences also name some that run until they are told to stop.
    let rows = readme.lines().filter(|line| line.starts_with('|'));
    for command in rows.flat_map(|row| row.split('`')).filter(|piece| piece.starts_with("zoneward ")) {
        let args: Vec<&str> = command.split(' ').skip(1).collect();
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.stdout.is_empty(), "{command}");
    }
}

#[test]
fn the_shop_has_slices_to_make_to_change_to_keep_and_to_delete() {
    let plan = answer(&["plan", "slices", "-f", "examples/shop", "--all"]);
    assert_eq!(names(&plan["creates"]), ["checkout-", "web-"]);
    assert_eq!(names(&plan["updates"]), ["cart-7kq2x", "metrics-9tw5c"]);
    assert_eq!(names(&plan["unchanged"]), ["payments-m4d8z"]);
    assert_eq!(plan["deletes"], json!([{"namespace": "shop", "name": "web-b6r3n"}]));
    let notices = plan["notices"].as_array().unwrap();
    assert_eq!(notices.len(), 1, "the mechanism of cart says what it does: {notices:?}");
    assert_eq!(notices[0]["reason"], "TrafficDistributionProgrammed");
}

#[test]
fn a_slice_lists_pods_that_are_not_ready_or_going_away_as_such() {
    let plan = answer(&["plan", "slices", "-f", "examples/shop"]);
    let creates = plan["creates"].as_array().unwrap();
    let web = creates.iter().find(|slice| slice["metadata"]["generateName"] == "web-").unwrap();
    let state = |pod: &str| {
        let endpoints = web["endpoints"].as_array().unwrap();
        endpoints.iter().find(|endpoint| endpoint["targetRef"]["name"] == pod).unwrap()["conditions"].clone()
    };
    assert_eq!(state("web-0"), json!({"ready": true, "serving": true, "terminating": false}));
    assert_eq!(state("web-2"), json!({"ready": false, "serving": false, "terminating": false}));
    assert_eq!(state("web-3"), json!({"ready": false, "serving": true, "terminating": true}));
    assert_eq!(web["ports"], json!([{"name": "http", "protocol": "TCP", "port": 8080}]));
}

#[test]
fn the_nodes_of_the_shop_keep_to_zone_and_node() {
    let cart = select("examples/shop", "node-a1", "shop/cart");
    assert_eq!(mode(&cart["cluster"]), "same-zone");
    assert_eq!(addresses(&cart["cluster"]), ["10.244.1.10:8080", "10.244.2.10:8080"]);
    // The stored slice has no endpoint in zone-c yet.
    let cart = select("examples/shop", "node-c1", "shop/cart");
    assert_eq!((mode(&cart["cluster"]), addresses(&cart["cluster"]).len()), ("all", 3));
    let payments = select("examples/shop", "node-a1", "shop/payments");
    assert_eq!(payments["cluster"], Value::Null);
    assert_eq!(addresses(&payments["local"]), ["10.244.1.30:9000"]);
    let payments = select("examples/shop", "node-c1", "shop/payments");
    assert_eq!((addresses(&payments["local"]).len(), &payments["hasAny"]), (0, &json!(true)));
}

#[test]
fn services_get_the_addresses_that_they_ask_for() {
    let plan = answer(&["plan", "addresses", "-f", "examples/addresses", "--seed", "1"]);
    assert_eq!(plan["rejected"], json!([]));
    assert_eq!(names(&plan["deletes"]), [""; 0]);
    let families = |name: &str| -> Vec<&str> {
        let assigned = plan["assigned"].as_array().unwrap();
        let Some(entry) = assigned.iter().find(|entry| entry["name"] == name) else { return Vec::new() };
        let ips = entry["clusterIPs"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap());
        ips.map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" }).collect()
    };
    assert_eq!(families("web"), ["IPv4"]);
    assert_eq!(families("api"), ["IPv4", "IPv6"]);
    assert_eq!(families("six-first"), ["IPv6", "IPv4"]);
    assert_eq!(families("db"), [""; 0]);
    assert_eq!(families("docs"), [""; 0]);
    // The address of kubernetes is locked already; that of kube-dns is not, and is taken as it stands.
    let locked = names(&plan["ipAddresses"]);
    assert!(locked.contains(&"10.96.0.10".to_owned()), "{locked:?}");
    assert!(!locked.contains(&"10.96.0.1".to_owned()), "{locked:?}");
    assert_eq!(locked.len(), 6, "{locked:?}");
    let again = answer(&["plan", "addresses", "-f", "examples/addresses", "--seed", "1"]);
    assert_eq!(plan, again, "the same seed gives the same addresses");
}

// Seed 002, "IP address ranges for Service virtual IP addresses".
#[test]
fn a_small_range_is_all_dynamic_and_a_larger_one_keeps_a_static_band() {
    let plan = answer(&["plan", "addresses", "-f", &seed("service-cidrs"), "--seed", "1"]);
    let range = |cidr: &str| {
        let ranges = plan["ranges"].as_array().unwrap();
        ranges.iter().find(|range| range["cidr"] == cidr).unwrap_or_else(|| panic!("{plan}")).clone()
    };
    let small = range("10.96.0.0/28");
    assert_eq!(small["static"], Value::Null);
    assert_eq!(small["dynamic"], json!(["10.96.0.1", "10.96.0.14"]));
    assert_eq!(small["free"], "14");
    let large = range("10.96.0.0/24");
    assert_eq!(large["static"], json!(["10.96.0.1", "10.96.0.16"]));
    assert_eq!(large["dynamic"], json!(["10.96.0.17", "10.96.0.254"]));
    assert_eq!(large["free"], "254");
}

// Seed 001, "kube-proxy" and safeguard 5.
#[test]
fn a_node_uses_the_endpoints_hinted_to_its_zone_or_else_all() {
    let file = seed("hints-slice");
    for (node, chosen, expected) in [
        ("node-a", "same-zone", &["10.1.2.3:80"][..]),
        ("node-b", "same-zone", &["10.1.2.4:80"]),
        ("node-c", "all", &["10.1.2.3:80", "10.1.2.4:80"]),
    ] {
        let set = &select(&file, node, "default/example-svc")["cluster"];
        assert_eq!((mode(set), addresses(set)), (chosen, expected.to_vec()), "{node}");
    }
}

// Seed 002, the example of the document.
#[test]
fn image_processing_uses_three_replicas_alike_from_every_node() {
    for node in ["node-1", "node-2", "node-3"] {
        let port = select(&seed("image-processing"), node, "default/image-processing");
        assert_eq!(port["port"], "images");
        assert_eq!(
            addresses(&port["cluster"]),
            ["10.244.1.5:8080", "10.244.2.5:8080", "10.244.3.5:8080"],
            "{node}"
        );
    }
}

// Seed 002, "Internal traffic policy".
#[test]
fn internal_policy_local_without_an_endpoint_here_drops() {
    let cluster = select(&seed("internal-traffic-policy-cluster"), "node-3", "default/agent");
    assert_eq!(addresses(&cluster["cluster"]), ["10.244.1.5:8080", "10.244.2.5:8080"]);
    assert_eq!(cluster["local"], Value::Null);
    let file = seed("internal-traffic-policy-local");
    let here = select(&file, "node-1", "default/agent");
    assert_eq!((mode(&here["local"]), addresses(&here["local"])), ("local", vec!["10.244.1.5:8080"]));
    assert_eq!(here["cluster"], Value::Null);
    let nowhere = select(&file, "node-3", "default/agent");
    assert_eq!(addresses(&nowhere["local"]), [""; 0]);
    assert_eq!(nowhere["hasAny"], true, "endpoints elsewhere make it a drop, not a reject");
}

// Seed 002, "External traffic policy".
#[test]
fn external_policy_local_leaves_traffic_from_inside_alone() {
    let cluster = select(&seed("external-traffic-policy-cluster"), "node-3", "default/shopfront");
    assert_eq!(addresses(&cluster["cluster"]), ["10.244.1.5:8080", "10.244.2.5:8080"]);
    assert_eq!(cluster["local"], Value::Null);
    let file = seed("external-traffic-policy-local");
    for (node, local) in [("node-1", &["10.244.1.5:8080"][..]), ("node-3", &[])] {
        let port = select(&file, node, "default/shopfront");
        assert_eq!(addresses(&port["local"]), local, "{node}");
        assert_eq!(addresses(&port["cluster"]), ["10.244.1.5:8080", "10.244.2.5:8080"], "{node}");
    }
}

// Seed 002, "Traffic to terminating endpoints".
#[test]
fn endpoints_that_are_going_away_are_used_when_no_other_is_ready() {
    let file = seed("terminating-endpoints");
    for (node, chosen, expected) in [
        ("node-1", "terminating", &["10.244.1.5:8080"][..]),
        ("node-2", "local", &["10.244.2.6:8080"]),
        ("node-3", "local", &[]),
    ] {
        let set = &select(&file, node, "default/rolling")["local"];
        assert_eq!((mode(set), addresses(set)), (chosen, expected.to_vec()), "{node}");
    }
    let set = &select(&file, "node-3", "default/leaving")["cluster"];
    assert_eq!((mode(set), addresses(set)), ("terminating", vec!["10.244.1.7:8080", "10.244.2.7:8080"]));
}

// Seed 002, "Session affinity": it decides among the endpoints, not which ones there are.
#[test]
fn affinity_leaves_the_set_of_endpoints_as_it_is() {
    for service in ["default/sticky", "default/sticky-minute"] {
        let set = &select(&seed("session-affinity"), "node-3", service)["cluster"];
        assert_eq!((mode(set), addresses(set)), ("all", vec!["10.244.1.5:8080", "10.244.2.5:8080"]));
    }
}

const EVERYWHERE: [&str; 3] = ["10.244.1.5:8080", "10.244.2.5:8080", "10.244.3.5:8080"];

// KEP-4444, "Default" and "PreferClose"; seed 002, "Traffic distribution control".
#[test]
fn prefer_same_zone_stays_in_the_zone_while_it_has_endpoints() {
    for node in ["node-a1", "node-b1", "node-c1"] {
        let set = &select(&seed("traffic-distribution-none"), node, "default/catalog")["cluster"];
        assert_eq!((mode(set), addresses(set)), ("all", EVERYWHERE.to_vec()), "{node}");
    }
    for file in [seed("traffic-distribution-prefer-same-zone"), seed("traffic-distribution-prefer-close")] {
        for (node, chosen, expected) in [
            ("node-a1", "same-zone", &EVERYWHERE[..2]),
            ("node-a2", "same-zone", &EVERYWHERE[..2]),
            ("node-b1", "same-zone", &EVERYWHERE[2..]),
            ("node-c1", "all", &EVERYWHERE[..]),
        ] {
            let set = &select(&file, node, "default/catalog")["cluster"];
            assert_eq!((mode(set), addresses(set)), (chosen, expected.to_vec()), "{file} {node}");
        }
    }
}

// Seed 002, "Traffic distribution control", PreferSameNode.
#[test]
fn prefer_same_node_falls_back_to_the_zone_and_then_to_all() {
    let file = seed("traffic-distribution-prefer-same-node");
    for (node, chosen, expected) in [
        ("node-a1", "same-node", &["10.244.1.5:8080"][..]),
        ("node-a2", "same-zone", &["10.244.1.5:8080"]),
        ("node-b1", "same-node", &["10.244.3.5:8080"]),
        ("node-c1", "all", &["10.244.1.5:8080", "10.244.3.5:8080"]),
    ] {
        let set = &select(&file, node, "default/catalog")["cluster"];
        assert_eq!((mode(set), addresses(set)), (chosen, expected.to_vec()), "{node}");
    }
}

// KEP-4444: with the gate off, hints for nodes do not count.
#[test]
fn without_the_gate_hints_for_nodes_do_not_count() {
    let list = answer(&[
        "trace",
        "select",
        "-f",
        &seed("traffic-distribution-prefer-same-node"),
        "--node",
        "node-a1",
        "--feature-gates",
        "PreferSameTrafficDistribution=false",
    ]);
    assert_eq!(mode(&list[0]["cluster"]), "same-zone", "{list}");
}

// Seed 001, "EndpointSlice controller": the hints decide, not where an endpoint runs.
#[test]
fn an_endpoint_hinted_to_another_zone_serves_that_zone() {
    let file = seed("topology-mode-auto");
    let a = select(&file, "node-a", "default/ledger")["cluster"].clone();
    assert_eq!(mode(&a), "same-zone");
    assert_eq!(addresses(&a), ["10.244.1.5:8080", "10.244.1.6:8080", "10.244.1.7:8080", "10.244.2.5:8080"]);
    let b = select(&file, "node-b", "default/ledger")["cluster"].clone();
    assert_eq!(addresses(&b), ["10.244.2.6:8080", "10.244.2.7:8080"]);
}

// Seed 003, Balanced, Require and Prefer.
#[test]
fn same_zone_balances_requires_or_prefers() {
    let set = &select(&seed("same-zone-balanced"), "node-a1", "default/reports")["cluster"];
    assert_eq!((mode(set), addresses(set)), ("all", EVERYWHERE.to_vec()));
    let file = seed("same-zone-require");
    let set = &select(&file, "node-a2", "default/reports")["cluster"];
    assert_eq!((mode(set), addresses(set)), ("require", EVERYWHERE[..2].to_vec()));
    let refused = select(&file, "node-c1", "default/reports");
    assert_eq!((mode(&refused["cluster"]), addresses(&refused["cluster"]).len()), ("require", 0));
    assert_eq!(refused["hasAny"], false, "no way out to other zones: a reject");
    for (node, own, lent) in [("node-a1", 4, 2), ("node-b1", 3, 0), ("node-c1", 2, 1)] {
        let set = &select(&seed("same-zone-prefer"), node, "default/reports")["cluster"];
        let from_b = addresses(set).iter().filter(|address| address.starts_with("10.244.3.")).count();
        let expected = if node == "node-b1" { (own, own) } else { (own + lent, lent) };
        assert_eq!((addresses(set).len(), from_b), expected, "{node}: {set}");
    }
}

// KEP-4444, the table in "Intersection with internal/externalTrafficPolicy".
#[test]
fn a_policy_of_local_goes_before_traffic_distribution() {
    let file = seed("policy-precedence");
    for (service, last, local) in [("neither", 10, false), ("external", 11, true), ("both", 12, true)] {
        let port = select(&file, "node-a1", &format!("default/{service}"));
        let [here, near] = [format!("10.244.1.{last}:8080"), format!("10.244.2.{last}:8080")];
        assert_eq!(mode(&port["cluster"]), "same-zone", "{service}");
        assert_eq!(addresses(&port["cluster"]), [here.as_str(), near.as_str()], "{service}");
        if local {
            assert_eq!(addresses(&port["local"]), [here], "{service}");
        } else {
            assert_eq!(port["local"], Value::Null, "{service}");
        }
    }
}
