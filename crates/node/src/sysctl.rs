//! Sysctls and oom_score_adj, with a Notice where they cannot be set.
//!
//! `route_localnet` is set only for node ports on loopback addresses in mode iptables, beside the rule that keeps other
//! packets away from 127.0.0.0/8 (pitfall 16).

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use model::{GoDuration, Notice, ObjectRef};

use super::config::{Configuration, Mode};

/// Upper bound of nf_conntrack_max (pitfall 26).
const MAX_CONNTRACK: i64 = 1 << 20;

/// A kernel variable and its wanted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// Below /proc/sys, or elsewhere if it begins with a slash.
    pub path: &'static str,
    pub value: i64,
    /// Whether a greater value is as good.
    pub at_least: bool,
}

/// The sysctls of a configuration on a machine with this number of CPUs.
// Semantics D7: max = min(max(maxPerCore * CPUs, min), 1048576), 0 leaves it; hashsize at least a quarter.
pub fn wanted(config: &Configuration, cpus: usize) -> Vec<Sysctl> {
    let conntrack = &config.conntrack;
    let mut sysctls = vec![exactly("net/netfilter/nf_conntrack_acct", 1)];
    let per_core = conntrack.max_per_core.unwrap_or(0);
    if per_core > 0 {
        let cpus = i64::try_from(cpus).unwrap_or(1);
        let wanted = per_core.saturating_mul(cpus).max(conntrack.min.unwrap_or(0)).min(MAX_CONNTRACK);
        sysctls.push(Sysctl { path: "net/netfilter/nf_conntrack_max", value: wanted, at_least: false });
        let buckets = "/sys/module/nf_conntrack/parameters/hashsize";
        sysctls.push(Sysctl { path: buckets, value: wanted / 4, at_least: true });
    }
    let times = [
        ("net/netfilter/nf_conntrack_tcp_timeout_established", conntrack.tcp_established_timeout),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout", conntrack.udp_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", conntrack.udp_stream_timeout),
    ];
    let seconds = |period: GoDuration| i64::try_from(period.0.as_secs()).unwrap_or(i64::MAX);
    sysctls.extend(times.into_iter().filter_map(|(path, period)| {
        let period = period.filter(|period| !period.is_zero())?;
        Some(exactly(path, seconds(period)))
    }));
    if conntrack.tcp_be_liberal {
        sysctls.push(exactly(TCP_BE_LIBERAL, 1));
    }
    if serves_localhost(config) {
        sysctls.push(exactly("net/ipv4/conf/all/route_localnet", 1));
    }
    if config.mode == Mode::Ipvs.as_str() {
        sysctls.extend(of_ipvs(config));
    }
    sysctls
}

const TCP_BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";

/// Whether conntrack accepts TCP packets outside of the window, so that none of those is INVALID.
pub fn is_tcp_liberal() -> bool {
    fs::read_to_string(format!("/proc/sys/{TCP_BE_LIBERAL}")).is_ok_and(|value| value.trim() != "0")
}

/// Semantics D4: in mode iptables, where loopback addresses are among nodePortAddresses.
fn serves_localhost(config: &Configuration) -> bool {
    let is_on = config.mode == Mode::Iptables.as_str() && config.iptables.localhost_node_ports != Some(false);
    let holds_loopback = |word: &String| match word.trim() {
        "all" | "localhost" => true,
        range => range.parse::<IpNet>().is_ok_and(|range| {
            range.addr().is_ipv4() && (range.addr().is_loopback() || range.contains(&LOOPBACK))
        }),
    };
    let addresses = &config.node_port_addresses;
    is_on && (addresses.is_empty() || addresses.iter().any(holds_loopback))
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));

/// What kube-proxy sets in mode ipvs: masquerading needs conntrack entries, and connections and affinity to servers that
/// have gone end. `conn_reuse_mode` stays: all kernels that nftables needs reuse ports without a delay.
fn of_ipvs(config: &Configuration) -> Vec<Sysctl> {
    let mut sysctls = vec![
        exactly("net/ipv4/vs/conntrack", 1),
        exactly("net/ipv4/vs/expire_nodest_conn", 1),
        exactly("net/ipv4/vs/expire_quiescent_template", 1),
        exactly("net/ipv4/ip_forward", 1),
    ];
    if config.ipvs.strict_arp {
        sysctls.extend([exactly(ARP_IGNORE, 1), exactly("net/ipv4/conf/all/arp_announce", 2)]);
    }
    sysctls
}

const ARP_IGNORE: &str = "net/ipv4/conf/all/arp_ignore";

/// Whether this machine answers ARP requests for local addresses that no interface has.
pub fn answers_arp() -> bool {
    fs::read_to_string(format!("/proc/sys/{ARP_IGNORE}")).is_ok_and(|value| value.trim() == "0")
}

fn exactly(path: &'static str, value: i64) -> Sysctl {
    Sysctl { path, value, at_least: false }
}

/// Sets the sysctls that differ.
pub fn set(wanted: &[Sysctl]) -> Vec<Notice> {
    wanted.iter().filter_map(|sysctl| set_one(sysctl).err().map(|error| denied(sysctl, &error))).collect()
}

fn set_one(sysctl: &Sysctl) -> std::io::Result<()> {
    let path = if sysctl.path.starts_with('/') {
        sysctl.path.to_owned()
    } else {
        format!("/proc/sys/{}", sysctl.path)
    };
    let held: Option<i64> = fs::read_to_string(&path)?.trim().parse().ok();
    let is_fine = held.is_some_and(|held| held == sysctl.value || (sysctl.at_least && held > sysctl.value));
    if is_fine { Ok(()) } else { fs::write(&path, sysctl.value.to_string()) }
}

fn denied(sysctl: &Sysctl, error: &std::io::Error) -> Notice {
    let Sysctl { path, value, .. } = sysctl;
    let message = format!(
        "{path}: cannot be set to {value}: {error}; set it on the host, or run --init-only with privileges"
    );
    // Not an API object: the Event is recorded on the Node.
    Notice::new(ObjectRef::new("Kernel", "", "sysctl"), "SysctlNotSet", message)
}

/// Sets oom_score_adj of this process.
pub fn set_oom_score(score: i64) -> Option<Notice> {
    let error = fs::write("/proc/self/oom_score_adj", score.to_string()).err()?;
    let message = format!("oomScoreAdj: {score} cannot be set: {error}; it needs CAP_SYS_RESOURCE");
    Some(Notice::new(ObjectRef::new("Kernel", "", "oom_score_adj"), "OomScoreNotSet", message))
}

/// Online CPUs of the machine, not those in the cgroup of this process (pitfall 26).
pub fn cpus() -> usize {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?).map(|more| more + 1)
    };
    online.trim().split(',').filter_map(count).sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, cpus: usize) -> Vec<Sysctl> {
        let head =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
        let config = super::super::config::file::parse(&format!("{head}{text}")).unwrap().0;
        wanted(&super::super::config::resolve(config, false).unwrap().0.configuration, cpus)
    }

    fn value(wanted: &[Sysctl], name: &str) -> Option<i64> {
        wanted.iter().find(|sysctl| sysctl.path.ends_with(name)).map(|sysctl| sysctl.value)
    }

    #[test]
    fn mode_ipvs_keeps_conntrack_entries_and_is_silent_about_arp_where_asked() {
        let text = "mode: ipvs\nipvs: {strictARP: true}";
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let config = super::super::config::file::parse(&format!("{head}{text}")).unwrap().0;
        let sysctls = wanted(&super::super::config::resolve(config, false).unwrap().0.configuration, 2);
        assert_eq!(value(&sysctls, "vs/conntrack"), Some(1));
        assert_eq!(value(&sysctls, "all/arp_ignore"), Some(1));
        assert_eq!(value(&of("", 2), "vs/conntrack"), None);
    }

    #[test]
    fn limits_follow_the_cores_between_their_bounds() {
        // Semantics D7.
        assert_eq!(value(&of("", 2), "conntrack_max"), Some(131_072));
        assert_eq!(value(&of("", 8), "conntrack_max"), Some(262_144));
        assert_eq!(value(&of("", 256), "conntrack_max"), Some(1_048_576));
        assert_eq!(value(&of("", 8), "hashsize"), Some(65_536));
        assert_eq!(value(&of("conntrack: {maxPerCore: 0}", 8), "conntrack_max"), None);
        assert_eq!(value(&of("", 2), "timeout_established"), Some(86_400));
        assert_eq!(value(&of("conntrack: {tcpEstablishedTimeout: 0s}", 2), "timeout_established"), None);
        assert_eq!(value(&of("conntrack: {udpTimeout: 10s}", 2), "udp_timeout"), Some(10));
        assert_eq!(value(&of("conntrack: {tcpBeLiberal: true}", 2), "be_liberal"), Some(1));
        assert!(of("", 2).iter().all(|sysctl| !sysctl.path.contains("route_localnet")));
    }
}
