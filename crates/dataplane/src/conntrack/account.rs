//! What connections carried: those that end tell it as they end, open ones are asked.

use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::ctnetlink::{CtSocket, header, read_flow};
use super::{Family, Flow, Seen};
use crate::nftables::netlink::abi::{NLM_F_DUMP, SUBSYS_CTNETLINK};
use crate::nftables::netlink::wire::{Attrs, Raw, messages};
use crate::nftables::netlink::{Complete, NetlinkError};

const CT_GET: u16 = 1;
const CT_DELETE: u16 = 2;
const COUNTERS_ORIG: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
const COUNTERS_BYTES: u16 = 2;

/// The group of connections that end: NFNLGRP_CONNTRACK_DESTROY, as a bit.
const DESTROYED_GROUP: u32 = 1 << 2;
/// The family of a message, the first byte behind its header.
const IP: u8 = 2;
const IP6: u8 = 10;

/// A connection and what it carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The connection.
    pub flow: Flow,
    /// Bytes in both directions; 0 where the kernel does not count (`nf_conntrack_acct`).
    pub bytes: u64,
}

fn read_account(attrs: Attrs<'_>, family: Family) -> Option<Account> {
    let bytes = |direction: u16| {
        let counters = attrs.nested(direction)?;
        Some(u64::from_be_bytes(counters.find(COUNTERS_BYTES)?.try_into().ok()?))
    };
    let sum = bytes(COUNTERS_ORIG).unwrap_or(0).saturating_add(bytes(COUNTERS_REPLY).unwrap_or(0));
    Some(Account { flow: read_flow(attrs, family)?, bytes: sum })
}

impl CtSocket {
    /// Hands out all open connections of a family.
    pub fn accounts(&mut self, family: Family, take: &mut dyn FnMut(Account)) -> Result<Seen, NetlinkError> {
        let request = header(CT_GET, NLM_F_DUMP, family);
        let complete = self.socket.answer(request, |_| {}, &mut |raw| {
            read_account(raw.attrs(), family).into_iter().for_each(&mut *take);
        })?;
        Ok(if complete == Complete::Yes { Seen::All } else { Seen::Some })
    }
}

/// A socket on which the kernel tells of connections as they end.
pub struct Ended {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
}

impl Ended {
    /// Opens it. Waiting for the next takes at most a second.
    pub fn open() -> Result<Ended, NetlinkError> {
        let failed = |error: std::io::Error| NetlinkError::Socket {
            doing: "opening",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        };
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, DESTROYED_GROUP)).map_err(failed)?;
        let options = |errno| NetlinkError::Socket { doing: "setting up", errno };
        if setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).map_err(options)?;
        }
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1)).map_err(options)?;
        Ok(Ended { socket, buffer: vec![0; 64 << 10] })
    }

    /// Waits for some, at most a second, and hands them out. `Lost` if more came than the buffer held.
    pub fn wait(&mut self, take: &mut dyn FnMut(Account)) -> Result<(), NetlinkError> {
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
        messages(&self.buffer[..len]).filter_map(ended).for_each(take);
        Ok(())
    }
}

fn ended(raw: Raw<'_>) -> Option<Account> {
    if raw.header.kind != SUBSYS_CTNETLINK << 8 | CT_DELETE {
        return None;
    }
    let family = match raw.header.family {
        IP => Family::Ip,
        IP6 => Family::Ip6,
        _ => return None,
    };
    read_account(raw.attrs(), family)
}
