//! A kernel that fails when told to: what a busy machine does once a month, in every test run.

use std::collections::VecDeque;

use nix::errno::Errno;

use crate::nftables::netlink::{Kernel, NetlinkError, Query};

/// One failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next transaction is refused with this error at its n-th message, and not done.
    Refuse {
        /// The error number.
        errno: Errno,
        /// The message, counted from the begin message as 0.
        message: u32,
    },
    /// The next transaction fails at the socket and is not done.
    Send(Errno),
    /// The next transaction is done, but the answer is lost.
    LoseAnswer,
    /// The next transaction is not done, and no answer comes.
    LoseBatch,
    /// The next dump is interrupted by a change.
    InterruptDump,
    /// The next dump ends too early, in the middle of a message.
    CutDump,
    /// The next dump fails with this error.
    RefuseDump(Errno),
}

impl Fault {
    fn is_for_dump(self) -> bool {
        matches!(self, Fault::InterruptDump | Fault::CutDump | Fault::RefuseDump(_))
    }
}

/// A kernel with failures in waiting.
pub struct Faulty<K> {
    /// The kernel behind it.
    pub kernel: K,
    transactions: VecDeque<Fault>,
    dumps: VecDeque<Fault>,
}

impl<K: Kernel> Faulty<K> {
    /// The kernel, with failures that come in this order, each once.
    pub fn new(kernel: K, faults: &[Fault]) -> Faulty<K> {
        let (dumps, transactions) = faults.iter().partition::<Vec<Fault>, _>(|fault| fault.is_for_dump());
        Faulty { kernel, transactions: transactions.into(), dumps: dumps.into() }
    }

    /// Whether every failure has happened.
    pub fn is_spent(&self) -> bool {
        self.transactions.is_empty() && self.dumps.is_empty()
    }
}

impl<K: Kernel> Kernel for Faulty<K> {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        match self.transactions.pop_front() {
            Some(Fault::Refuse { errno, message }) => {
                Err(NetlinkError::Refused { seq: 1 + message, errno, text: None })
            }
            Some(Fault::Send(errno)) => Err(NetlinkError::Socket { doing: "writing to", errno }),
            Some(Fault::LoseAnswer) => self.kernel.transact(batch).and(Err(NetlinkError::Lost)),
            Some(Fault::LoseBatch) => Err(NetlinkError::Silent),
            _ => self.kernel.transact(batch),
        }
    }

    fn dump(&mut self, query: &Query) -> Result<Vec<u8>, NetlinkError> {
        match self.dumps.pop_front() {
            Some(Fault::InterruptDump) => Err(NetlinkError::Interrupted),
            Some(Fault::CutDump) => {
                let mut dump = self.kernel.dump(query)?;
                dump.truncate(dump.len().saturating_sub(7));
                Ok(dump)
            }
            Some(Fault::RefuseDump(errno)) => Err(NetlinkError::Refused { seq: 1, errno, text: None }),
            _ => self.kernel.dump(query),
        }
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.kernel.generation()
    }

    fn longest_batch(&self) -> usize {
        self.kernel.longest_batch()
    }
}
