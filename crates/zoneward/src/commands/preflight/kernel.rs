//! Kernel features that the node proxy uses. The kernel validates a ruleset with every construct that the node proxy
//! renders, in a transaction that is not committed.

use anyhow::{Context, Result};
use dataplane::conntrack::{ConntrackEvents, ConntrackSocket};
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{ApplyError, check_kernel, check_support};
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{Renderer, table_id};
use model::{Family, ForwardingTable, Interner, Node, Snapshot, parse};
use nix::errno::Errno;
use plan::forward::{NodeConfig, ProxySettings};
use serde_json::{Value, json};

use super::{Check, read_trimmed};

const AREA: &str = "kernel";
/// Bit of CAP_NET_ADMIN.
const NET_ADMIN: u32 = 12;
const AS_ROOT: &str = "sudo zoneward preflight";

pub(super) fn check() -> Vec<Check> {
    let mut checks = vec![release(), capability()];
    for family in [Family::V4, Family::V6] {
        checks.push(nftables(family));
    }
    checks.push(connection_tracking());
    checks.push(connection_events());
    checks
}

fn release() -> Check {
    let release = read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_default();
    let skip =
        std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK").is_some_and(|v| !v.is_empty());
    match check_kernel(&release, skip) {
        Ok(()) => Check::ok(AREA, "release", release),
        Err(error) => Check::fail(AREA, "release", error.to_string())
            .fix("sudo apt-get install --only-upgrade linux-image-generic && sudo reboot"),
    }
}

fn capability() -> Check {
    let status = read_trimmed("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    match bits >> NET_ADMIN & 1 {
        1 => Check::ok(AREA, "CAP_NET_ADMIN", "this process has it"),
        _ => Check::warn(
            AREA,
            "CAP_NET_ADMIN",
            "this process lacks it: the kernel was not probed, and the node proxy needs it",
        )
        .fix(AS_ROOT),
    }
}

fn nftables(family: Family) -> Check {
    let name = format!("nf_tables {family}");
    let ruleset = match probe(family) {
        Ok(ruleset) => ruleset,
        Err(error) => return Check::warn(AREA, name, format!("not probed: {error:#}")),
    };
    let checked = NetlinkSocket::open()
        .map_err(|cause| ApplyError { change: None, cause, done: 0 })
        .and_then(|mut kernel| check_support(&mut kernel, &ruleset));
    match checked {
        Ok(()) => Check::ok(AREA, name, "accepts every construct of the rules"),
        Err(error) => refused(&name, family, &error.cause, error.change.as_deref()),
    }
}

/// What the kernel lacks.
fn refused(name: &str, family: Family, cause: &NetlinkError, change: Option<&str>) -> Check {
    if matches!(cause.errno(), Some(Errno::EPERM | Errno::EACCES)) {
        let message = format!("not probed: {cause}");
        return Check::warn(AREA, name, message).fix(AS_ROOT);
    }
    let change = change.unwrap_or("the table");
    // Long rules say no more than their beginning.
    let start: String = change.chars().take(120).collect();
    let message = format!("refused: {cause}, for `{start}`");
    let modules = modules(change, family).join(" ");
    let check = match family {
        Family::V4 => Check::fail(AREA, name, message),
        // A machine without IPv6 serves IPv4.
        Family::V6 => Check::warn(AREA, name, message),
    };
    check.fix(format!("sudo modprobe -a {modules}"))
}

/// The modules of the expressions in a change.
fn modules(change: &str, family: Family) -> Vec<&'static str> {
    // Rules are named by what they do.
    let of_word = [
        ("DNAT", "nft_nat"),
        ("masquerade", "nft_masq"),
        ("random", "nft_numgen"),
        ("reset", "nft_reject"),
        ("unreachable", "nft_reject"),
        ("count", "nft_ct"),
        ("routing", "nft_chain_nat"),
    ];
    let mut found = vec!["nf_tables"];
    found.extend(of_word.iter().filter(|(word, _)| change.contains(word)).map(|(_, module)| *module));
    if change.contains("node port") || change.contains("this node") {
        found.push("nft_fib");
        found.push(if family == Family::V4 { "nft_fib_ipv4" } else { "nft_fib_ipv6" });
    }
    found
}

/// A ruleset with every construct that Services can ask for.
fn probe(family: Family) -> Result<Ruleset> {
    let table = probe_table(family)?;
    let mut ruleset = Renderer::start(&table).1;
    ruleset.tables.retain(|table, _| *table == table_id(family));
    Ok(ruleset)
}

fn probe_table(family: Family) -> Result<ForwardingTable> {
    let mut snapshot = Snapshot::default();
    for object in objects(family) {
        let (parsed, notices) = parse::object(&object, &mut Interner::default());
        snapshot.apply(parsed.with_context(|| format!("parsing the sample objects: {notices:?}"))?);
    }
    let settings = ProxySettings {
        cluster_cidr: "10.1.0.0/16,fd00:1::/64".to_owned(),
        ..ProxySettings::without_flags()
    };
    let cidrs = ["10.96.0.0/24", "fd00:96::/112"].map(|cidr| cidr.parse().expect("a constant"));
    let (config, _) = NodeConfig::new(&settings, &Node::named("probe"), &cidrs, &[]);
    Ok(plan::forward::table(&snapshot, &config).0)
}

/// Session affinity, node ports, traffic policy Local, source ranges, weights, a Service without endpoints, and all
/// protocols.
fn objects(family: Family) -> Vec<Value> {
    let (prefix, address_type, pods) = match family {
        Family::V4 => ("10.96.0.", "IPv4", ["10.1.0.2", "10.1.0.3", "10.1.0.4"]),
        Family::V6 => ("fd00:96::", "IPv6", ["fd00:1::2", "fd00:1::3", "fd00:1::4"]),
    };
    let range = if family == Family::V4 { "192.0.2.0/24" } else { "2001:db8::/32" };
    let mut objects = Vec::new();
    for (number, affinity, policy, protocol) in
        [(1, "None", "Cluster", "TCP"), (2, "ClientIP", "Local", "UDP"), (3, "None", "Local", "SCTP")]
    {
        let name = format!("probe-{number}");
        let ip = format!("{prefix}{number}");
        let ingress = format!("{prefix}1{number}");
        objects.push(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "LoadBalancer", "clusterIP": ip, "clusterIPs": [ip], "sessionAffinity": affinity,
                "externalTrafficPolicy": policy, "loadBalancerSourceRanges": [range],
                "ports": [{"name": "p", "protocol": protocol, "port": 80, "nodePort": 30_000 + number}]},
            "status": {"loadBalancer": {"ingress": [{"ip": ingress}]}}}));
        let endpoints: Vec<Value> =
            pods.iter().map(|ip| json!({"addresses": [ip], "nodeName": "probe"})).collect();
        objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": address_type, "ports": [{"name": "p", "protocol": protocol, "port": 8080}],
            "endpoints": endpoints}));
    }
    let ip = format!("{prefix}9");
    objects.push(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "probe-empty"},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}}));
    objects
}

fn connection_tracking() -> Check {
    let listed = ConntrackSocket::open().and_then(|mut socket| {
        let filter = dataplane::conntrack::ConntrackFilter {
            protocol: dataplane::conntrack::UDP,
            family: Family::V4,
            dst: None,
            dport: None,
        };
        dataplane::conntrack::ConntrackTable::dump(&mut socket, &filter, &mut |_| {})
    });
    let name = "connection tracking";
    match listed {
        Ok(_) => Check::ok(AREA, name, "its table can be read"),
        Err(error) if error.errno() == Some(Errno::EPERM) => {
            Check::warn(AREA, name, format!("not probed: {error}")).fix(AS_ROOT)
        }
        Err(error) => Check::fail(
            AREA,
            name,
            format!("its table cannot be read ({error}): stale UDP flows to removed endpoints would stay"),
        )
        .fix("sudo modprobe -a nf_conntrack nf_conntrack_netlink"),
    }
}

fn connection_events() -> Check {
    let name = "connection events";
    match ConntrackEvents::open() {
        Ok(_) => Check::ok(AREA, name, "can be received"),
        Err(error) => {
            let message = format!("cannot be received ({error}): bytes by zone would stay 0");
            let root = matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES));
            let fix = if root { AS_ROOT } else { "sudo modprobe nf_conntrack_netlink" };
            Check::warn(AREA, name, message).fix(fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::preflight::CheckStatus;

    #[test]
    fn the_probe_contains_every_construct_of_both_families() {
        for family in [Family::V4, Family::V6] {
            let ruleset = probe(family).unwrap();
            assert_eq!(ruleset.tables.len(), 1);
            let changes = dataplane::nftables::diff::diff(&Ruleset::default(), &ruleset).now;
            let text: String = changes.iter().map(|change| format!("{change}\n")).collect();
            for word in [
                "DNAT to a random endpoint",
                "masquerade: hairpin",
                "lookup by node port",
                "source is this node",
                "TCP reset",
                "session affinity: pick an endpoint and store it",
                "loadBalancerSourceRanges",
                "count connections",
                "unassigned address of a ServiceCIDR",
            ] {
                assert!(text.contains(word), "{family}: no {word} in\n{text}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_modules_and_a_missing_right_is_not_a_lack_of_the_kernel() {
        let refusal = |errno| NetlinkError::Refused { seq: 7, errno, text: None };
        let change = "add rule ip zoneward services (lookup by node port)";
        let check = refused("nf_tables IPv4", Family::V4, &refusal(Errno::ENOENT), Some(change));
        assert_eq!(check.status, CheckStatus::Fail);
        assert_eq!(check.fix.as_deref(), Some("sudo modprobe -a nf_tables nft_fib nft_fib_ipv4"));
        let check = refused("nf_tables IPv6", Family::V6, &refusal(Errno::ENOENT), Some(change));
        assert_eq!(check.status, CheckStatus::Warn);
        let check = refused("nf_tables IPv4", Family::V4, &refusal(Errno::EPERM), None);
        assert_eq!((check.status, check.fix.as_deref()), (CheckStatus::Warn, Some(AS_ROOT)));
    }
}
