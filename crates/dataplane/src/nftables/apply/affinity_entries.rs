//! The clients of Service ports in `affinity`, which rules write: they are deleted when a port has no session affinity any
//! more. Until then they are the share of that port.

use std::collections::BTreeSet;

use model::Family;
use nix::errno::Errno;

use super::dump::RulesetReadError;
use super::{ApplyError, apply};
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::{Attrs, RawMessage};
use crate::nftables::abi::{data, elem};
use crate::nftables::ir::{Bytes, Element, IntervalEncoding, NftChange, NftName};
use crate::nftables::kernel::{DumpRequest, Kernel};
use crate::nftables::render::{SetName, table_id};

/// Attempts at a dump that others interrupt, and at a deletion that elements expire before.
const ATTEMPTS: u32 = 5;
/// Fits into every send buffer.
const ELEMENTS_PER_TRANSACTION: usize = 500;

/// Deletes the clients of these Service ports; returns the number of transactions.
pub fn delete_affinity_entries(
    kernel: &mut dyn Kernel,
    ended: &BTreeSet<(Family, Bytes)>,
) -> Result<usize, DeleteAffinityError> {
    let mut transactions = 0;
    for family in [Family::V4, Family::V6] {
        let numbers: BTreeSet<&[u8]> =
            ended.iter().filter(|(at, _)| *at == family).map(|(_, number)| number.as_slice()).collect();
        if !numbers.is_empty() {
            transactions += delete_of_family(kernel, family, &numbers)?;
        }
    }
    Ok(transactions)
}

/// Why clients could not be deleted; they expire all the same.
#[derive(Debug)]
pub enum DeleteAffinityError {
    Read(RulesetReadError),
    Apply(ApplyError),
}

fn delete_of_family(
    kernel: &mut dyn Kernel,
    family: Family,
    numbers: &BTreeSet<&[u8]>,
) -> Result<usize, DeleteAffinityError> {
    let (table, set) = (table_id(family), NftName::from(SetName::Affinity.stem()));
    let (mut attempt, mut transactions) = (1, 0);
    loop {
        let keys = stored(kernel, family, numbers).map_err(DeleteAffinityError::Read)?;
        let deletions = keys.chunks(ELEMENTS_PER_TRANSACTION).map(|keys| {
            let elements = keys.iter().cloned().map(Element::member).collect();
            let (table, set) = (table.clone(), set.clone());
            NftChange::DeleteElements { table, set, ranges: IntervalEncoding::None, elements }
        });
        let mut expired = false;
        for deletion in deletions {
            match apply(kernel, &[deletion]) {
                Ok(()) => transactions += 1,
                // One of them expired in between.
                Err(error) if error.cause.errno() == Some(Errno::ENOENT) => expired = true,
                Err(error) => return Err(DeleteAffinityError::Apply(error)),
            }
        }
        if !expired || attempt == ATTEMPTS {
            return Ok(transactions);
        }
        attempt += 1;
    }
}

/// The keys of the clients of some ports; none if the table does not exist.
fn stored(
    kernel: &mut dyn Kernel,
    family: Family,
    numbers: &BTreeSet<&[u8]>,
) -> Result<Vec<Bytes>, RulesetReadError> {
    let request = DumpRequest::Elements(table_id(family), NftName::from(SetName::Affinity.stem()));
    let mut attempt = 1;
    loop {
        let mut found = Vec::new();
        match kernel.each(&request, &mut |raw| take(raw, numbers, &mut found)) {
            Ok(()) => return Ok(found),
            Err(NetlinkError::Interrupted | NetlinkError::Lost) if attempt < ATTEMPTS => attempt += 1,
            Err(cause) if cause.errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
            Err(cause) => return Err(RulesetReadError { what: "clients with session affinity", cause }),
        }
    }
}

/// The fields of `SetName::Affinity`: client . number of the port.
fn take(raw: RawMessage<'_>, numbers: &BTreeSet<&[u8]>, found: &mut Vec<Bytes>) {
    let elements = raw.attrs().nested(elem::LIST_ELEMENTS);
    for (_, element) in elements.iter().flat_map(|list| list.iter()) {
        let key = Attrs::new(element).nested(elem::KEY).and_then(|key| key.find(data::VALUE));
        if let Some(key) = key.filter(|key| key.last_chunk::<4>().is_some_and(|id| numbers.contains(&id[..])))
        {
            found.push(Bytes::from(key.to_vec()));
        }
    }
}
