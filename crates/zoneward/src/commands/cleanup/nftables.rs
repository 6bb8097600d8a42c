//! nftables tables of Zoneward and kube-proxy. Other tables are only searched for chains of kube-proxy.

use anyhow::{Context, Result};
use dataplane::nftables::apply::apply;
use dataplane::nftables::decode::{Message, message};
use dataplane::nftables::ir::{Change, Family, Name, TableId};
use dataplane::nftables::netlink::wire::messages;
use dataplane::nftables::netlink::{Kernel, Query, Socket};

use super::{CleanupReport, Leftover, iptables};

const OURS: &str = dataplane::nftables::render::TABLE;
const SIDECARS: &str = dataplane::nftables::redirect::TABLE;
const KUBE_PROXY: &str = "kube-proxy";

pub(super) fn remove(dry_run: bool, report: &mut CleanupReport) {
    let found = Socket::open().context("opening netlink").and_then(|mut kernel| {
        let tables = tables(&mut kernel)?;
        Ok((kernel, tables))
    });
    let (mut kernel, tables) = match found {
        Ok(found) => found,
        Err(error) => {
            let leftover = Leftover { what: "nftables table", name: format!("{OURS}, {KUBE_PROXY}") };
            return report.add(vec![leftover], Err(error));
        }
    };
    for table in tables.into_iter().filter(is_proxy_table) {
        let leftover = Leftover { what: "nftables table", name: table.to_string() };
        let done = if dry_run { Ok(()) } else { apply(&mut kernel, &[Change::DeleteTable { table }]) };
        report.add(vec![leftover], done.map_err(anyhow::Error::from));
    }
}

fn is_proxy_table(table: &TableId) -> bool {
    matches!(table.family, Family::Ip | Family::Ip6)
        && [OURS, SIDECARS, KUBE_PROXY].iter().any(|name| table.name == *name)
}

fn tables(kernel: &mut dyn Kernel) -> Result<Vec<TableId>> {
    let dump = kernel.dump(&Query::Tables).context("listing tables requires NET_ADMIN")?;
    let tables = messages(&dump).filter_map(|raw| match message(raw) {
        Ok(Message::Change(Change::AddTable { table, .. })) => Some(table),
        _ => None,
    });
    Ok(tables.collect())
}

fn chains(kernel: &mut dyn Kernel) -> Result<Vec<(TableId, Name)>> {
    let dump = kernel.dump(&Query::Chains)?;
    let chains = messages(&dump).filter_map(|raw| match message(raw) {
        Ok(Message::Change(Change::AddChain { table, chain, .. })) => Some((table, chain)),
        _ => None,
    });
    Ok(chains.collect())
}

/// Reports remaining chains of kube-proxy's iptables modes, whose program is not installed.
pub(super) fn report_rest(report: &mut CleanupReport) {
    let Ok(mut kernel) = Socket::open() else { return };
    for (table, chain) in chains(&mut kernel).unwrap_or_default() {
        if iptables::is_kube_proxy_chain(&chain) {
            let leftover = Leftover { what: "iptables chain", name: format!("{table} {chain}") };
            let advice = "install iptables (the nft variant) to remove it, and run this again";
            report.failed.push((leftover, advice.to_owned()));
        }
    }
}
