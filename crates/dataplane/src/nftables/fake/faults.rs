//! Fault injection for any kernel.

use std::collections::VecDeque;

use nix::errno::Errno;

use crate::nfnetlink::NetlinkError;
use crate::nftables::kernel::{DumpRequest, Kernel};

/// A failure to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFault {
    /// The next transaction is refused at a message and not applied.
    Refuse {
        errno: Errno,
        /// Index of the message; the begin message is 0.
        message: u32,
    },
    /// Sending the next transaction fails.
    Send(Errno),
    /// The next transaction is applied, but the reply is lost.
    LoseReply,
    /// The next transaction is lost, and no reply comes.
    LoseBatch,
    InterruptDump,
    /// The next dump is cut off within a message.
    CutDump,
    RefuseDump(Errno),
}

impl KernelFault {
    fn is_for_dump(self) -> bool {
        matches!(self, KernelFault::InterruptDump | KernelFault::CutDump | KernelFault::RefuseDump(_))
    }
}

/// A kernel with pending failures.
pub struct FaultyKernel<K> {
    pub kernel: K,
    transactions: VecDeque<KernelFault>,
    dumps: VecDeque<KernelFault>,
    /// Every transaction that contains one of these is refused.
    refused_bytes: Vec<Vec<u8>>,
}

impl<K: Kernel> FaultyKernel<K> {
    /// Injects each failure once, in order.
    pub fn new(kernel: K, faults: &[KernelFault]) -> FaultyKernel<K> {
        let (dumps, transactions) =
            faults.iter().partition::<Vec<KernelFault>, _>(|fault| fault.is_for_dump());
        let (transactions, dumps) = (transactions.into(), dumps.into());
        FaultyKernel { kernel, transactions, dumps, refused_bytes: Vec::new() }
    }

    /// Injects one more failure.
    pub fn inject(&mut self, fault: KernelFault) {
        let queue = if fault.is_for_dump() { &mut self.dumps } else { &mut self.transactions };
        queue.push_back(fault);
    }

    /// Refuses every transaction that contains one of these byte strings, such as the address of an endpoint.
    pub fn refuse_transactions_with(&mut self, bytes: Vec<Vec<u8>>) {
        self.refused_bytes = bytes;
    }

    /// Injects nothing any more.
    pub fn heal(&mut self) {
        self.transactions.clear();
        self.dumps.clear();
        self.refused_bytes.clear();
    }

    /// Whether every failure was injected.
    pub fn is_spent(&self) -> bool {
        self.transactions.is_empty() && self.dumps.is_empty()
    }
}

impl<K: Kernel> Kernel for FaultyKernel<K> {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        match self.transactions.pop_front() {
            Some(KernelFault::Refuse { errno, message }) => {
                Err(NetlinkError::Refused { seq: 1 + message, errno, text: None })
            }
            Some(KernelFault::Send(errno)) => Err(NetlinkError::Socket { doing: "writing to", errno }),
            Some(KernelFault::LoseReply) => self.kernel.transact(batch).and(Err(NetlinkError::Lost)),
            Some(KernelFault::LoseBatch) => Err(NetlinkError::Silent),
            _ if self.refused_bytes.iter().any(|bytes| contains(batch, bytes)) => {
                Err(NetlinkError::Refused { seq: 2, errno: Errno::EINVAL, text: None })
            }
            _ => self.kernel.transact(batch),
        }
    }

    fn dump(&mut self, request: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        match self.dumps.pop_front() {
            Some(KernelFault::InterruptDump) => Err(NetlinkError::Interrupted),
            Some(KernelFault::CutDump) => {
                let mut dump = self.kernel.dump(request)?;
                dump.truncate(dump.len().saturating_sub(7));
                Ok(dump)
            }
            Some(KernelFault::RefuseDump(errno)) => Err(NetlinkError::Refused { seq: 1, errno, text: None }),
            _ => self.kernel.dump(request),
        }
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.kernel.generation()
    }

    fn longest_batch(&self) -> usize {
        self.kernel.longest_batch()
    }
}

fn contains(batch: &[u8], bytes: &[u8]) -> bool {
    batch.windows(bytes.len()).any(|window| window == bytes)
}
