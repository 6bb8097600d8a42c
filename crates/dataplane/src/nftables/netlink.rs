//! The way to the kernel: netlink's framing and numbers, and one kept socket behind a trait that the fake kernel has too.
//!
//! Each call is one attempt. Trying again, and what a failure means for the rules, is decided in `apply`, so that the
//! same decisions are tested with a fake kernel and with injected faults.

pub mod abi;
pub mod codes;
mod socket;
pub mod wire;

pub(crate) use socket::Complete;
pub use socket::Socket;

use std::fmt;

use nix::errno::Errno;

use super::ir::{Name, TableId};
use wire::{Raw, messages, whole};

/// Something that takes transactions and shows its tables: the kernel, or one that behaves like it.
pub trait Kernel {
    /// Sends one batch; all of it is done or nothing.
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError>;

    /// The messages that answer a question, one after the other.
    fn dump(&mut self, query: &Query) -> Result<Vec<u8>, NetlinkError>;

    /// Hands out the messages that answer a question one by one. A kernel that can do so without gathering them all
    /// first does: half a million elements are tens of megabytes. After an error, what was handed out is worth nothing.
    fn each(&mut self, query: &Query, take: &mut dyn FnMut(Raw<'_>)) -> Result<(), NetlinkError> {
        let dump = self.dump(query)?;
        // One that does not end where a message ends lost its tail on the way.
        if !whole(&dump) {
            return Err(NetlinkError::Interrupted);
        }
        messages(&dump).for_each(take);
        Ok(())
    }

    /// A number that changes with every change of any table.
    fn generation(&mut self) -> Result<u32, NetlinkError>;

    /// The longest batch that it takes, in bytes.
    fn longest_batch(&self) -> usize;
}

/// What can be asked of a kernel. Chains are answered for all tables, as the kernel does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// All tables.
    Tables,
    /// The chains of all tables, without their rules.
    Chains,
    /// The sets of a table, without their elements.
    Sets(TableId),
    /// The elements of a set.
    Elements(TableId, Name),
    /// The rules of a table.
    Rules(TableId),
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetlinkError {
    /// The kernel refused a message; nothing of the batch was done.
    Refused {
        /// The number of the message.
        seq: u32,
        /// The error number.
        errno: Errno,
        /// What the kernel says about it, if it does.
        text: Option<String>,
    },
    /// The batch is longer than the socket takes; nothing was sent.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest that goes.
        limit: usize,
    },
    /// Answers were lost for want of buffer space: the batch was done or not, the tables have to be read again.
    Lost,
    /// The kernel did not answer.
    Silent,
    /// Tables changed while they were read, or the answer was cut off: read again.
    Interrupted,
    /// The socket failed.
    Socket {
        /// What was being done.
        doing: &'static str,
        /// The error number.
        errno: Errno,
    },
}

impl NetlinkError {
    /// The error number, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Refused { errno, .. } | NetlinkError::Socket { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetlinkError::Refused { errno, text, .. } => {
                write!(out, "{errno}")?;
                text.iter().try_for_each(|text| write!(out, " ({text})"))
            }
            NetlinkError::TooLong { bytes, limit } => {
                write!(out, "a transaction of {bytes} bytes, but the socket's send buffer takes {limit}")
            }
            NetlinkError::Lost => out.write_str("the receive buffer was too small for the kernel's answers"),
            NetlinkError::Silent => out.write_str("the kernel did not answer"),
            NetlinkError::Interrupted => out.write_str("the tables changed while they were read"),
            NetlinkError::Socket { doing, errno } => write!(out, "{doing} the netlink socket: {errno}"),
        }
    }
}

impl std::error::Error for NetlinkError {}
