//! Leftovers of kube-proxy's IPVS mode besides iptables: IP sets, virtual servers on its interface, and the
//! interface.

use std::collections::BTreeSet;

use anyhow::Result;
use dataplane::ipvs::{DUMMY_ALIAS, DUMMY_INTERFACE as INTERFACE};

use super::program::run;
use super::{CleanupReport, Leftover};

/// The addresses of kube-proxy's interface.
pub(in crate::commands) fn interface_addresses() -> BTreeSet<String> {
    let listing = run("ip", &["-o", "address", "show", "dev", INTERFACE], "");
    listing.ok().flatten().map(|listing| addresses(&listing)).unwrap_or_default()
}

/// Virtual servers on other addresses are kept: they may belong to other programs.
pub(super) fn remove(dry_run: bool, report: &mut CleanupReport) {
    remove_sets(dry_run, report);
    if is_zonewards() {
        return;
    }
    let Ok(Some(listing)) = run("ip", &["-o", "address", "show", "dev", INTERFACE], "") else { return };
    let addresses = addresses(&listing);
    let saved = run("ipvsadm", &["--save", "--numeric"], "").ok().flatten();
    if saved.is_none() {
        report_rest(report);
    }
    let saved = saved.unwrap_or_default();
    for server in servers(&saved, &addresses) {
        let leftover = Leftover { what: "IPVS virtual server", name: server.join(" ") };
        let words: Vec<&str> =
            ["--delete-service"].into_iter().chain(server.iter().map(String::as_str)).collect();
        report.add(vec![leftover], act(dry_run, "ipvsadm", &words));
    }
    let leftover = Leftover { what: "interface", name: INTERFACE.to_owned() };
    report.add(vec![leftover], act(dry_run, "ip", &["link", "delete", INTERFACE]));
}

/// Whether the interface is that of Zoneward's mode ipvs, which is removed with its virtual servers.
pub(super) fn is_zonewards() -> bool {
    let alias = std::fs::read_to_string(format!("/sys/class/net/{INTERFACE}/ifalias"));
    alias.is_ok_and(|alias| alias.trim_end() == DUMMY_ALIAS)
}

/// Reports virtual servers that cannot be removed without ipvsadm.
fn report_rest(report: &mut CleanupReport) {
    let listing = std::fs::read_to_string("/proc/net/ip_vs").unwrap_or_default();
    let count = count_servers(&listing);
    if count > 0 {
        let leftover = Leftover { what: "IPVS virtual server", name: format!("any of {count}") };
        let advice = "install ipvsadm to remove them, and run this again";
        report.failed.push((leftover, advice.to_owned()));
    }
}

/// Counts virtual servers; real servers are indented.
fn count_servers(listing: &str) -> usize {
    let protocols = ["TCP ", "UDP ", "SCTP ", "FWM "];
    listing.lines().filter(|line| protocols.iter().any(|protocol| line.starts_with(protocol))).count()
}

fn act(dry_run: bool, program: &str, words: &[&str]) -> Result<()> {
    if dry_run { Ok(()) } else { run(program, words, "").map(drop) }
}

fn remove_sets(dry_run: bool, report: &mut CleanupReport) {
    let Ok(Some(names)) = run("ipset", &["list", "-name"], "") else { return };
    for name in names.lines().filter(|name| name.starts_with("KUBE-")) {
        let leftover = Leftover { what: "IP set", name: name.to_owned() };
        report.add(vec![leftover], act(dry_run, "ipset", &["destroy", name]));
    }
}

/// The addresses in a listing of `ip -o address`.
fn addresses(listing: &str) -> BTreeSet<String> {
    let with_length = listing.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| !word.starts_with("inet"));
        words.nth(1)
    });
    with_length.filter_map(|net| net.split('/').next()).map(str::to_owned).collect()
}

/// Virtual servers on these addresses, as `ipvsadm` names them (`-t 10.96.0.1:443`).
fn servers(saved: &str, addresses: &BTreeSet<String>) -> Vec<[String; 2]> {
    let added = saved.lines().filter_map(|line| line.strip_prefix("-A "));
    let named = added.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some([words.next()?.to_owned(), words.next()?.to_owned()])
    });
    let is_ours = |server: &[String; 2]| {
        let address = server[1].rsplit_once(':').map(|(address, _)| address.trim_matches(['[', ']']));
        address.is_some_and(|address| addresses.contains(address))
    };
    named.filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_servers_that_the_kernel_lists_are_counted() {
        let listing = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  \
                       -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  0A600001:01BB rr \n  \
                       -> 0A010001:192B      Masq    1      0          0\nUDP  0A60000A:0035 rr \n";
        assert_eq!(count_servers(listing), 2);
        assert_eq!(count_servers(""), 0);
    }

    #[test]
    fn virtual_servers_on_the_interface_go_and_others_stay() {
        let listing = "7: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\\       valid_lft forever
7: kube-ipvs0    inet6 fd00::1/128 scope global \\       valid_lft forever\n";
        let saved = "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 10.1.0.1:6443 -m -w 1\n\
                     -A -u [fd00::1]:53 -s rr\n-A -t 192.0.2.7:80 -s wlc\n";
        let found: Vec<String> = servers(saved, &addresses(listing)).iter().map(|s| s.join(" ")).collect();
        assert_eq!(found, ["-t 10.96.0.1:443", "-u [fd00::1]:53"]);
    }
}
