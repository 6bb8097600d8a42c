//! `zoneward cleanup` on the real kernel, in user and network namespaces of its own: what kube-proxy's modes leave, put
//! there by the programs that kube-proxy uses, goes; what others have there stays.
//!
//! IPVS itself is not in every kernel; its interface is made as a bridge where there are no dummy interfaces.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

const RULES: &str = include_str!("cleanup/kube-proxy.rules");
const VARIANTS: [&str; 4] = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"];

/// The same rules for IPv6.
fn rules_v6() -> String {
    let mut rules = RULES.replace("127.0.0.0/8", "::1/128");
    for (v4, v6) in [
        ("10.96.0.10/32", "fd00::a/128"),
        ("10.244.0.2/32", "fd00:1::2/128"),
        ("--to-destination 10.244.0.2:53", "--to-destination [fd00:1::2]:53"),
        ("--to-destination 10.244.0.3:53", "--to-destination [fd00:1::3]:53"),
    ] {
        rules = rules.replace(v4, v6);
    }
    rules
}

/// Runs a script in fresh namespaces, as root there, and gives what it printed.
fn in_namespaces(script: &str) -> String {
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-eu"])
        .env("PATH", toolbox::search_path())
        .env("zoneward", env!("CARGO_BIN_EXE_zoneward"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare is there, and user namespaces are allowed");
    child.stdin.take().expect("it was asked for").write_all(script.as_bytes()).expect("the shell reads it");
    let output = child.wait_with_output().expect("the shell ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything that kube-proxy's modes and we leave, and something of others beside each.
fn leftovers() -> String {
    let mut script = String::new();
    for variant in VARIANTS {
        let rules = if variant.starts_with("ip6") { rules_v6() } else { RULES.to_owned() };
        // Other tests of this machine may hold the lock of iptables-legacy for a moment.
        script += &format!("{variant}-restore -w 60 <<'END'\n{rules}END\n");
    }
    script
        + "
ipset create KUBE-LOOP-BACK hash:ip,port,ip
ipset create KUBE-CLUSTER-IP hash:ip,port
ipset create BLOCKED hash:ip
for variant in iptables-nft iptables-legacy; do
    $variant -w 60 -t nat -A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
    $variant -w 60 -A INPUT -m set --match-set BLOCKED src -j DROP
done
ip link add kube-ipvs0 type dummy 2>/dev/null || ip link add kube-ipvs0 type bridge
ip address add 10.96.0.10/32 dev kube-ipvs0
for table in 'ip zoneward' 'ip6 zoneward' 'ip kube-proxy' 'ip6 kube-proxy' 'inet zoneward' 'ip firewall'; do
    nft add table $table
    nft add chain $table services
done
"
}

const STATE: &str = "
for variant in iptables-nft iptables-legacy ip6tables-nft ip6tables-legacy; do
    echo \"== $variant\"
    $variant-save 2>/dev/null | grep -v '^#' | sed 's/ \\[[0-9:]*\\]//'
done
echo '== rest'
ipset list -name
ip -o link show | cut -d: -f2
nft list tables | grep -v 'filter$\\|nat$\\|mangle$'
";

/// The lines of what `iptables-save` shows that are of kube-proxy's making.
fn is_kube_proxys(line: &str) -> bool {
    let others = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY"];
    line.contains("KUBE-") && !others.iter().any(|name| line.contains(name))
}

#[test]
fn only_zoneward_leaves_the_rules_of_kube_proxy() {
    let script = format!(
        "{}{STATE}echo '== done'\n$zoneward cleanup --only-zoneward -o json\n{STATE}echo '== again'\n\
         $zoneward cleanup --only-zoneward\n",
        leftovers()
    );
    let printed = in_namespaces(&script);
    let (before, rest) = printed.split_once("== done\n").expect("a part");
    let (done, rest) = rest.split_once("== iptables-nft\n").expect("a part");
    let (after, again) = rest.split_once("== again\n").expect("a part");
    let done: Value = serde_json::from_str(done).expect("JSON");
    let names: Vec<&str> =
        done["removed"].as_array().expect("a list").iter().filter_map(|l| l["name"].as_str()).collect();
    assert_eq!(names, ["ip zoneward", "ip6 zoneward"]);
    assert_eq!((&done["failed"], &done["warnings"]), (&serde_json::json!([]), &serde_json::json!([])));
    let expected: Vec<&str> = before
        .lines()
        .filter(|line| !["table ip zoneward", "table ip6 zoneward"].contains(&line.trim()))
        .collect();
    let after = format!("== iptables-nft\n{after}");
    assert_eq!(after.lines().collect::<Vec<_>>(), expected);
    assert_eq!(again, "No rules of Zoneward found.\n");
}

/// `zoneward up` with its node proxy, and something that has the name of kube-proxy.
const RUNNING: &str = "
folder=$(mktemp -d)
ip link set lo up
ip address add 192.0.2.1/24 dev lo
$zoneward up --no-mesh --data-dir $folder --listen 127.0.0.1:16443 >$folder.out 2>$folder.err &
up=$!
bash -c 'exec -a /usr/local/bin/kube-proxy sleep 600' &
other=$!
trap 'kill $up $other; wait; rm -r $folder $folder.out $folder.err' EXIT
tries=0
until nft list table ip zoneward >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat $folder.err; exit 1; }
    sleep 0.1
done
";

#[test]
fn running_node_proxies_are_warned_of_with_the_way_to_stop_them() {
    let script = format!(
        "{RUNNING}echo $up $other\n$zoneward cleanup --dry-run -o json\necho '== ours'\n\
         $zoneward cleanup --dry-run --only-zoneward -o json\necho '== text'\n$zoneward cleanup --dry-run 2>&1\n"
    );
    let printed = in_namespaces(&script);
    let (processes, rest) = printed.split_once('\n').expect("a part");
    let (up, other) = processes.split_once(' ').expect("two");
    let (all, rest) = rest.split_once("== ours\n").expect("a part");
    let (ours, text) = rest.split_once("== text\n").expect("a part");
    let warnings = |text: &str| -> Vec<String> {
        let report: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let warnings = report["warnings"].as_array().expect("a list").iter();
        warnings.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (all, ours) = (warnings(all), warnings(ours));
    let is_ours = |warning: &&String| {
        warning.starts_with("zoneward node runs here as process ")
            && warning.ends_with(&format!(
                ": stop `zoneward up`, which started it, with `kill {up}`, then run this again"
            ))
    };
    assert_eq!((ours.len(), ours.iter().filter(is_ours).count()), (1, 1), "{ours:?}");
    assert_eq!((all.len(), all.iter().filter(is_ours).count()), (2, 1), "{all:?}");
    let kube_proxy = format!(
        "kube-proxy runs here as process {other} and restores its rules: stop it with `kill {other}`, then run this again"
    );
    assert!(all.contains(&kube_proxy), "{all:?}");
    assert!(text.contains(&format!("warning: {kube_proxy}\n")), "{text}");
}

#[test]
fn everything_that_a_node_proxy_left_goes_and_everything_else_stays() {
    let script = format!(
        "{}{STATE}echo '== dry'\n$zoneward cleanup --dry-run -o json\n{STATE}echo '== done'\n\
         $zoneward cleanup -o json\n{STATE}echo '== again'\n$zoneward cleanup\n",
        leftovers()
    );
    let printed = in_namespaces(&script);
    let (before, rest) = printed.split_once("== dry\n").expect("a part");
    let (dry, rest) = rest.split_once("== iptables-nft\n").expect("a part");
    let (still, rest) = rest.split_once("== done\n").expect("a part");
    let (done, rest) = rest.split_once("== iptables-nft\n").expect("a part");
    let (after, again) = rest.split_once("== again\n").expect("a part");

    assert_eq!(format!("== iptables-nft\n{still}"), before, "a dry run changes nothing");
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let (dry, done) = (parse(dry), parse(done));
    assert_eq!(dry["removed"], done["removed"], "a dry run says what will go");
    assert_eq!(done["failed"], serde_json::json!([]));

    let gone = ["KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "kube-ipvs0", "table ip zoneward", "table ip6 zoneward"];
    let gone = [&gone[..], &["table ip kube-proxy", "table ip6 kube-proxy"]].concat();
    let expected = before
        .lines()
        .filter(|line| !is_kube_proxys(line) && !gone.iter().any(|name| line.trim() == *name))
        .collect::<Vec<_>>();
    let after = format!("== iptables-nft\n{after}");
    assert_eq!(after.lines().collect::<Vec<_>>(), expected);
    assert!(before.lines().filter(|line| is_kube_proxys(line)).count() > 100, "{before}");
    assert!(after.contains("-j DOCKER") && after.contains("-A INPUT -j KUBE-FIREWALL"), "{after}");
    assert!(after.contains("table inet zoneward") && after.contains("BLOCKED"), "{after}");

    let removed = done["removed"].as_array().expect("a list");
    let named = |what: &str, name: &str| removed.iter().any(|l| l["what"] == what && l["name"] == name);
    assert!(named("iptables chain", "ip6tables-legacy nat KUBE-SEP-4OIMBIYGK4QJUGT7"), "{done}");
    assert!(named("nftables table", "ip kube-proxy") && named("IP set", "KUBE-LOOP-BACK"), "{done}");
    assert_eq!(again, "No rules of a node proxy found.\n");
}
