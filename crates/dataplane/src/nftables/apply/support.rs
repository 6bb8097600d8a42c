//! Asks the kernel whether it accepts a ruleset, without changing anything.
//!
//! A batch without its end message is validated like any other and then aborted, as `nft --check` does it. The kernel may
//! load modules that the rules need.

use super::{ApplyError, describe};
use crate::nfnetlink::NetlinkError;
use crate::nftables::cleanup::list_tables;
use crate::nftables::diff::diff;
use crate::nftables::encode::Batch;
use crate::nftables::ir::{NftChange, Ruleset};
use crate::nftables::kernel::Kernel;

/// Whether the kernel accepts these tables. Tables of the same names may exist: they are replaced in the transaction that
/// is not committed.
pub fn check_support(kernel: &mut dyn Kernel, wanted: &Ruleset) -> Result<(), ApplyError> {
    let failed = |cause: NetlinkError| ApplyError { change: None, cause, done: 0 };
    let held = list_tables(kernel).map_err(failed)?;
    let replaced = held.into_iter().filter(|table| wanted.tables.contains_key(table));
    let mut changes: Vec<NftChange> = replaced.map(|table| NftChange::DeleteTable { table }).collect();
    changes.extend(diff(&Ruleset::default(), wanted).now);
    let batch = Batch::dry_run(&changes, 1);
    kernel.transact(batch.bytes()).map_err(|cause| {
        let change = match &cause {
            NetlinkError::Refused { seq, .. } => describe(&batch, *seq),
            _ => None,
        };
        ApplyError { change, cause, done: 0 }
    })
}
