//! `zoneward preflight` on the real kernel, in namespaces of its own, and against the embedded API: each lack is named with
//! a command that ends it, and nothing on the machine changes.

use crate::started;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use started::{Up, folder};

/// Runs a script in fresh namespaces with an empty /etc, as root there, and gives what it printed.
fn in_namespaces(script: &str) -> String {
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-eu"])
        .env("PATH", toolbox::search_path())
        .env("zoneward", env!("CARGO_BIN_EXE_zoneward"))
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = "mount -t tmpfs tmpfs /etc\nip link set lo up\n";
    child.stdin.take().unwrap().write_all(format!("{start}{script}").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything that a check could have changed: rules, kernel variables, interfaces.
const STATE: &str = "
nft list ruleset
for save in iptables-legacy-save ip6tables-legacy-save; do $save 2>/dev/null | grep -v '^#' || true; done
ip -o link show | cut -d: -f2
for file in $(find /proc/sys/net/ipv4/conf /proc/sys/net/netfilter /proc/sys/net/ipv4/ip_forward -type f); do
    case $file in *_count) continue ;; esac
    echo \"$file $(cat $file 2>/dev/null || true)\"
done
";

fn report(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The check of this name, as (status, message, fix).
fn find(report: &Value, name: &str) -> (String, String, String) {
    let found: Vec<&Value> =
        report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == name).collect();
    let [one] = found[..] else { panic!("{name}: {} checks in {report:#}", found.len()) };
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"), text("fix"))
}

#[test]
fn a_machine_that_is_ready_passes_and_stays_as_it_is() {
    let script = format!(
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n\
         nft add table ip other\nnft add table ip zoneward\nnft add chain ip zoneward services\n\
         {STATE}echo '== report'\n$zoneward preflight --component up -o json\necho '== after'\n{STATE}\
         echo '== text'\n$zoneward preflight\n"
    );
    let printed = in_namespaces(&script);
    let (before, rest) = printed.split_once("== report\n").unwrap();
    let (json, rest) = rest.split_once("== after\n").unwrap();
    let (after, text) = rest.split_once("== text\n").unwrap();
    assert_eq!(before, after, "a check changed the machine");
    let report = report(json);
    for name in ["release", "CAP_NET_ADMIN", "nf_tables IPv4", "nf_tables IPv6", "connection tracking"] {
        assert_eq!(find(&report, name).0, "ok", "{name}: {report:#}");
    }
    assert_eq!(find(&report, "net.ipv4.ip_forward").0, "ok");
    assert_eq!(find(&report, "rules of kube-proxy").0, "ok", "our own table is not kube-proxy's: {report:#}");
    assert_eq!(report["summary"]["fail"], 0, "{report:#}");
    assert!(text.contains("\nReady: 0 failures,"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("  ") || line.chars().count() <= 80), "{text}");
}

#[test]
fn each_obstacle_is_named_and_its_fix_removes_it() {
    let script = format!(
        "sysctl -qw net.ipv4.ip_forward=0\n\
         iptables-nft -t nat -N KUBE-SERVICES\niptables-legacy -w 60 -t nat -N KUBE-SVC-TCOU7JCQXEZGVUNU\n\
         nft add table ip kube-proxy\n\
         mkdir -p /etc/cni/net.d\n\
         echo '{{\"name\": \"n\", \"plugins\": [{{\"type\": \"cilium-cni\"}}]}}' >/etc/cni/net.d/05-cilium.conflist\n\
         bash -c 'exec -a /usr/local/bin/kube-proxy sleep 600' &\nproxy=$!\n\
         bash -c 'exec -a /usr/bin/kube-router sleep 600' &\nrouter=$!\n\
         trap 'kill $proxy $router 2>/dev/null || true' EXIT\n\
         while ! grep -q kube-router /proc/$router/cmdline || ! grep -q kube-proxy /proc/$proxy/cmdline; do sleep 0.05; done\n\
         {STATE}echo '== report'\n\
         $zoneward preflight --component node -o json && exit 9 || [ $? -eq 1 ]\n\
         echo '== after'\n{STATE}echo '== fixed'\n\
         kill $proxy $router\nwait $proxy $router || true\n\
         sysctl -qw net.ipv4.ip_forward=1\n$zoneward cleanup >/dev/null\n\
         $zoneward preflight --component node -o json\n"
    );
    let printed = in_namespaces(&script);
    let (before, rest) = printed.split_once("== report\n").unwrap();
    let (json, rest) = rest.split_once("== after\n").unwrap();
    let (after, fixed) = rest.split_once("== fixed\n").unwrap();
    assert_eq!(before, after, "a check changed the machine");
    let (before, after) = (report(json), report(fixed));
    let (status, _, fix) = find(&before, "net.ipv4.ip_forward");
    assert_eq!((status.as_str(), fix.as_str()), ("fail", "sudo sysctl -w net.ipv4.ip_forward=1"));
    let (status, message, fix) = find(&before, "rules of kube-proxy");
    assert_eq!((status.as_str(), fix.as_str()), ("fail", "sudo zoneward cleanup"));
    for part in ["ip kube-proxy", "KUBE-SERVICES", "KUBE-SVC-TCOU7JCQXEZGVUNU"] {
        assert!(message.contains(part), "{message}");
    }
    let (status, message, fix) = find(&before, "kube-proxy");
    assert_eq!(status, "fail");
    let process = message.split("process ").nth(1).unwrap().split(';').next().unwrap();
    assert_eq!(fix, format!("sudo kill {process}"));
    assert_eq!(find(&before, "kube-router").0, "fail");
    assert_eq!(find(&before, "plugin").0, "warn", "{before:#}");
    for name in ["net.ipv4.ip_forward", "rules of kube-proxy", "running"] {
        assert_eq!(find(&after, name).0, "ok", "{after:#}");
    }
    assert_eq!(after["summary"]["fail"], 0, "{after:#}");
}

#[test]
fn without_rights_the_kernel_is_not_probed_and_that_is_said() {
    // Root of no namespace: the network belongs to the first one.
    let output = Command::new("unshare")
        .args([
            "--user",
            env!("CARGO_BIN_EXE_zoneward"),
            "preflight",
            "--component",
            "node",
            "--no-api",
            "-o",
            "json",
        ])
        .env_remove("KUBECONFIG")
        .output()
        .unwrap();
    let report = report(&String::from_utf8(output.stdout).unwrap());
    for name in ["CAP_NET_ADMIN", "nf_tables IPv4"] {
        let (status, _, fix) = find(&report, name);
        assert_eq!((status.as_str(), fix.as_str()), ("warn", "sudo zoneward preflight"), "{report:#}");
    }
}

fn kubectl(kubeconfig: &str, words: &[&str]) -> String {
    let output = Command::new(toolbox::path("kubectl"))
        .args(["--kubeconfig", kubeconfig, "--cache-dir", &format!("{kubeconfig}.cache")])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn preflight(kubeconfig: &str, component: &str) -> (Output, Value) {
    let words = ["preflight", "--component", component, "--kubeconfig", kubeconfig, "-o", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(words).output().unwrap();
    let value = report(&String::from_utf8_lossy(&output.stdout));
    (output, value)
}

#[test]
fn a_token_without_rights_is_told_which_it_lacks_and_the_fix_grants_them() {
    let data = folder("preflight-rights");
    let up = Up::start(&data, &["--no-controllers", "--no-mesh"]);
    let admin = &up.kubeconfig;
    let (output, whole) = preflight(admin, "controller");
    assert_eq!(find(&whole, "controller").0, "ok", "{whole:#}");
    assert!(output.status.success(), "{whole:#}");
    assert_eq!(find(&whole, "Kubernetes version").0, "ok");
    assert_eq!(find(&whole, "zoneward.dev/v1alpha1").0, "ok");
    assert_eq!(find(&whole, "gateway.networking.k8s.io/v1").1, "served");
    kubectl(admin, &["create", "serviceaccount", "bot", "-n", "default"]);
    let token = kubectl(admin, &["create", "token", "bot", "-n", "default"]);
    let bot = data.join("bot.kubeconfig").display().to_string();
    std::fs::copy(admin, &bot).unwrap();
    kubectl(&bot, &["config", "set-credentials", "bot", "--token", token.trim()]);
    let context = kubectl(&bot, &["config", "current-context"]);
    kubectl(&bot, &["config", "set-context", context.trim(), "--user", "bot"]);
    let (output, lacking) = preflight(&bot, "controller");
    assert_eq!(output.status.code(), Some(1));
    let (status, message, fix) = find(&lacking, "controller");
    assert_eq!(status, "fail");
    for right in [
        "system:serviceaccount:default:bot lacks:",
        "list, watch pods",
        "get, list, watch, create, update, patch, delete endpointslices.discovery.k8s.io",
        "get, update leases.coordination.k8s.io zoneward-controller in kube-system",
        "patch services/status",
    ] {
        assert!(message.contains(right), "{right} in {message}");
    }
    assert_eq!(find(&lacking, "controller (optional)").0, "warn");
    let text = format!("{lacking}");
    assert!(!text.contains(token.trim()), "the token is in the report");
    // As the fix says, for this account.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let granted = Command::new("sh")
        .args(["-euc", &fix])
        .current_dir(root)
        .env("KUBECONFIG", admin)
        .env("PATH", toolbox::search_path())
        .output()
        .unwrap();
    assert!(granted.status.success(), "{fix}: {}", String::from_utf8_lossy(&granted.stderr));
    let (_, rest) = preflight(&bot, "controller");
    let (_, message, fix) = find(&rest, "controller");
    assert!(!message.contains("pods"), "{message}");
    assert!(message.contains("leases.coordination.k8s.io"), "roles of namespaces are left: {message}");
    assert!(fix.contains("rolebinding") && fix.contains("-n kube-system"), "{fix}");
    assert_eq!(find(&rest, "reachable").0, "ok");
    drop(up);
    std::fs::remove_dir_all(&data).unwrap();
}

#[test]
fn an_api_that_is_away_is_a_failure_and_none_at_all_is_not() {
    let folder = folder("preflight-away");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("kubeconfig");
    std::fs::write(
        &file,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: secret-token}}]\n",
    )
    .unwrap();
    let (output, report) = preflight(&file.display().to_string(), "controller");
    assert_eq!(output.status.code(), Some(1));
    let (status, message, _) = find(&report, "reachable");
    assert_eq!(status, "fail");
    assert!(message.contains("127.0.0.1:1"), "{message}");
    std::fs::remove_dir_all(&folder).unwrap();
}
