//! A conntrack table in memory, with the failures of the real one.

use std::collections::{BTreeSet, VecDeque};

use nix::errno::Errno;

use super::{ConntrackEntry, ConntrackFilter, ConntrackTable, DumpStatus};
use crate::nfnetlink::NetlinkError;

/// A failure to inject into a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpFault {
    /// The dump has the first half of the entries and is marked partial.
    Half,
    /// The dump fails as interrupted.
    Interrupted,
    /// The receive buffer overflows after the first half.
    Lost,
}

/// Entries in memory.
#[derive(Debug, Clone, Default)]
pub struct FakeConntrack {
    /// The table.
    pub entries: BTreeSet<ConntrackEntry>,
    /// Failures of the next dumps, in order.
    pub faults: VecDeque<DumpFault>,
    /// Behaves like a kernel that cannot delete by filter.
    pub old: bool,
}

impl ConntrackTable for FakeConntrack {
    fn dump(
        &mut self,
        filter: &ConntrackFilter,
        take: &mut dyn FnMut(ConntrackEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        let found: Vec<ConntrackEntry> =
            self.entries.iter().filter(|entry| filter.matches(entry)).cloned().collect();
        let half = found.len() / 2;
        match self.faults.pop_front() {
            None => {
                found.into_iter().for_each(take);
                Ok(DumpStatus::Complete)
            }
            Some(DumpFault::Half) => {
                found.into_iter().take(half).for_each(take);
                Ok(DumpStatus::Partial)
            }
            Some(DumpFault::Interrupted) => Err(NetlinkError::Interrupted),
            Some(DumpFault::Lost) => {
                found.into_iter().take(half).for_each(take);
                Err(NetlinkError::Lost)
            }
        }
    }

    fn delete_matching(&mut self, filter: &ConntrackFilter) -> Result<(), NetlinkError> {
        if self.old {
            return Err(NetlinkError::Refused { seq: 0, errno: Errno::EINVAL, text: None });
        }
        self.entries.retain(|entry| !filter.matches(entry));
        Ok(())
    }

    fn delete(&mut self, entry: &ConntrackEntry) -> Result<bool, NetlinkError> {
        Ok(self.entries.remove(entry))
    }
}
