//! Kernel variables: those that forwarding needs, those that the node proxy sets at its start, and the fill level of
//! connection tracking.

use std::path::Path;

use nix::unistd::{AccessFlags, access};
use node::config::{self, Configuration, Mode};
use node::sysctl::{self, Sysctl};

use super::{Check, CheckStatus, read_trimmed};

const AREA: &str = "sysctl";
/// Share of the connection tracking table from which new connections are at risk.
const NEARLY_FULL: f64 = 0.8;

pub(super) fn check() -> Vec<Check> {
    let mut checks = vec![
        switch(
            "net.ipv4.ip_forward",
            "1",
            CheckStatus::Fail,
            "packets of pods are not forwarded to other nodes",
        ),
        switch("net.ipv6.conf.all.forwarding", "1", CheckStatus::Warn, "IPv6 packets are not forwarded"),
        switch(
            "net.ipv4.conf.all.route_localnet",
            "0",
            CheckStatus::Warn,
            "neighbours can reach 127.0.0.0/8 of this machine; Zoneward does not need it",
        ),
    ];
    checks.extend(wanted().iter().map(set_at_start));
    checks.extend(fill_level());
    checks
}

/// A variable with one right value.
fn switch(name: &str, wanted: &str, otherwise: CheckStatus, why: &str) -> Check {
    match read_trimmed(&path(name)) {
        Some(held) if held == wanted => Check::ok(AREA, name, held),
        Some(held) => Check { status: otherwise, ..Check::ok(AREA, name, format!("{held}: {why}")) }
            .fix(format!("sudo sysctl -w {name}={wanted}")),
        None => Check::warn(AREA, name, "does not exist in this kernel"),
    }
}

fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// What the node proxy sets with the default configuration.
fn wanted() -> Vec<Sysctl> {
    let configuration =
        Configuration { mode: Mode::Nftables.as_str().to_owned(), ..Configuration::default() };
    let settings = config::resolve(configuration, false);
    settings.map(|(settings, _)| sysctl::wanted(&settings.configuration, sysctl::cpus())).unwrap_or_default()
}

/// A variable that the node proxy sets, if it may.
fn set_at_start(sysctl: &Sysctl) -> Check {
    let Sysctl { path, value, at_least } = sysctl;
    let (name, file) = match path.strip_prefix('/') {
        Some(_) => ((*path).to_owned(), (*path).to_owned()),
        None => (path.replace('/', "."), format!("/proc/sys/{path}")),
    };
    let Some(held) = read_trimmed(&file) else {
        let message = "does not exist: nf_conntrack is not loaded";
        return Check::warn(AREA, name, message).fix("sudo modprobe nf_conntrack");
    };
    let is_fine = held.parse().is_ok_and(|held: i64| held == *value || (*at_least && held > *value));
    if is_fine {
        return Check::ok(AREA, name, held);
    }
    if access(Path::new(&file), AccessFlags::W_OK).is_ok() {
        return Check::ok(AREA, name, format!("{held}; the node proxy sets it to {value}"));
    }
    let fix = match path.starts_with('/') {
        true => format!("echo {value} | sudo tee {file}"),
        false => format!("sudo sysctl -w {name}={value}"),
    };
    let message = format!("{held} instead of {value}, and this process may not change it");
    Check::warn(AREA, name, message).fix(fix)
}

fn fill_level() -> Option<Check> {
    let number = |name: &str| read_trimmed(&path(name)).and_then(|text| text.parse::<u32>().ok());
    let name = "net.netfilter.nf_conntrack_count";
    let (count, max) = (number(name)?, number("net.netfilter.nf_conntrack_max")?);
    Some(fill_check(count, max))
}

fn fill_check(count: u32, max: u32) -> Check {
    let name = "net.netfilter.nf_conntrack_count";
    let message = format!("{count} of {max} entries in use");
    if f64::from(count) < NEARLY_FULL * f64::from(max) {
        return Check::ok(AREA, name, message);
    }
    let message = format!("{message}: new connections are dropped when it is full");
    Check::warn(AREA, name, message)
        .fix(format!("sudo sysctl -w net.netfilter.nf_conntrack_max={}", u64::from(max) * 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_connection_table_is_a_warning() {
        assert_eq!(fill_check(70, 100).status, CheckStatus::Ok);
        let full = fill_check(80, 100);
        assert_eq!(full.status, CheckStatus::Warn);
        assert_eq!(full.fix.as_deref(), Some("sudo sysctl -w net.netfilter.nf_conntrack_max=200"));
    }

    #[test]
    fn the_variables_of_the_node_proxy_are_among_the_checked_ones() {
        let names: Vec<&str> = wanted().iter().map(|sysctl| sysctl.path).collect();
        assert!(names.contains(&"net/netfilter/nf_conntrack_acct"), "{names:?}");
        assert!(names.contains(&"net/netfilter/nf_conntrack_max"), "{names:?}");
    }
}
