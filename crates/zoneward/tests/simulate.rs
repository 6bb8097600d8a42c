//! `zoneward simulate` as a user runs it: data sets, own inputs, bad inputs, what-if, and the report in a browser.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn zoneward(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.env_remove("KUBECONFIG").env("HOME", env!("CARGO_TARGET_TMPDIR"));
    command.arg("simulate").args(args).current_dir(root()).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    let output = zoneward(args);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn rows_per_input_are_those_of_the_published_tool() {
    let path = "vectors/simulator.json";
    let names =
        "balanced,local,local-1x,local-shared,local-weighted,local-opt,shared-global,shared-multizone";
    let answer = json(&["run", "--input", path, "--algorithm", names, "--per-input", "-o", "json"]);
    let text = std::fs::read_to_string(root().join(path)).expect("vectors are in the repository");
    let vectors: Value = serde_json::from_str(&text).expect("JSON");
    let mut rows = answer["rows"].as_array().expect("rows").iter();
    for input in vectors["inputs"].as_array().expect("inputs") {
        for name in names.split(',') {
            let (row, wanted) = (rows.next().expect("a row"), &input["results"][name]);
            assert_eq!((&row["id"], &row["algorithm"]), (&input["id"], &Value::from(name)));
            assert_eq!(row["status"], wanted["status"], "{} {name}", input["id"]);
            for figure in
                ["total_score", "in_zone_pct", "max_overload_pct", "mean_overload_pct", "slice_score"]
            {
                let near = match (row[figure].as_f64(), wanted[figure].as_f64()) {
                    (Some(a), Some(b)) => (a - b).abs() < 1e-9,
                    (a, b) => a == b,
                };
                assert!(near, "{} {name} {figure}: {} {}", input["id"], row[figure], wanted[figure]);
            }
        }
    }
    assert!(rows.next().is_none());
}

#[test]
fn bad_rows_are_reported_and_the_others_scored() {
    let path = scratch("bad.csv");
    std::fs::write(&path, "name,a,b\nfine,1 2,3 4\nbad,1 -2,3 4\nshort,1 2\n").expect("written");
    let path = path.to_str().expect("UTF-8");
    let answer = json(&["run", "--input", path, "--algorithm", "local", "-o", "json"]);
    assert_eq!((&answer["scored"], &answer["rejected"]), (&Value::from(1), &Value::from(2)));
    assert_eq!(answer["rejections"][0]["line"], 3);
    assert_eq!(answer["rejections"][0]["column"], 7);
    let rows = json(&["run", "--input", path, "--algorithm", "local,best", "--per-input", "-o", "json"]);
    let status: Vec<&str> =
        rows["rows"].as_array().expect("rows").iter().map(|r| r["status"].as_str().expect("text")).collect();
    assert_eq!(status, ["ok", "ok", "rejected", "rejected", "rejected", "rejected"]);
}

#[test]
fn any_number_of_threads_prints_the_same() {
    let run =
        |threads: &str| stdout(&zoneward(&["run", "--input", "small", "--threads", threads, "-o", "csv"]));
    let one = run("1");
    assert!(one.contains("\nspill,390080,0,82.7710"), "{one}");
    assert_eq!(one, run("5"));
}

#[test]
fn wrong_use_is_told_and_exits_with_2() {
    for args in [
        ["run", "--algorithm", "unheard-of"],
        ["run", "--weights", "1,2"],
        ["run", "--overload-threshold", "-1"],
        ["what-if", "--scale", "web=2"],
    ] {
        assert_eq!(zoneward(&args).status.code(), Some(2), "{args:?}");
    }
    let output = zoneward(&["run", "--input", "no-such-file.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("neither small, medium, large"));
}

#[test]
fn what_if_without_zones_says_what_the_nodes_lack() {
    let node = |name: &str, zone: &str, ready: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{zone}}}}}\nstatus: {{conditions: [{ready}]}}\n---\n"
        )
    };
    let (zone, ready) = ("topology.kubernetes.io/zone: zone-a", "{type: Ready, status: 'True'}");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n";
    for (name, nodes, why) in [
        ("none", String::new(), "the input has no Nodes, so there is no traffic to evaluate: add them to it"),
        (
            "unready",
            node("a", zone, ""),
            "no Node is ready, so there is no traffic to evaluate: the input needs condition",
        ),
        ("zoneless", node("a", "", ready), "no Node has the label topology.kubernetes.io/zone"),
        ("mixed", node("a", zone, "") + &node("b", "", ready), "no ready Node has the label topology"),
    ] {
        let path = scratch(&format!("zones-{name}.yaml"));
        std::fs::write(&path, nodes + service).expect("written");
        let said = stdout(&zoneward(&["what-if", "-f", path.to_str().expect("UTF-8")]));
        assert!(said.contains(why), "{name}: {said}");
    }
}

#[test]
fn what_if_compares_every_mechanism_and_recommends_one() {
    let args =
        ["what-if", "shop/cart", "-f", "examples/shop", "--traffic", "1000", "--price", "0.5", "-o", "json"];
    let answer = json(&args);
    let service = &answer["services"][0];
    assert_eq!(service["service"], "shop/cart");
    let mechanisms = service["mechanisms"].as_array().expect("a list");
    assert_eq!(mechanisms.len(), 7);
    for m in mechanisms {
        let in_zone = m["in_zone_pct"].as_f64().expect("a number");
        let refused = m["refused_pct"].as_f64().expect("a number");
        let gb = m["cross_zone_gb"].as_f64().expect("a number");
        assert!((gb - 10.0 * (100.0 - in_zone - refused)).abs() < 1e-6, "{m}");
        assert!((m["cost"].as_f64().expect("a number") - gb / 2.0).abs() < 1e-6, "{m}");
        let zones = m["zones"].as_object().expect("zones").values();
        let sum: f64 =
            zones.flat_map(|to| to.as_object().expect("zones").values()).filter_map(Value::as_f64).sum();
        assert!((sum - 1.0 + refused / 100.0).abs() < 1e-9, "{m}");
    }
    assert!(service["recommendation"]["reason"].as_str().expect("text").contains("stays in its zone"));
}

#[test]
fn what_if_prefers_less_overload_at_equal_locality_and_says_why_not_the_runner_up() {
    let answer = json(&["what-if", "svc/cart", "-n", "shop", "-f", "examples/shop", "-o", "json"]);
    assert!(answer["rule"].as_str().expect("text").contains("least overload"), "{answer}");
    let advice = &answer["services"][0]["recommendation"];
    assert_eq!(advice["mechanism"], "Spill", "{advice}");
    assert_eq!(advice["runner_up"]["mechanism"], "PreferSameZone", "{advice}");
    let why = advice["runner_up"]["why_not"].as_str().expect("text");
    assert!(why.contains("as much in its zone") && why.contains("20.0 % above"), "{why}");
    let commands = advice["commands"].as_array().expect("a list");
    let annotate =
        "kubectl annotate service cart -n shop --overwrite \\\n  zoneward.dev/traffic-distribution=Spill";
    assert_eq!(commands[0], annotate);
}

#[test]
fn tables_of_simulate_fit_80_columns() {
    let shop = ["what-if", "-f", "examples/shop"];
    for args in [
        &shop[..],
        &[&shop[..], &["-A"]].concat(),
        &[&shop[..], &["--traffic", "100000", "--price", "0.02"]].concat(),
        &["run", "--input", "representative", "--algorithm", "balanced,local-shared,shared-multizone,best"],
        &["run", "--input", "representative", "--algorithm", "balanced,local-shared", "--per-input"],
        &["replay", "--zones", "3", "--events", "20"],
    ] {
        let output = zoneward(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = stdout(&output);
        let (answer, _) = text.split_once("\nNotices:").unwrap_or((&text, ""));
        for line in answer.lines() {
            let is_command = line.trim_start().starts_with("-p '") || line.starts_with("kubectl");
            assert!(is_command || line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
}

#[test]
fn what_if_of_all_namespaces_has_a_row_for_each_service_best_gain_first() {
    let text = stdout(&zoneward(&["what-if", "-A", "-f", "examples/shop"]));
    let rows: Vec<&str> = text.lines().skip(1).take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 3, "{text}");
    assert!(rows[0].starts_with("shop/checkout"), "{text}");
    let gain = |row: &&str| -> f64 {
        let words: Vec<&str> = row.split_whitespace().collect();
        let gain = words.iter().find(|word| word.starts_with(['+', '-']) && word.len() > 1).expect("a gain");
        gain.parse().expect("a number")
    };
    assert!(rows.windows(2).all(|pair| gain(&pair[0]) >= gain(&pair[1])), "{text}");
    assert!(text.contains("kubectl annotate service checkout -n shop"), "{text}");
}

#[test]
fn capture_does_not_overwrite_a_file_unless_told_to() {
    let path = scratch("captured.yaml");
    let name = path.to_str().expect("UTF-8");
    std::fs::write(&path, "mine").expect("written");
    let args = ["capture", "-f", "examples/shop", name];
    let refused = zoneward(&args);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("already exists") && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "mine");
    assert!(zoneward(&[&args[..], &["--force"]].concat()).status.success());
    assert!(std::fs::read_to_string(&path).expect("read").contains("kind: List"));
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn what_if_tries_replicas_and_settings() {
    let args =
        ["what-if", "-f", "examples/shop", "--scale", "shop/cart=+2@zone-c", "--set", "shop/cart=Spill"];
    let answer = json(&[&args[..], &["-o", "json"]].concat());
    let services = answer["services"].as_array().expect("a list");
    assert_eq!(services.len(), 1);
    assert_eq!(services[0]["endpoints"]["zone-c"], 2);
    assert_eq!(services[0]["current"], "Spill");
}

#[test]
fn what_if_knows_the_moments_that_hurt() {
    let answer = json(&["what-if", "shop/web", "-f", "examples/shop", "-o", "json"]);
    let service = &answer["services"][0];
    let ready: u64 =
        service["endpoints"].as_object().expect("zones").values().filter_map(Value::as_u64).sum();
    for m in service["mechanisms"].as_array().expect("a list") {
        let rolling = &m["rolling_update"];
        let least = ready - ready / 4;
        assert!(rolling["ready"].as_u64().expect("a number") >= least, "{m}");
        assert!(rolling["in_zone_pct"].is_f64() && rolling["max_overload_pct"].is_f64(), "{m}");
        assert!(m["replica_added"]["zone"].as_str().expect("a zone").starts_with("zone-"), "{m}");
        assert!(m["zone_failure"]["zone"].is_string(), "{m}");
    }
}

#[test]
fn what_if_takes_traffic_from_metrics() {
    let path = scratch("nodes.prom");
    let series = "zoneward_service_bytes_total{namespace=\"shop\",service=\"cart\",from_zone=";
    let text =
        format!("{series}\"zone-a\",to_zone=\"zone-a\"}} 3e9\n{series}\"zone-b\",to_zone=\"zone-a\"}} 1e9\n");
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("UTF-8");
    let args = ["what-if", "shop/cart", "-f", "examples/shop", "--traffic", path, "--traffic-days", "15"];
    let answer = json(&[&args[..], &["--demand", "measured", "--price", "2", "-o", "json"]].concat());
    let service = &answer["services"][0];
    assert_eq!(service["measured"], serde_json::json!({"gb": 8.0, "in_zone_pct": 75.0}));
    for m in service["mechanisms"].as_array().expect("a list") {
        let from: f64 =
            m["zones"]["zone-a"].as_object().map_or(0.0, |to| to.values().filter_map(Value::as_f64).sum());
        assert!((from - 0.75).abs() < 1e-9, "{m}");
        assert!(m["zones"]["zone-c"].is_null(), "nothing was measured from there: {m}");
        let crossing = m["cross_zone_gb"].as_f64().expect("a number");
        assert!((m["cost"].as_f64().expect("a number") - 2.0 * crossing).abs() < 1e-9, "{m}");
    }
    let none = zoneward(&["what-if", "-f", "examples/shop", "--traffic", "no-such.prom"]);
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn misplaced_endpoints_are_told_with_yaml_for_their_workload() {
    let node = |name: &str, zone: &str, cpu: &str| {
        format!(
            "---\nkind: Node\napiVersion: v1\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n\
             status: {{allocatable: {{cpu: '{cpu}'}}, conditions: [{{type: Ready, status: 'True'}}]}}\n"
        )
    };
    let pod = |at: usize| {
        format!(
            "---\nkind: Pod\napiVersion: v1\nmetadata: {{name: w-{at}, namespace: default, labels: {{app: w, pod-template-hash: 5d9}}, \
             ownerReferences: [{{kind: ReplicaSet, name: w-5d9, controller: true, apiVersion: apps/v1, uid: r}}]}}\n\
             spec: {{nodeName: n1, containers: [{{name: c, image: shop/w:1}}]}}\n\
             status: {{phase: Running, podIP: 10.0.0.{at}, podIPs: [{{ip: 10.0.0.{at}}}], conditions: [{{type: Ready, status: 'True'}}]}}\n"
        )
    };
    let service = "---\nkind: Service\napiVersion: v1\nmetadata: {name: w, namespace: default}\n\
                   spec: {selector: {app: w}, clusterIP: 10.96.0.9, ports: [{port: 80}]}\n";
    let pods: String = (1..=9).map(pod).collect();
    for (cpus, placement, wanted) in [
        (["4", "4", "4"], "topology-spread", "topologySpreadConstraints"),
        (["1", "2", "13"], "deployment-per-zone", "name: w-zone-c"),
    ] {
        let nodes: String = ["zone-a", "zone-b", "zone-c"]
            .iter()
            .zip(cpus)
            .enumerate()
            .map(|(at, (z, c))| node(&format!("n{}", at + 1), z, c))
            .collect();
        let path = scratch(&format!("{placement}.yaml"));
        std::fs::write(&path, format!("{nodes}{service}{pods}")).expect("written");
        let answer = json(&["what-if", "-f", path.to_str().expect("UTF-8"), "-o", "json"]);
        let advice = &answer["services"][0]["recommendation"];
        assert_eq!(advice["placement"], placement, "{advice}");
        let yaml = advice["yaml"].as_str().expect("text");
        assert!(yaml.contains(wanted) && !yaml.contains("FILL-IN"), "{yaml}");
        assert!(
            placement != "topology-spread" || yaml.contains("kind: Deployment\nmetadata:\n  name: w\n"),
            "{yaml}"
        );
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
        let deployments = documents.iter().filter(|document| document["kind"] == "Deployment");
        for deployment in deployments.filter(|_| placement == "deployment-per-zone") {
            let spec = &deployment["spec"];
            assert_eq!(spec["template"]["spec"]["containers"][0]["image"], "shop/w:1", "{deployment}");
            let labels = &spec["template"]["metadata"]["labels"];
            for (key, value) in spec["selector"]["matchLabels"].as_object().expect("a map") {
                assert_eq!(&labels[key], value, "a Deployment must select its own pods");
            }
            let typed: k8s_openapi::api::apps::v1::Deployment =
                serde_json::from_value(deployment.clone()).expect("a Deployment");
            assert_eq!(&serde_json::to_value(typed).expect("JSON"), deployment, "no field is unknown");
        }
    }
}

#[test]
fn spill_never_overloads_by_more_than_its_rounding() {
    let answer = json(&["what-if", "shop/cart", "-f", "examples/shop", "-o", "json"]);
    let mechanisms = answer["services"][0]["mechanisms"].as_array().expect("a list");
    let spill = mechanisms.iter().find(|m| m["mechanism"] == "Spill").expect("Spill is compared");
    assert!(spill["max_overload_pct"].as_f64().expect("a number") < 2.0, "{spill}");
}

#[test]
fn replay_counts_the_events_of_a_file_and_tells_the_bad_ones() {
    let path = scratch("events.yaml");
    let events = "events:\n- {at: 60, event: scale, service: shop/cart, by: 2}\n- {at: 5, event: explode}\n\
                  - {at: 90, event: roll, service: shop/cart}\n- {at: 99, event: node-loss, node: nowhere}\n\
                  - {at: 400, event: zone-loss, zone: zone-a}\n- {at: 900, event: zone-back, zone: zone-a}\n";
    std::fs::write(&path, events).expect("written");
    let path = path.to_str().expect("UTF-8");
    let args = ["replay", "-f", "examples/shop", "--event-file", path, "-o", "json"];
    let answer = json(&args);
    assert_eq!(answer["events"].as_array().expect("a list").len(), 4, "{answer}");
    let notices = answer["notices"].to_string();
    assert!(notices.contains("explode") && notices.contains("nowhere"), "{notices}");
    let mechanisms = answer["mechanisms"].as_array().expect("a list");
    assert_eq!(mechanisms.len(), 7);
    for m in mechanisms {
        let written = m["slices_written"].as_u64().expect("a number");
        assert!(written > 5 && m["watch_bytes"].as_u64() > Some(1_000 * written), "{m}");
        let over_time = m["over_time"].as_array().expect("a list");
        let sum: u64 = over_time.iter().filter_map(|moment| moment["slices_written"].as_u64()).sum();
        assert_eq!(sum, written, "{m}");
        assert!(m["writes_to_balanced"].as_f64() >= Some(1.0), "{m}");
    }
    assert_eq!(mechanisms[0]["hints_flipped"], 0, "without a mechanism there are no hints");
}

#[test]
fn replay_by_chance_is_the_same_for_the_same_seed() {
    let run = |seed: &str| {
        let args =
            ["replay", "--nodes", "6", "--services", "3", "--endpoints", "9", "--events", "20", "-o", "csv"];
        stdout(&zoneward(&[&args[..], &["--seed", seed]].concat()))
    };
    assert_eq!(run("4"), run("4"));
    assert_ne!(run("4"), run("5"));
    assert_eq!(run("4").lines().count(), 8);
    let refused = zoneward(&["replay", "-f", "examples/shop", "--zones", "2"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// Opens a page in a browser that may reach nothing but the page, in a frame of a phone's and of a screen's width, and
/// gives what it made of it.
fn opened(html: &str, name: &str) -> (String, String) {
    let page = scratch(name);
    std::fs::write(&page, html).expect("written");
    let frame = |width: u32| {
        format!(
            "<iframe src='{name}' width='{width}' height='900' onload=\"document.body.dataset.wide{width} = \
             this.contentDocument.documentElement.scrollWidth\"></iframe>"
        )
    };
    let frames = scratch(&format!("frames-{name}"));
    std::fs::write(&frames, format!("<body>{}{}", frame(390), frame(1440))).expect("written");
    let run = |page: &std::path::Path| {
        let url = format!("file://{}", page.canonicalize().expect("it is there").display());
        let profile = format!("--user-data-dir={}", scratch(&format!("{name}.profile")).display());
        toolbox::command("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
                "--allow-file-access-from-files",
            ])
            .args(["--proxy-server=127.0.0.1:9", "--virtual-time-budget=3000", &profile, "--dump-dom", &url])
            .output()
            .expect("chromium starts")
    };
    let widths = stdout(&run(&frames));
    for width in [390, 1440] {
        let found =
            widths.split(&format!("data-wide{width}=\"")).nth(1).and_then(|rest| rest.split('"').next());
        let found: u32 = found.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{widths}"));
        assert!(found <= width, "{name} is {found} px wide on a screen of {width} px");
    }
    let output = run(&page);
    (stdout(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn reports_open_in_a_browser_fit_a_phone_and_make_no_request() {
    let scores = stdout(&zoneward(&["run", "--input", "representative", "-o", "html"]));
    let what_if = stdout(&zoneward(&["what-if", "-f", "examples/shop", "-o", "html"]));
    let churn = stdout(&zoneward(&["replay", "-f", "examples/shop", "--events", "40", "-o", "html"]));
    let pages = [
        (scores, "scores.html", "<svg", 8, "has the highest mean score"),
        (what_if, "what-if.html", "class=\"matrix\"", 14, "A change is recommended"),
        (churn, "churn.html", "<svg", 4, "writes the fewest EndpointSlices"),
    ];
    for (html, name, part, parts, first) in pages {
        for outside in ["http://", "https://", "<script", "@import", "url(", "style="] {
            assert!(!html.contains(outside), "{name} has {outside}");
        }
        let (dom, log) = opened(&html, name);
        assert!(dom.matches(part).count() >= parts, "{name}: {} of {part}", dom.matches(part).count());
        let summary = dom.find(first).unwrap_or_else(|| panic!("{name} begins without its result"));
        assert!(summary < dom.find("<table").expect("a table"), "{name}");
        assert!(!log.contains("CONSOLE"), "{log}");
    }
}
