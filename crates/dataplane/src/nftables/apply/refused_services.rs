//! Finds the Services whose rules the kernel refuses, by applying a difference Service by Service as far as needed.

use std::collections::BTreeSet;

use model::ServiceKey;
use nix::errno::Errno;

use super::{ApplyError, apply_groups, apply_later, commit};
use crate::nfnetlink::NetlinkError;
use crate::nftables::diff::{StagedDiff, can_change_in_place, services_of, stage};
use crate::nftables::encode::Batch;
use crate::nftables::ir::{NftChange, Ruleset};
use crate::nftables::kernel::Kernel;

/// A group of changes that the kernel refuses by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGroup {
    pub error: ApplyError,
    /// The Services that the changes belong to; none if they are of the node itself.
    pub services: BTreeSet<ServiceKey>,
}

/// Whether the kernel refused the content of a change: another content may be accepted.
pub fn is_content_refused(error: &ApplyError) -> bool {
    let of_all = [Errno::EPERM, Errno::ENOMEM, Errno::EROFS, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT];
    matches!(&error.cause, NetlinkError::Refused { errno, .. } if !of_all.contains(errno))
}

/// Like [`super::apply_diff`], after the kernel refused it as one transaction: bisects the changes, each Service either
/// old or new, up to the first group that the kernel refuses. `None` if a table would have to be created again.
pub fn apply_up_to_refusal(
    kernel: &mut dyn Kernel,
    old: &Ruleset,
    new: &Ruleset,
) -> Option<Result<usize, RefusedGroup>> {
    let mut tables = old.tables.iter();
    if !tables.all(|(id, table)| new.tables.get(id).is_none_or(|new| can_change_in_place(table, new))) {
        return None;
    }
    let StagedDiff { now, later } = stage(old, new);
    let applied = bisect(kernel, &now, &[old, new]).and_then(|done| {
        let no_service = |error| RefusedGroup { error, services: BTreeSet::new() };
        apply_later(kernel, &later, done).map_err(no_service)
    });
    Some(applied)
}

fn bisect(
    kernel: &mut dyn Kernel,
    groups: &[Vec<NftChange>],
    rulesets: &[&Ruleset],
) -> Result<usize, RefusedGroup> {
    let error = match groups {
        [] => return Ok(0),
        [group] => match apply_groups(kernel, std::slice::from_ref(group)) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        },
        _ => {
            let batch = Batch::of(&groups.concat(), 1);
            let fits = batch.closed_len() <= kernel.longest_batch();
            match fits.then(|| commit(kernel, &batch)) {
                Some(Ok(())) => return Ok(1),
                Some(Err(error)) if !is_content_refused(&error) => error,
                Some(Err(_)) | None => {
                    let (first, second) = groups.split_at(groups.len() / 2);
                    let done = bisect(kernel, first, rulesets)?;
                    return Ok(done + bisect(kernel, second, rulesets)?);
                }
            }
        }
    };
    let services = match (groups, is_content_refused(&error)) {
        ([group], true) => services_of(group, rulesets),
        _ => BTreeSet::new(),
    };
    Err(RefusedGroup { error, services })
}
