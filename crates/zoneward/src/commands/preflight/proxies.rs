//! Other programs that forward Services on this machine, and rules that they left.

use std::path::Path;

use super::Check;
use crate::commands::cleanup::{self, running};

const AREA: &str = "proxy";

pub(super) fn check() -> Vec<Check> {
    let mut checks = running();
    checks.extend(interfaces(&interface_names()));
    checks.push(leftovers());
    checks
}

fn running() -> Vec<Check> {
    let proc = Path::new("/proc");
    let mut checks = Vec::new();
    let found = running::find(proc, false);
    for proxy in &found {
        let name = proxy.program();
        let message = format!("runs here as process {}", proxy.process());
        checks.push(match proxy.is_zoneward() {
            true => Check::ok(AREA, name, message),
            false => Check::fail(AREA, name, message + "; two proxies on one node overwrite each other")
                .fix(proxy.command()),
        });
    }
    for other in running::other_proxies(proc) {
        let message = format!("runs here as process {}: {}", other.process, other.reason);
        let check = match other.conflicts {
            true => Check::fail(AREA, other.program, message),
            false => Check::warn(AREA, other.program, message),
        };
        checks.push(check.fix(other.fix));
    }
    if checks.is_empty() {
        checks.push(Check::ok(AREA, "running", "no other proxy runs in this network namespace"));
    }
    checks
}

/// Names of network interfaces of this network namespace.
fn interface_names() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Interfaces that proxies other than kube-proxy leave or use.
const INTERFACES: [(&str, &str, &str); 4] = [
    ("cilium_host", "Cilium", "kubectl -n kube-system get configmap cilium-config -o yaml"),
    ("kube-dummy-if", "kube-router", "sudo kube-router --cleanup-config"),
    (
        "bpfin.cali",
        "Calico with eBPF",
        "kubectl patch felixconfiguration default --type merge -p '{\"spec\":{\"bpfEnabled\":false}}'",
    ),
    ("nodelocaldns", "node-local-dns", ""),
];

fn interfaces(names: &[String]) -> Vec<Check> {
    let found = INTERFACES.iter().filter(|(interface, _, _)| names.iter().any(|name| name == interface));
    let one = |(interface, program, fix): &(&str, &str, &str)| match fix.is_empty() {
        true => Check::ok(AREA, *interface, format!("{program}, which works beside the node proxy")),
        false => Check::warn(
            AREA,
            *interface,
            format!("interface of {program}, which may forward Services itself"),
        )
        .fix(*fix),
    };
    found.map(one).collect()
}

/// Rules in the kernel: tables, chains, IP sets and virtual servers of kube-proxy.
fn leftovers() -> Check {
    let name = "rules of kube-proxy";
    let (found, unread) = cleanup::kube_proxy_leftovers();
    if found.is_empty() && unread.is_empty() {
        return Check::ok(AREA, name, "none");
    }
    if found.is_empty() {
        let message = format!("not checked: {}", unread.join("; "));
        return Check::warn(AREA, name, message).fix("sudo zoneward preflight");
    }
    const SHOWN: usize = 4;
    let mut message = found.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if found.len() > SHOWN {
        message += &format!(" and {} more", found.len() - SHOWN);
    }
    let proxies = running::find(Path::new("/proc"), false);
    let fix = match proxies.iter().any(running::RunningProxy::is_zoneward) {
        // `zoneward cleanup` would remove the rules of the running node proxy, too.
        true => "sudo kube-proxy --cleanup",
        false => "sudo zoneward cleanup",
    };
    Check::fail(AREA, name, message + ": they decide before or after ours").fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::preflight::CheckStatus;

    #[test]
    fn interfaces_of_other_proxies_are_named() {
        let names = ["lo", "cilium_host", "nodelocaldns"].map(str::to_owned);
        let found = interfaces(&names);
        let of: Vec<(&str, CheckStatus)> = found.iter().map(|c| (c.name.as_str(), c.status)).collect();
        assert_eq!(of, [("cilium_host", CheckStatus::Warn), ("nodelocaldns", CheckStatus::Ok)]);
    }
}
