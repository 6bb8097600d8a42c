//! The command line as users get it wrong: names that do not exist, exit codes, addresses, durations, and what
//! `plan validate` says about files with slips in them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::Parser;
use serde_json::Value;
use zoneward::cli::Cli;

fn zoneward(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("KUBECONFIG")
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn scratch(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The command ends with 1 and these words.
fn fails(args: &[&str], words: &str) {
    let output = zoneward(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", said(&output));
    assert!(said(&output).contains(words), "{args:?}: {}", said(&output));
}

#[test]
fn a_missing_kubeconfig_is_named_once_with_its_error() {
    let error = "No such file or directory (os error 2)";
    let expose = ["expose", "web", "--remove"];
    let flag = zoneward(&[&expose[..], &["--kubeconfig", "/nonexistent/a"]].concat());
    assert_eq!(said(&flag), format!("zoneward: --kubeconfig /nonexistent/a: {error}\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    let variable = command.args(expose).env("KUBECONFIG", "/nonexistent/b").output().unwrap();
    assert_eq!(said(&variable), format!("zoneward: $KUBECONFIG: /nonexistent/b: {error}\n"));
    let context = command.args(["--context", "c"]).output().unwrap();
    assert_eq!(said(&context), format!("zoneward: /nonexistent/b: {error}\n"));
    let none = said(&zoneward(&expose));
    assert!(none.starts_with("zoneward: no cluster configured: use --kubeconfig FILE"), "{none}");
    assert_eq!(none.matches(error).count(), 1, "{none}");
}

#[test]
fn an_unknown_service_namespace_or_node_exits_1_with_the_nearest_name() {
    let shop = ["-f", "examples/shop"];
    let packet = ["--packet", "tcp 10.0.0.2:40000 -> 172.30.0.41:80"];
    let with = |args: &[&'static str], more: &[&'static str]| [args, &shop, more].concat();
    let node = "there is no Node nod-a1; did you mean \"node-a1\"?";
    fails(&with(&["trace", "select", "--node", "nod-a1"], &[]), node);
    fails(&with(&["trace", "packet", "--node", "nod-a1"], &packet), node);
    fails(&with(&["plan", "node", "--node", "nod-a1"], &[]), node);
    let service = "there is no Service shop/crat; did you mean \"shop/cart\"?";
    fails(&with(&["trace", "select", "svc/crat", "-n", "shop", "--node", "node-a1"], &[]), service);
    fails(&with(&["simulate", "what-if", "shop/crat"], &[]), service);
    fails(&with(&["simulate", "what-if", "--set", "shop/crat=Spill"], &[]), service);
    fails(&with(&["simulate", "what-if", "--scale", "shop/crat=+1@zone-a"], &[]), service);
    let namespace = "there is no Namespace shpo; did you mean \"shop\"?";
    fails(&with(&["trace", "select", "-n", "shpo", "--node", "node-a1"], &[]), namespace);
    fails(&with(&["plan", "slices", "-n", "shpo"], &[]), namespace);
    fails(&with(&["simulate", "capture", "-n", "shpo"], &[]), namespace);
}

#[test]
fn svc_web_is_the_service_web_of_the_namespace_that_n_says() {
    let select = |args: &[&str]| {
        let output = zoneward(
            &[&["trace", "select", "-f", "examples/shop", "--node", "node-a1", "-o", "json"], args].concat(),
        );
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let cart = select(&["cart", "-n", "shop"]);
    assert_eq!(cart[0]["service"], "shop/cart");
    for same in [&["svc/cart", "-n", "shop"][..], &["service/cart"], &["shop/cart"], &["svc/shop/cart"]] {
        assert_eq!(select(same), cart, "{same:?}");
    }
}

#[test]
fn a_malformed_packet_or_address_is_wrong_use() {
    let packet = ["trace", "packet", "-f", "examples/shop", "--node", "node-a1", "--packet"];
    for wrong in ["nonsense", "tcp 10.0.0.2 -> 10.0.0.3:80", "icmp 10.0.0.2:1 -> 10.0.0.3:80"] {
        let output = zoneward(&[&packet[..], &[wrong]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", said(&output));
    }
    for (listen, words) in
        [("10.0.0.1", "missing port: expected 10.0.0.1:6443"), ("here", "or a port alone for loopback")]
    {
        let output = zoneward(&["up", "--data-dir", "nowhere", "--listen", listen]);
        assert_eq!(output.status.code(), Some(2), "{listen}: {}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    let cli = Cli::try_parse_from(["zoneward", "up", "--data-dir", "d", "--listen", "6444"]).unwrap();
    let zoneward::cli::Command::Up(up) = cli.command else { panic!("another command") };
    assert_eq!(up.listen.to_string(), "127.0.0.1:6444");
}

#[test]
fn every_duration_is_written_as_in_go() {
    let node = |flag: &'static str| vec!["node", flag];
    let commands = [
        vec!["controller", "--endpoint-updates-batch-period"],
        vec!["controller", "--leader-elect-lease-duration"],
        vec!["controller", "--leader-elect-renew-deadline"],
        vec!["controller", "--leader-elect-retry-period"],
        vec!["mesh", "proxy", "--gateway", "edge", "--drain"],
        vec!["mesh", "proxy", "--gateway", "edge", "--idle-timeout"],
        vec!["mesh", "proxy", "--gateway", "edge", "--slow-start"],
        vec!["simulate", "replay", "--pod-start"],
        vec!["simulate", "replay", "--eviction"],
        node("--iptables-sync-period"),
        node("--ipvs-tcp-timeout"),
        node("--conntrack-tcp-timeout-established"),
        node("--config-sync-period"),
        node("--log-flush-frequency"),
    ];
    for command in commands {
        let parse = |value: &'static str| {
            Cli::try_parse_from(["zoneward"].iter().chain(&command).copied().chain([value]))
        };
        for right in ["1h30m", "1m30s", "1.5s", "250ms", "10us", "0"] {
            assert!(parse(right).is_ok(), "{command:?} {right}: {}", parse(right).unwrap_err());
        }
        for wrong in ["soon", "1d", "1 s", "1m30"] {
            let error = parse(wrong).expect_err("refused").to_string();
            assert!(error.contains("e.g. 500ms, 30s or 1m30s"), "{command:?} {wrong}: {error}");
        }
    }
}

#[test]
fn an_api_that_is_away_is_told_with_address_cause_and_advice() {
    // It refuses connections: nothing listens there.
    let port = toolbox::ports::free_port().port();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    let path = scratch("away.kubeconfig", &kubeconfig);
    let output = zoneward(&["plan", "slices", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    for words in [&format!("the API at http://127.0.0.1:{port}"), "refused", "--kubeconfig FILE"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for noise in ["ServiceError", "client error", "Status {", "ApiError"] {
        assert!(!said.contains(noise), "{noise}: {said}");
    }
}

const SLIPS: &str = r#"
apiVersion: v1
kind: Service
metadata:
  name: web
  annotations:
    zoneward.dev/traffic-distribution: Spil
    endpointslice.kubernetes.io/same-zones: Require
spec:
  selectr: {app: web}
  ports: [{port: 80, tragetPort: 8080}]
---
apiVersion: v1
kind: Servcie
metadata: {name: misspelled}
---
apiVersion: zoneward.dev/v1alpha1
kind: MeshNonsense
metadata: {name: unknown}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
dta: {}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCidr: 10.0.0.0/8
ipvs: {scheduler: bogus}
nftables: {syncPeriod: 30s, minSyncPriod: 1s}
featureGates: {ProxyTerminatingEndpoints: false}
"#;

#[test]
fn plan_validate_tells_misspelled_settings_fields_and_kinds() {
    let path = scratch("slips.yaml", SLIPS);
    let output = zoneward(&["plan", "validate", "-f", path.to_str().unwrap(), "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |list: &str| -> Vec<(String, String)> {
        let rows = answer[list].as_array().unwrap().iter();
        rows.map(|v| (v["field"].as_str().unwrap().to_owned(), v["reason"].as_str().unwrap().to_owned()))
            .collect()
    };
    let violations = rows("violations");
    let wanted = [
        ("metadata.annotations[zoneward.dev/traffic-distribution]", "did you mean \"Spill\"?"),
        (
            "metadata.annotations[endpointslice.kubernetes.io/same-zones]",
            "endpointslice.kubernetes.io/same-zone?",
        ),
        ("spec.selectr", "did you mean \"selector\"?"),
        ("spec.ports[0].tragetPort", "did you mean \"targetPort\"?"),
        ("kind", "did you mean \"Service\"?"),
        ("kind", "zoneward.dev has no kind MeshNonsense"),
        ("dta", "did you mean \"data\"?"),
        ("clusterCidr", "did you mean clusterCIDR?"),
        ("nftables.minSyncPriod", "did you mean nftables.minSyncPeriod?"),
    ];
    for (field, reason) in wanted {
        let found = violations.iter().any(|(f, r)| f == field && r.contains(reason));
        assert!(found, "{field}: {reason}: {violations:#?}");
    }
    assert_eq!(violations.len(), wanted.len(), "{violations:#?}");
    let warnings = rows("warnings");
    for (field, reason) in [
        ("ipvs.scheduler", "IPVS has no scheduler \"bogus\""),
        ("featureGates.ProxyTerminatingEndpoints", "false has no effect"),
    ] {
        let found = warnings.iter().any(|(f, r)| f == field && r.contains(reason));
        assert!(found, "{field}: {reason}: {warnings:#?}");
    }
}

#[test]
fn plan_validate_passes_over_kinds_of_others() {
    let path = scratch(
        "others.yaml",
        "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b}\n",
    );
    let output = zoneward(&["plan", "validate", "-f", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("2 objects of other kinds skipped"));
}
