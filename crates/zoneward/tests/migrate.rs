//! `zoneward migrate check` against rules that a real kube-proxy wrote for the objects in tests/migrate.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/migrate")
}

fn path(name: &str) -> String {
    folder().join(name).display().to_string()
}

/// A changed copy of a recording, in a folder of this test.
fn changed(test: &str, file: &str, replace: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(folder().join(file)).unwrap();
    for (from, to) in replace {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("migrate-{test}-{file}"));
    std::fs::write(&target, text).unwrap();
    target.display().to_string()
}

fn zoneward(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["migrate", "check"])
        .args(words)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
}

/// Runs the check with the objects and configuration of the recordings.
fn check(rules: &[&str], more: &[&str]) -> (Option<i32>, Value) {
    let (objects, config) = (path("objects.yaml"), path("config.yaml"));
    let mut words = vec!["-f", &objects, "--config", &config, "--node", "test-node", "-o", "json"];
    for file in rules {
        words.extend(["--rules", file]);
    }
    words.extend(more);
    let output = zoneward(&words);
    let text = String::from_utf8_lossy(&output.stdout);
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), value)
}

/// Changes as `service | flow address | origins | before -> after | cause`.
fn lines(list: &Value) -> Vec<String> {
    let line = |change: &Value| {
        let text = |field: &str| change[field].as_str().unwrap_or("-").to_owned();
        let from: Vec<&str> =
            change["from"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
        format!(
            "{} | {} {} | {} | {} -> {} | {}",
            text("service"),
            text("flow"),
            text("address"),
            from.join(","),
            text("before"),
            text("after"),
            text("cause")
        )
    };
    list.as_array().unwrap().iter().map(line).collect()
}

#[test]
fn rules_of_mode_iptables_differ_only_where_the_modes_do() {
    let (code, report) = check(&[&path("iptables.save")], &[]);
    assert_eq!(code, Some(1));
    assert_eq!(report["from"], "iptables");
    assert_eq!(report["unevaluated"], Value::Array(Vec::new()));
    assert_eq!(lines(&report["changes"]), IPTABLES, "{:#}", report["changes"]);
    assert_eq!(lines(&report["unused"]), [""; 0]);
}

const IPTABLES: &[&str] = &[
    "shop/edge:https | node port on localhost TCP 127.0.0.1:30443 | localhost | to 2 endpoints -> passed on | LocalhostNodePort",
    "shop/empty:http | external IP TCP 192.0.2.51:80 | node | passed on -> refused | ExternalAddress",
    "shop/web:http | node port on localhost TCP 127.0.0.1:30080 | localhost | to 3 endpoints -> passed on | LocalhostNodePort",
    "- | cluster IP, port of no Service TCP 172.30.0.12:1 | pod | passed on -> refused | UnusedPort",
    "- | forwarded packets in state INVALID TCP 10.1.0.31:9000 | pod | dropped -> passed on | InvalidDrop",
];

/// A firewall that drops what it does not know, behind the chains of kube-proxy.
#[test]
fn a_firewall_that_relied_on_accepts_is_found() {
    let rules = changed(
        "firewall",
        "iptables.save",
        &[(
            "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]",
            "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]",
        )],
    );
    let (code, report) = check(&[&rules], &[]);
    assert_eq!(code, Some(1));
    let found: Vec<String> =
        lines(&report["changes"]).into_iter().filter(|line| line.ends_with("FirewallAccept")).collect();
    assert_eq!(found, FIREWALL);
    let change =
        report["changes"].as_array().unwrap().iter().find(|c| c["cause"] == "FirewallAccept").unwrap();
    assert!(change["remedy"].as_str().unwrap().contains("firewall"), "{change}");
    assert!(change["rule"].as_str().unwrap().contains("policy: drop"), "{change}");
}

/// Traffic from pods to cluster IPs carries no mark, so that this firewall drops it in any case.
const FIREWALL: &[&str] = &[
    "shop/cart:grpc | cluster IP TCP 172.30.0.12:9000 | outside | to 2 endpoints -> dropped | FirewallAccept",
    "shop/cart:grpc | external IP TCP 192.0.2.50:9000 | pod,its own endpoint,outside | to 2 endpoints -> dropped | FirewallAccept",
    "shop/edge | health check node port TCP 192.168.0.2:30999 | outside | passed on -> dropped | FirewallAccept",
    "shop/edge:https | cluster IP TCP 172.30.0.11:443 | outside | to 2 endpoints -> dropped | FirewallAccept",
    "shop/web:http | cluster IP TCP 172.30.0.10:80 | outside | to 3 endpoints -> dropped | FirewallAccept",
    "shop/web:http | node port TCP 192.168.0.2:30080 | pod,its own endpoint,outside | to 3 endpoints -> dropped | FirewallAccept",
];

/// Our chains of mode iptables take the place of kube-proxy's, among the rules of other programs: the firewall and the
/// user of KUBE-MARK-MASQ find what they rely on.
#[test]
fn nothing_changes_from_mode_iptables_to_mode_iptables() {
    let rules = changed(
        "to-iptables",
        "iptables.save",
        &[
            (
                "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]",
                "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]",
            ),
            (
                "-A KUBE-MARK-MASQ ",
                "-N CNI-HOSTPORT-SETMARK\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ ",
            ),
        ],
    );
    let (code, report) = check(&[&rules], &["--to", "iptables"]);
    assert_eq!(lines(&report["changes"]), [""; 0], "{:#}", report["changes"]);
    assert_eq!((code, &report["to"]), (Some(0), &Value::from("iptables")));
    assert_eq!(report["unevaluated"], Value::Array(Vec::new()));
}

#[test]
fn counters_tell_which_localhost_node_ports_are_in_use() {
    let rule = |port: &str| {
        let service = if port == "30080" { "shop/web:http" } else { "shop/edge:https" };
        format!(
            "-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment \"{service}\" -m tcp --dport {port} "
        )
    };
    let (web, edge) = (rule("30080"), rule("30443"));
    let invalid = "-A KUBE-FORWARD -m conntrack --ctstate INVALID ";
    let rules = changed(
        "counters",
        "iptables.save",
        &[
            (&web, &format!("[17:1020] {web}")),
            (&edge, &format!("[0:0] {edge}")),
            (invalid, &format!("[0:0] {invalid}")),
        ],
    );
    let (_, report) = check(&[&rules], &[]);
    let localhost = |list: &Value| -> Vec<(String, Option<u64>)> {
        let of = list.as_array().unwrap().iter().filter(|change| change["cause"] == "LocalhostNodePort");
        of.map(|change| (change["service"].as_str().unwrap().to_owned(), change["packets"].as_u64()))
            .collect()
    };
    assert_eq!(localhost(&report["changes"]), [("shop/web:http".to_owned(), Some(17))]);
    assert_eq!(localhost(&report["unused"]), [("shop/edge:https".to_owned(), Some(0))]);
    let causes =
        |list: &Value| list.as_array().unwrap().iter().any(|change| change["cause"] == "InvalidDrop");
    assert!(causes(&report["unused"]) && !causes(&report["changes"]));
}

// KEP-6032: a listener serves them, so that no client has to change.
#[test]
fn localhost_node_ports_that_a_listener_serves_do_not_change() {
    let more =
        "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\nnodePortAddresses: [all, localhost]\n";
    let mode = "mode: iptables\n";
    let config = changed("listener", "config.yaml", &[(mode, &format!("{mode}{more}"))]);
    let (objects, rules) = (path("objects.yaml"), path("iptables.save"));
    let words = ["-f", &objects, "--config", &config, "--node", "test-node", "-o", "json", "--rules", &rules];
    let output = zoneward(&words);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let localhost = |line: &&&str| line.contains("LocalhostNodePort");
    let expected: Vec<&str> = IPTABLES.iter().filter(|line| !localhost(line)).copied().collect();
    assert_eq!(lines(&report["changes"]), expected, "{:#}", report["changes"]);
}

#[test]
fn rules_that_no_longer_fit_the_objects_are_found() {
    let rules = changed(
        "stale",
        "iptables.save",
        &[
            ("--to-destination 10.2.0.13:8080", "--to-destination 10.2.0.14:8080"),
            ("--rcheck --seconds 600", "--rcheck --seconds 10800"),
            ("! -s 10.0.0.0/8 -d 172.30.0.11/32", "! -s 10.1.0.0/16 -d 172.30.0.11/32"),
        ],
    );
    let (_, report) = check(&[&rules], &[]);
    let causes = |service: &str| -> Vec<String> {
        let of = report["changes"].as_array().unwrap().iter().filter(|change| change["service"] == service);
        let mut causes: Vec<String> = of.map(|change| change["cause"].as_str().unwrap().to_owned()).collect();
        causes.sort();
        causes.dedup();
        causes
    };
    assert_eq!(causes("shop/web:http"), ["Endpoints", "LocalhostNodePort"]);
    assert_eq!(causes("shop/cart:grpc"), ["Affinity"]);
    assert_eq!(causes("shop/edge:https"), ["LocalhostNodePort", "Masquerade"]);
}

#[test]
fn chains_of_other_programs_that_use_kube_proxys_are_found() {
    let rules = changed(
        "portmap",
        "iptables.save",
        &[(
            "-A KUBE-MARK-MASQ ",
            "-N CNI-HOSTPORT-SETMARK\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ ",
        )],
    );
    let (_, report) = check(&[&rules], &[]);
    let change = report["changes"].as_array().unwrap().iter().find(|c| c["cause"] == "ChainUsed").unwrap();
    assert_eq!(change["before"], "uses KUBE-MARK-MASQ");
    assert_eq!(change["address"], "IPv4 chain nat CNI-HOSTPORT-SETMARK");
}

#[test]
fn a_rule_that_cannot_be_evaluated_is_reported() {
    let rules = changed(
        "unknown",
        "iptables.save",
        &[(
            "-A INPUT -j KUBE-FIREWALL\n",
            "-A INPUT -m rpfilter --loose -j DROP\n-A INPUT -j KUBE-FIREWALL\n",
        )],
    );
    let (code, report) = check(&[&rules], &[]);
    assert_eq!(code, Some(1));
    let messages = report["unevaluated"].as_array().unwrap();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let message = messages[0].as_str().unwrap();
    assert!(message.starts_with("unknown match \"rpfilter --loose\" in table filter: -A INPUT"), "{message}");
}

#[test]
fn the_tables_name_remedies_and_fit_a_terminal() {
    let (objects, config, rules) = (path("objects.yaml"), path("config.yaml"), path("iptables.save"));
    let words = ["-f", &objects, "--config", &config, "--node", "test-node", "--rules", &rules];
    let output = zoneward(&words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("LocalhostNodePort: let the client use the cluster IP"), "{text}");
    assert!(
        text.contains("Node test-node, kube-proxy in mode iptables to Zoneward in mode nftables:\n"),
        "{text}"
    );
    let (tables, _) = text.split_once("Notices:").unwrap();
    assert!(tables.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn wrong_use_is_refused_with_what_to_do() {
    let (objects, rules) = (path("objects.yaml"), path("iptables.save"));
    let nft = path("kube-proxy.nft");
    let cases: [(&[&str], &str); 4] = [
        (&["--node", "n", "-f", &objects, "--rules", &rules, "--from", "ipvs"], "not ipvs: leave out --from"),
        (&["--node", "n", "-f", &objects, "--rules", &objects], "not the output of iptables-save"),
        (&["--node", "n", "-f", &objects, "--rules", &nft], "use --live instead of --rules"),
        (&["--node", "n", "-f", &objects], "--rules <FILE>|--live"),
    ];
    for (words, expected) in cases {
        let output = zoneward(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(text.contains(expected), "{text}");
    }
}

fn ipvs(scheduler: &str, more: &[&str]) -> (Option<i32>, Value) {
    let servers = match scheduler {
        "rr" => path("ipvs-ipvsadm.save"),
        other => changed(other, "ipvs-ipvsadm.save", &[("-s rr", &format!("-s {other}"))]),
    };
    check(&[&path("ipvs-iptables.save"), &path("ipvs-ipset.save"), &servers], more)
}

#[test]
fn rules_of_mode_ipvs_differ_only_where_the_modes_do() {
    let (code, report) = ipvs("rr", &[]);
    assert_eq!(code, Some(1));
    assert_eq!(report["from"], "ipvs");
    assert_eq!(report["unevaluated"], Value::Array(Vec::new()));
    assert_eq!(lines(&report["changes"]), IPVS, "{:#}", report["changes"]);
}

/// IPVS has one list of endpoints for a node port, and refuses where it has none.
const IPVS: &[&str] = &[
    "shop/dns:dns | cluster IP UDP 172.30.0.14:53 | pod,node,outside | refused -> dropped | Verdict",
    "shop/edge:https | node port TCP 192.168.0.2:30443 | pod,its own endpoint,node | 10.1.0.21:8443 -> 10.1.0.21:8443, 10.2.0.22:8443 | Endpoints",
];

#[test]
fn schedulers_of_both_are_compared_in_mode_ipvs() {
    let schedulers = |report: &Value| -> Vec<String> {
        lines(&report["changes"]).into_iter().filter(|line| line.ends_with("Scheduler")).collect()
    };
    let (_, report) = ipvs("sh", &["--to", "ipvs"]);
    let found = schedulers(&report);
    assert!(
        !found.is_empty() && found.iter().all(|line| line.contains("scheduler sh -> scheduler rr")),
        "{found:?}"
    );
    let (_, report) = ipvs("rr", &["--to", "ipvs"]);
    assert_eq!(schedulers(&report), [""; 0]);
    assert_eq!(lines(&report["changes"]), IPVS, "{:#}", report["changes"]);
}

#[test]
fn schedulers_that_do_more_than_rotate_are_found() {
    let (_, report) = ipvs("sh", &[]);
    let of: Vec<String> =
        lines(&report["changes"]).into_iter().filter(|line| line.ends_with("Scheduler")).collect();
    assert!(of.iter().any(|line| line.contains("172.30.0.10:80")), "{of:?}");
    assert!(of.iter().all(|line| line.contains("scheduler sh -> random choice")), "{of:?}");
}

#[test]
fn rules_of_mode_ipvs_without_its_virtual_servers_are_refused() {
    let (objects, rules) = (path("objects.yaml"), path("ipvs-iptables.save"));
    let output = zoneward(&["--node", "test-node", "-f", &objects, "--rules", &rules]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("the output of ipvsadm -Sn is missing: add it with --rules"), "{text}");
}

/// Loads a recording into the kernel of fresh namespaces and checks that kernel.
fn check_live(load: &str, more: &str) -> Value {
    let script = format!(
        "ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 192.168.0.2/24 dev eth0
{load}
\"$zoneward\" migrate check --live -f {} --config {} --node test-node -o json {more} || test $? = 1
",
        path("objects.yaml"),
        path("config.yaml")
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-euc", &script])
        .env("PATH", toolbox::search_path())
        .env("zoneward", env!("CARGO_BIN_EXE_zoneward"))
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        // The lock of iptables-legacy is root's.
        .env("XTABLES_LOCKFILE", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("migrate-xtables.lock"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn rules_of_mode_nftables_in_the_kernel_give_what_ours_give() {
    let report = check_live(&format!("nft -f {}", path("kube-proxy.nft")), "");
    assert_eq!(report["from"], "nftables");
    assert_eq!(lines(&report["changes"]), [""; 0], "{report:#}");
    assert_eq!(report["unevaluated"], Value::Array(Vec::new()));
}

#[test]
fn rules_of_mode_iptables_in_the_kernel_are_read_in_both_flavours() {
    // Accounting objects are not part of the recording.
    let rules = changed(
        "live",
        "iptables.save",
        &[
            ("-m nfacct --nfacct-name  localhost_nps_accepted_pkts ", ""),
            ("-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts ", ""),
        ],
    );
    for flavour in ["legacy", "nft"] {
        let report = check_live(&format!("iptables-{flavour}-restore < {rules}"), "");
        assert_eq!(report["from"], "iptables", "{flavour}");
        // Rules were read with their counters, and no packet met them.
        let (changes, mut unused) = (lines(&report["changes"]), lines(&report["unused"]));
        unused.extend(changes);
        unused.sort();
        let mut expected = IPTABLES.to_vec();
        expected.sort_unstable();
        assert_eq!(unused, expected, "{flavour}: {report:#}");
        assert_eq!(report["unused"].as_array().unwrap().len(), 3, "{flavour}");
    }
}

/// Endpoints of each Service in [`kube_proxy_layout`].
const ENDPOINTS: usize = 10;

/// Objects and the rules that kube-proxy has for them, as files: a list of all Services, and a chain per endpoint.
fn kube_proxy_layout(services: usize) -> [String; 3] {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}})];
    let (mut chains, mut portals, mut rules) = (String::new(), String::new(), String::new());
    for number in 0..services {
        let name = format!("s{number}");
        let ip = format!("10.96.{}.{}", number / 250, number % 250 + 1);
        let addresses: Vec<String> = (number * ENDPOINTS..(number + 1) * ENDPOINTS)
            .map(|pod| format!("10.{}.{}.{}", 128 + pod / 62_500, pod % 62_500 / 250, pod % 250 + 1))
            .collect();
        objects.push(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}}));
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "n1"}))
            .collect();
        objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints}));
        let comment = format!("-m comment --comment \"default/{name}:http cluster IP\"");
        let chain = format!("KUBE-SVC-{number:016}");
        chains += &format!(":{chain} - [0:0]\n");
        portals += &format!("-A KUBE-SERVICES -d {ip}/32 -p tcp {comment} -m tcp --dport 80 -j {chain}\n");
        rules += &format!(
            "-A {chain} ! -s 10.128.0.0/9 -d {ip}/32 -p tcp {comment} -m tcp --dport 80 -j KUBE-MARK-MASQ\n"
        );
        for (index, address) in addresses.iter().enumerate() {
            let endpoint = format!("KUBE-SEP-{:016}", number * ENDPOINTS + index);
            let chance = match ENDPOINTS - index {
                1 => String::new(),
                left => format!("-m statistic --mode random --probability {:.11} ", 1.0 / left as f64),
            };
            chains += &format!(":{endpoint} - [0:0]\n");
            rules += &format!("-A {chain} {chance}-j {endpoint}\n");
            rules += &format!("-A {endpoint} -s {address}/32 -j KUBE-MARK-MASQ\n");
            rules += &format!("-A {endpoint} -p tcp -m tcp -j DNAT --to-destination {address}:8080\n");
        }
    }
    let saved = format!(
        "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n\
         -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n\
         *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
         :KUBE-MARK-MASQ - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]\n{chains}\
         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
         {portals}-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n{rules}COMMIT\n"
    );
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
        clusterCIDR: 10.128.0.0/9\n";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    [("objects.json", objects), ("rules.save", saved), ("config.yaml", config.to_owned())].map(
        |(file, text)| {
            let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("migrate-many-{file}"));
            std::fs::write(&target, text).unwrap();
            target.display().to_string()
        },
    )
}

/// docs/reference/migrate.md has the figures of this test with 10,000 Services.
#[test]
fn many_services_of_kube_proxys_layout_are_checked() {
    let services = std::env::var("ZONEWARD_MIGRATE_SERVICES").map_or(50, |count| count.parse().unwrap());
    let [objects, rules, config] = kube_proxy_layout(services);
    for to in ["nftables", "iptables", "ipvs"] {
        let start = std::time::Instant::now();
        let words = ["-f", &objects, "--rules", &rules, "--config", &config, "--node", "n1", "--to", to];
        let output = zoneward(&[&words[..], &["-o", "json"]].concat());
        println!("{services} Services to mode {to}: {:.1} s", start.elapsed().as_secs_f64());
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert!(report["flows"].as_u64().unwrap() >= 4 * services as u64, "{}", report["flows"]);
        let causes: Vec<&str> = report["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["cause"].as_str().unwrap())
            .collect();
        let expected: &[&str] = if to == "iptables" { &[] } else { &["UnusedPort", "InvalidDrop"] };
        assert_eq!(causes, expected, "to {to}");
    }
    for file in [objects, rules, config] {
        std::fs::remove_file(file).unwrap();
    }
}
