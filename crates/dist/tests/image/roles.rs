//! Each role of the manifests with exactly its rights.

use std::fs;
use std::process::Command;

use dist::image::ImageVariant;
use fixtures::eventually;
use serde_json::json;

use super::container::{Container, Runtime, bounding_set};
use super::manifests::{Role, role, roles};
use super::node::{Node, certificates};
use super::run;

pub(crate) const NET_ADMIN: u64 = 1 << 12;

/// A node with a Service whose one pod is the health page of the API.
pub(crate) fn shop(runtime: &Runtime) -> Node {
    let node = Node::start(runtime);
    node.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1",
        "labels": {"topology.kubernetes.io/zone": "za"}}}));
    node.apply(&json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.7", "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 9090}]}}));
    node
}

pub(crate) fn slice() -> serde_json::Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": 9090, "protocol": "TCP"}]})
}

fn start(runtime: &Runtime, node: &Node, role: &Role) -> Container {
    runtime.start(role, &node.network(), &certificates(&runtime.scratch), &node.account)
}

/// Starts a role, and waits until its own readiness probe succeeds.
pub(crate) fn start_ready(runtime: &Runtime, node: &Node, role: &Role) -> Container {
    let mut container = start(runtime, node, role);
    let url = role.readiness().unwrap_or_else(|| panic!("{}: no readiness probe", role.name));
    eventually(&format!("{} ready at {url}", role.name), || {
        assert!(container.is_running(), "{}: {}", role.name, container.log());
        node.get(&url).is_some()
    });
    container
}

/// User and capabilities of its process are those that the manifest names.
pub(crate) fn assert_rights(container: &Container, user: u64, capabilities: u64) {
    let status = container.status();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(field("Uid:"), user.to_string());
    assert_eq!(field("CapEff:"), format!("{capabilities:016x}"));
    assert_eq!(bounding_set(&status), capabilities);
    assert_eq!(field("NoNewPrivs:"), "1");
}

#[test]
fn every_container_of_the_manifests_starts_on_a_read_only_root() {
    let runtime = Runtime::new("start", ImageVariant::Plain);
    for role in roles() {
        assert!(role.has_read_only_root() || role.is_privileged(), "{}", role.name);
        let spec = runtime.spec(&role);
        assert_eq!(spec["linux"]["seccomp"].is_object(), role.has_default_seccomp(), "{}", role.name);
        let (code, said) = runtime.run(spec, &["--version".to_owned()], None).ended();
        assert_eq!(
            (code, said.trim()),
            (Some(0), concat!("zoneward ", env!("CARGO_PKG_VERSION"))),
            "{}",
            role.name
        );
    }
}

#[test]
fn node_proxy_programs_the_kernel_with_net_admin_alone() {
    let runtime = Runtime::new("node", ImageVariant::Plain);
    let node = shop(&runtime);
    node.apply(&slice());
    let role = role(&["node"], None);
    assert_eq!(role.user().0, 0, "added capabilities are effective for root only");
    let mut proxy = start_ready(&runtime, &node, &role);
    // SYS_RESOURCE lowers oom_score_adj, where the manifest has it and this machine can give it.
    let more = bounding_set(&proxy.status()) & 1 << 24;
    assert_rights(&proxy, 0, NET_ADMIN | more);
    eventually("a connection through the cluster IP", || {
        node.get("http://10.96.0.7/livez").is_some_and(|answer| answer.contains("ok"))
    });
    // Entries of endpoints that are gone are deleted by netlink.
    node.apply(&json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "dns", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.10",
            "selector": {"app": "dns"}, "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}}));
    let mut dns = slice();
    dns["metadata"] =
        json!({"name": "dns-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "dns"}});
    dns["ports"] = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    node.apply(&dns);
    let rules = || run(node.command("nft").args(["list", "table", "ip", "zoneward"]));
    eventually("the rules of the second Service", || rules().contains("10.96.0.10"));
    let flow = "-I -t 600 -p udp -s 10.1.0.9 -d 10.96.0.10 --sport 999 --dport 53 \
        -r 10.1.0.1 -q 10.1.0.9 --reply-port-src 53 --reply-port-dst 999";
    run(node.command("conntrack").args(flow.split_whitespace()));
    let flows = || run(node.command("conntrack").args(["-L", "-p", "udp"]));
    assert!(flows().contains("10.96.0.10"), "{}", flows());
    dns["endpoints"] = json!([]);
    node.apply(&dns);
    eventually("the entry is deleted", || !flows().contains("10.96.0.10"));
    assert_eq!(proxy.stop(), Some(0), "{}", proxy.log());
    assert!(rules().contains("10.96.0.7"), "rules stay");
}

#[test]
fn node_proxy_without_net_admin_says_so() {
    let runtime = Runtime::new("lacking", ImageVariant::Plain);
    let node = shop(&runtime);
    let mut role = role(&["node"], None);
    role.container["securityContext"]["capabilities"]["add"] = json!([]);
    let mut proxy = start(&runtime, &node, &role);
    eventually("an error", || !proxy.is_running() || proxy.log().contains("NET_ADMIN"));
    assert!(proxy.log().contains("NET_ADMIN"), "{}", proxy.log());
}

#[test]
fn kernel_variables_are_set_by_the_privileged_init_container_alone() {
    let runtime = Runtime::new("sysctl", ImageVariant::Plain);
    let node = shop(&runtime);
    let name = "/proc/sys/net/netfilter/nf_conntrack_acct";
    let set = |value: &str| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", node.network().display()));
        run(command.args([
            "sh",
            "-euc",
            &format!("test -z '{value}' || echo '{value}' > {name}; cat {name}"),
        ]))
    };
    assert_eq!(set("0").trim(), "0");
    let mut role = role(&["node"], Some("--init-only"));
    // The size of the table is one for the whole machine, and left alone. A file of configuration would win over flags.
    role.container["args"] =
        json!(["node", "--init-only", "--proxy-mode=nftables", "--conntrack-max-per-core=0"]);
    role.container["command"] = json!(null);
    let (code, said) = start(&runtime, &node, &role).ended();
    assert_eq!((code, set("").trim()), (Some(0), "1"), "{said}");
    // The same with the rights of the long-running container: /proc/sys is read-only there.
    assert_eq!(set("0").trim(), "0");
    role.container["securityContext"] =
        super::manifests::role(&["node"], None).container["securityContext"].clone();
    let (_, said) = start(&runtime, &node, &role).ended();
    assert_eq!(set("").trim(), "0");
    assert!(said.contains("nf_conntrack_acct") && said.contains("--init-only"), "{said}");
}

#[test]
fn controller_writes_slices_as_nonroot_without_a_capability() {
    let runtime = Runtime::new("controller", ImageVariant::Plain);
    let node = shop(&runtime);
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    node.apply(&pod);
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    run(&mut node.kubectl(&[
        "patch",
        "pod",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ]));
    let mut controller = start_ready(&runtime, &node, &role(&["controller"], None));
    assert_rights(&controller, 65532, 0);
    eventually("the slice", || {
        let slices = node.list(&["endpointslices", "-n", "default"]);
        slices.iter().any(|slice| slice["endpoints"][0]["addresses"][0] == "10.1.0.1")
    });
    assert_eq!(controller.stop(), Some(0), "{}", controller.log());
}

#[test]
fn mesh_roles_get_ready_as_nonroot_without_a_capability() {
    let runtime = Runtime::new("mesh", ImageVariant::Plain);
    let node = shop(&runtime);
    node.apply(&slice());
    node.apply(&json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {"listeners": [{"name": "http", "port": 8080, "protocol": "HTTP", "tags": {"port": "http"}}]}}));
    node.apply(&json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [{
            "matches": [{"path": {"type": "Prefix", "value": "/"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "web", "port": 80}]}}]}}));
    let mut control = start_ready(&runtime, &node, &role(&["mesh", "control"], None));
    assert_rights(&control, 65532, 0);
    let gateway = start_ready(&runtime, &node, &role(&["mesh", "proxy"], None));
    assert_rights(&gateway, 65532, 0);
    eventually("an answer through the gateway", || {
        node.get("http://127.0.0.1:8080/livez").is_some_and(|answer| answer.contains("ok"))
    });
    let (code, said) = start(&runtime, &node, &role(&["mesh", "bootstrap"], None)).ended();
    assert_eq!(code, Some(0), "{said}");
    let written = fs::read_to_string(runtime.scratch.path("volumes/bootstrap/envoy.yaml")).unwrap();
    assert!(written.contains("edge"), "{written}");
    assert_eq!(control.stop(), Some(0), "{}", control.log());
    // Its drain is 45 s, which a test does not wait for.
    drop(gateway);
}
