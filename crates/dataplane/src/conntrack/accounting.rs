//! Byte counters of connections: dumped for open ones, received as events for closed ones.

use model::Family;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::ctnetlink::{ConntrackSocket, header, read_entry};
use super::{ConntrackEntry, DumpStatus};
use crate::nfnetlink::abi::{NLM_F_DUMP, SUBSYS_CTNETLINK};
use crate::nfnetlink::wire::{Attrs, RawMessage, messages};
use crate::nfnetlink::{DumpEnd, NetlinkError};

const CT_GET: u16 = 1;
const CT_DELETE: u16 = 2;
const COUNTERS_ORIG: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
const COUNTERS_BYTES: u16 = 2;

/// NFNLGRP_CONNTRACK_DESTROY, as a bit.
const DESTROY_GROUP: u32 = 1 << 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A connection with its byte counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountedEntry {
    pub entry: ConntrackEntry,
    /// Bytes of both directions; `None` if `nf_conntrack_acct` was off when the connection started.
    pub bytes: Option<u64>,
}

fn read_accounted(attrs: Attrs<'_>, family: Family) -> Option<AccountedEntry> {
    let bytes = |direction: u16| {
        let counters = attrs.nested(direction)?;
        Some(u64::from_be_bytes(counters.find(COUNTERS_BYTES)?.try_into().ok()?))
    };
    let sum = match (bytes(COUNTERS_ORIG), bytes(COUNTERS_REPLY)) {
        (None, None) => None,
        (orig, reply) => Some(orig.unwrap_or(0).saturating_add(reply.unwrap_or(0))),
    };
    Some(AccountedEntry { entry: read_entry(attrs, family)?, bytes: sum })
}

impl ConntrackSocket {
    /// Passes all open connections of a family.
    pub fn accounts(
        &mut self,
        family: Family,
        take: &mut dyn FnMut(AccountedEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        let request = header(CT_GET, NLM_F_DUMP, family);
        let end = self.socket.request(request, |_| {}, &mut |raw| {
            read_accounted(raw.attrs(), family).into_iter().for_each(&mut *take);
        })?;
        Ok(if end == DumpEnd::Complete { DumpStatus::Complete } else { DumpStatus::Partial })
    }
}

/// Events of connections that were destroyed.
pub struct ConntrackEvents {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
}

impl ConntrackEvents {
    /// Subscribes. [`Self::wait`] returns after a second at the latest.
    pub fn open() -> Result<ConntrackEvents, NetlinkError> {
        let failed = |error: std::io::Error| NetlinkError::Socket {
            doing: "opening",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        };
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, DESTROY_GROUP)).map_err(failed)?;
        let options = |errno| NetlinkError::Socket { doing: "setting up", errno };
        if setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).map_err(options)?;
        }
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1)).map_err(options)?;
        Ok(ConntrackEvents { socket, buffer: vec![0; 64 << 10] })
    }

    /// Passes the events of one datagram. `Lost` if the receive buffer overflowed.
    pub fn wait(&mut self, take: &mut dyn FnMut(AccountedEntry)) -> Result<(), NetlinkError> {
        let len = match self.socket.recv(&mut &mut self.buffer[..], 0) {
            Ok(len) => len.min(self.buffer.len()),
            Err(error) => {
                return match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EAGAIN | Errno::EINTR => Ok(()),
                    Errno::ENOBUFS => Err(NetlinkError::Lost),
                    errno => Err(NetlinkError::Socket { doing: "reading from", errno }),
                };
            }
        };
        messages(&self.buffer[..len]).filter_map(destroyed).for_each(take);
        Ok(())
    }
}

pub(crate) fn destroyed(raw: RawMessage<'_>) -> Option<AccountedEntry> {
    if raw.header.kind != SUBSYS_CTNETLINK << 8 | CT_DELETE {
        return None;
    }
    let family = match raw.header.family {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return None,
    };
    read_accounted(raw.attrs(), family)
}
