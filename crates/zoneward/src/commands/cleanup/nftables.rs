//! Tables of nf_tables: ours and kube-proxy's, whole. Other tables are not looked into, but for the names of
//! chains at the end.

use anyhow::{Context, Result};
use dataplane::nftables::apply::apply;
use dataplane::nftables::decode::{Message, message};
use dataplane::nftables::ir::{Change, Family, Name, TableId};
use dataplane::nftables::netlink::wire::messages;
use dataplane::nftables::netlink::{Kernel, Query, Socket};

use super::{Leftover, Report, iptables};

const OURS: &str = dataplane::nftables::render::TABLE;
const SIDECARS: &str = dataplane::nftables::redirect::TABLE;
const KUBE_PROXY: &str = "kube-proxy";

/// Removes the tables.
pub(super) fn remove(dry_run: bool, report: &mut Report) {
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
    for table in tables.into_iter().filter(is_a_proxys) {
        let leftover = Leftover { what: "nftables table", name: table.to_string() };
        let done = if dry_run { Ok(()) } else { apply(&mut kernel, &[Change::DeleteTable { table }]) };
        report.add(vec![leftover], done.map_err(anyhow::Error::from));
    }
}

fn is_a_proxys(table: &TableId) -> bool {
    matches!(table.family, Family::Ip | Family::Ip6)
        && [OURS, SIDECARS, KUBE_PROXY].iter().any(|name| table.name == *name)
}

fn tables(kernel: &mut dyn Kernel) -> Result<Vec<TableId>> {
    let dump = kernel.dump(&Query::Tables).context("listing the tables needs NET_ADMIN")?;
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

/// Names the chains of kube-proxy's iptables modes that are there still: their program is not installed.
pub(super) fn report_rest(report: &mut Report) {
    let Ok(mut kernel) = Socket::open() else { return };
    for (table, chain) in chains(&mut kernel).unwrap_or_default() {
        if iptables::is_kube_proxys(&chain) {
            let leftover = Leftover { what: "iptables chain", name: format!("{table} {chain}") };
            let advice = "no program to remove it: install iptables (the nft variant) and run this again";
            report.failed.push((leftover, advice.to_owned()));
        }
    }
}
