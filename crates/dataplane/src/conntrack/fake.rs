//! A table of connections in memory, for tests and simulations, with the failures of the real one.

use std::collections::{BTreeSet, VecDeque};

use nix::errno::Errno;

use super::{Conntrack, Filter, Flow, Seen};
use crate::nftables::netlink::NetlinkError;

/// One failure of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowFault {
    /// Only the first half is seen, and the kernel says so.
    Half,
    /// Nothing is seen but an interruption.
    Interrupted,
    /// The receive buffer ran over after the first half.
    Lost,
}

/// Connections in memory.
#[derive(Debug, Clone, Default)]
pub struct FakeConntrack {
    /// The connections.
    pub flows: BTreeSet<Flow>,
    /// Failures that the next dumps meet, in this order.
    pub faults: VecDeque<FlowFault>,
    /// Whether it is as old as kernels that cannot delete by a filter.
    pub old: bool,
}

impl Conntrack for FakeConntrack {
    fn dump(&mut self, filter: &Filter, take: &mut dyn FnMut(Flow)) -> Result<Seen, NetlinkError> {
        let found: Vec<Flow> = self.flows.iter().filter(|flow| filter.matches(flow)).cloned().collect();
        let half = found.len() / 2;
        match self.faults.pop_front() {
            None => {
                found.into_iter().for_each(take);
                Ok(Seen::All)
            }
            Some(FlowFault::Half) => {
                found.into_iter().take(half).for_each(take);
                Ok(Seen::Some)
            }
            Some(FlowFault::Interrupted) => Err(NetlinkError::Interrupted),
            Some(FlowFault::Lost) => {
                found.into_iter().take(half).for_each(take);
                Err(NetlinkError::Lost)
            }
        }
    }

    fn delete_matching(&mut self, filter: &Filter) -> Result<(), NetlinkError> {
        if self.old {
            return Err(NetlinkError::Refused { seq: 0, errno: Errno::EINVAL, text: None });
        }
        self.flows.retain(|flow| !filter.matches(flow));
        Ok(())
    }

    fn delete(&mut self, flow: &Flow) -> Result<bool, NetlinkError> {
        Ok(self.flows.remove(flow))
    }
}
