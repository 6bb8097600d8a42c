//! nfacct objects: named counters of rules with `-m nfacct` (uapi/linux/netfilter/nfnetlink_acct.h).

use nix::errno::Errno;

use crate::nfnetlink::abi::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};
use crate::nfnetlink::wire::MessageHeader;
use crate::nfnetlink::{NetlinkError, NetlinkSocket};

const SUBSYS_ACCT: u16 = 7;
const ACCT_NEW: u16 = 0;
const ACCT_GET: u16 = 1;
const NAME: u16 = 1;
const PACKETS: u16 = 2;

/// The nfacct objects of a network namespace.
pub struct NfacctSocket {
    socket: NetlinkSocket,
}

impl NfacctSocket {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open()? })
    }

    /// Creates an object; an existing one keeps its count.
    pub fn ensure(&mut self, name: &str) -> Result<(), NetlinkError> {
        let request = header(ACCT_NEW, NLM_F_CREATE | NLM_F_ACK);
        match self.socket.request(request, |out| out.attr_str(NAME, name), &mut |_| {}) {
            Err(error) if matches!(error.errno(), Some(Errno::EBUSY | Errno::EEXIST)) => Ok(()),
            created => created.map(drop),
        }
    }

    /// The packets that an object has counted.
    pub fn packets(&mut self, name: &str) -> Result<u64, NetlinkError> {
        let mut packets = 0;
        let mut take = |raw: crate::nfnetlink::wire::RawMessage<'_>| {
            packets = raw.attrs().u64(PACKETS).unwrap_or_default();
        };
        // The answer is marked as one of several, and none says that it was the last: the acknowledgement does.
        let request = header(ACCT_GET, NLM_F_ACK);
        self.socket.request(request, |out| out.attr_str(NAME, name), &mut take)?;
        Ok(packets)
    }
}

fn header(message: u16, flags: u16) -> MessageHeader {
    MessageHeader {
        kind: SUBSYS_ACCT << 8 | message,
        flags: NLM_F_REQUEST | flags,
        seq: 0,
        family: 0,
        version: 0,
        resource: 0,
    }
}
