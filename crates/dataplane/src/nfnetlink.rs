//! nfnetlink: the netlink protocol that nf_tables and conntrack share.
//!
//! Each call is one attempt. Retries, and what a failure means for the rules, are decided by the callers, so that the
//! same decisions run against the fake kernel and injected faults.

pub mod abi;
mod socket;
pub mod wire;

pub(crate) use socket::DumpEnd;
pub use socket::NetlinkSocket;

use std::fmt;

use nix::errno::Errno;

/// Why one attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetlinkError {
    /// The kernel refused a message; nothing of the batch was applied.
    Refused {
        /// Sequence number of the refused message.
        seq: u32,
        /// The kernel's error number.
        errno: Errno,
        /// Extended acknowledgement text.
        text: Option<String>,
    },
    /// The batch exceeds the send buffer; nothing was sent.
    TooLong {
        /// Length of the batch.
        bytes: usize,
        /// Longest batch that fits.
        limit: usize,
    },
    /// Replies were lost to a full receive buffer: whether the batch was applied is unknown.
    Lost,
    /// No reply before the timeout.
    Silent,
    /// The tables changed during the dump, or the dump was cut off.
    Interrupted,
    /// The socket failed.
    Socket {
        /// What was being done, as a participle.
        doing: &'static str,
        /// The error number.
        errno: Errno,
    },
}

/// For the fuzz target.
pub(crate) fn take_datagram(
    datagram: &[u8],
    seq: u32,
    take: &mut dyn FnMut(wire::RawMessage<'_>),
) -> Result<(), String> {
    socket::take_datagram(datagram, seq, take, &mut false).map(|_| ()).map_err(|error| error.to_string())
}

impl NetlinkError {
    /// The error number, for errors that carry one.
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
                write!(out, "the transaction has {bytes} bytes, the socket's send buffer {limit}")
            }
            NetlinkError::Lost => out.write_str("the receive buffer overflowed"),
            NetlinkError::Silent => out.write_str("the kernel did not reply"),
            NetlinkError::Interrupted => out.write_str("the tables changed during the dump"),
            NetlinkError::Socket { doing, errno } => write!(out, "{doing} the netlink socket: {errno}"),
        }
    }
}

impl std::error::Error for NetlinkError {}
