//! Deletes the tables of node proxies: ours, a sidecar's and kube-proxy's.

use super::apply::apply;
use super::decode::{NftMessage, message};
use super::ir::{NftChange, NftFamily, NftName, TableId};
use super::kernel::{DumpRequest, Kernel};
use super::{render, sidecar_redirect};
use crate::backend::{BackendError, CleanupItem, CleanupScope};
use crate::ipvs::guard;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::messages;

/// The table of kube-proxy's nftables mode.
const KUBE_PROXY: &str = "kube-proxy";

pub(super) fn cleanup(
    kernel: &mut dyn Kernel,
    scope: CleanupScope,
    dry_run: bool,
) -> Result<Vec<CleanupItem>, BackendError> {
    let tables = list_tables(kernel).map_err(|error| {
        BackendError::failed(format!("cannot list the tables: {error}; NET_ADMIN is needed"))
    })?;
    let of_proxies = tables.into_iter().filter(|table| is_in_scope(table, scope));
    let items = of_proxies.map(|table| {
        let name = table.to_string();
        let deleted = if dry_run { Ok(()) } else { apply(kernel, &[NftChange::DeleteTable { table }]) };
        CleanupItem { kind: "nftables table", name, error: deleted.err().map(BackendError::from) }
    });
    Ok(items.collect())
}

/// Deletes those of these tables that the kernel holds.
pub(super) fn delete(kernel: &mut dyn Kernel, tables: &[TableId]) -> Result<(), BackendError> {
    let held = list_tables(kernel)
        .map_err(|error| BackendError::failed(format!("cannot list the tables: {error}")))?;
    let held = held.into_iter().filter(|table| tables.contains(table));
    let changes: Vec<NftChange> = held.map(|table| NftChange::DeleteTable { table }).collect();
    if changes.is_empty() { Ok(()) } else { Ok(apply(kernel, &changes)?) }
}

fn is_in_scope(table: &TableId, scope: CleanupScope) -> bool {
    // After a change of the mode, the connections of mode ipvs need theirs.
    let others = [sidecar_redirect::TABLE, guard::TABLE];
    let ours = table.name == render::TABLE
        || (scope != CleanupScope::NodeProxy && others.iter().any(|other| table.name == *other));
    let kube_proxys = scope == CleanupScope::AllProxies && table.name == KUBE_PROXY;
    matches!(table.family, NftFamily::Ip | NftFamily::Ip6) && (ours || kube_proxys)
}

pub(super) fn list_tables(kernel: &mut dyn Kernel) -> Result<Vec<TableId>, NetlinkError> {
    let dump = kernel.dump(&DumpRequest::Tables)?;
    let tables = messages(&dump).filter_map(|raw| match message(raw) {
        Ok(NftMessage::Change(NftChange::AddTable { table, .. })) => Some(table),
        _ => None,
    });
    Ok(tables.collect())
}

/// The chains of all tables, also of those that iptables-nft maintains.
pub fn list_chains(kernel: &mut dyn Kernel) -> Result<Vec<(TableId, NftName)>, NetlinkError> {
    let dump = kernel.dump(&DumpRequest::Chains)?;
    let chains = messages(&dump).filter_map(|raw| match message(raw) {
        Ok(NftMessage::Change(NftChange::AddChain { table, chain, .. })) => Some((table, chain)),
        _ => None,
    });
    Ok(chains.collect())
}
