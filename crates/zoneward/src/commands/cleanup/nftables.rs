//! nftables tables of Zoneward and kube-proxy. Other tables are only searched for chains of kube-proxy.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use dataplane::backend::{CleanupScope, NodeBackend};
use dataplane::iptables::cleanup::is_proxy_chain;
use dataplane::ipvs::{IpvsBackend, IpvsSettings, IpvsSocket};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::{NftablesBackend, list_chains};

use super::{CleanupReport, Leftover};

pub(super) fn remove(scope: CleanupScope, dry_run: bool, report: &mut CleanupReport) {
    let opened = NftablesBackend::open().context("opening a netlink socket").map(with_ipvs);
    match opened.and_then(|mut backend| Ok(backend.cleanup(scope, dry_run)?)) {
        Ok(items) => {
            for item in items {
                let leftover = Leftover { what: item.kind, name: item.name };
                report.add(vec![leftover], item.error.map_or(Ok(()), |error| Err(error.into())));
            }
        }
        Err(error) => {
            let leftover = Leftover { what: "nftables table", name: scope_name(scope).to_owned() };
            report.add(vec![leftover], Err(error));
        }
    }
}

/// Virtual servers of mode ipvs go with the table that says which are ours. A kernel without IPVS has none; asking it must
/// not load the module.
fn with_ipvs(nft: NftablesBackend) -> Box<dyn NodeBackend> {
    let kernel = Path::new("/proc/net/ip_vs").exists().then(IpvsSocket::open);
    match kernel {
        Some(Ok(kernel)) => {
            let time = Box::new(|| Duration::ZERO);
            Box::new(IpvsBackend::new(nft, Box::new(kernel), IpvsSettings::default(), time))
        }
        _ => Box::new(nft),
    }
}

fn scope_name(scope: CleanupScope) -> &'static str {
    match scope {
        CleanupScope::NodeProxy | CleanupScope::Zoneward => "zoneward",
        CleanupScope::AllProxies => "zoneward, kube-proxy",
    }
}

/// Reports chains of kube-proxy's iptables modes that are still there because iptables is not installed.
pub(super) fn report_rest(report: &mut CleanupReport) {
    let Ok(mut kernel) = NetlinkSocket::open() else { return };
    for (table, chain) in list_chains(&mut kernel).unwrap_or_default() {
        if is_proxy_chain(&chain) {
            let leftover = Leftover { what: "iptables chain", name: format!("{table} {chain}") };
            let advice = "install iptables (the nft variant) to remove it, and run this again";
            report.failed.push((leftover, advice.to_owned()));
        }
    }
}
