//! Events of connections that begin, for `zoneward observe`. The kernel sends them only while a socket listens.

use model::Family;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::ConntrackEntry;
use super::ctnetlink::read_entry;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::abi::SUBSYS_CTNETLINK;
use crate::nfnetlink::wire::{RawMessage, messages};

const CT_NEW: u16 = 0;
/// NFNLGRP_CONNTRACK_NEW, as a bit.
const NEW_GROUP: u32 = 1 << 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Half a second of 20,000 connections per second.
const RECEIVE_BUFFER: usize = 2 << 20;

/// A subscription to new connections.
pub struct NewConnections {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
}

impl NewConnections {
    /// Subscribes. [`Self::wait`] returns after a second at the latest.
    pub fn open() -> Result<NewConnections, NetlinkError> {
        let failed = |error: std::io::Error| NetlinkError::Socket {
            doing: "opening",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        };
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, NEW_GROUP)).map_err(failed)?;
        let options = |errno| NetlinkError::Socket { doing: "setting up", errno };
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER).map_err(options)?;
        }
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1)).map_err(options)?;
        Ok(NewConnections { socket, buffer: vec![0; 64 << 10] })
    }

    /// Passes the connections of one datagram. `Lost` if the receive buffer overflowed.
    pub fn wait(&mut self, take: &mut dyn FnMut(ConntrackEntry)) -> Result<(), NetlinkError> {
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
        messages(&self.buffer[..len]).filter_map(begun).for_each(take);
        Ok(())
    }
}

fn begun(raw: RawMessage<'_>) -> Option<ConntrackEntry> {
    if raw.header.kind != SUBSYS_CTNETLINK << 8 | CT_NEW {
        return None;
    }
    let family = match raw.header.family {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return None,
    };
    read_entry(raw.attrs(), family)
}
