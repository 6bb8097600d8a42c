//! The NETLINK_NETFILTER socket. It stays open for the life of the process: closing one that spoke nf_tables costs the
//! kernel up to 25 ms, a commit on an open one a fraction of one.

use std::collections::BTreeSet;

use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::NetlinkError;
use super::abi;
use super::wire::{Attrs, MessageHeader, MessageWriter, RawMessage, messages, whole};

/// Granted with CAP_NET_ADMIN: one transaction then holds the initial load of a large cluster.
const SEND_BUFFER: usize = 64 << 20;
/// The kernel sends dumps in datagrams of at most 32 KiB.
const RECEIVE: usize = 64 << 10;
/// Bytes of the send buffer that netlink reserves.
const SEND_OVERHEAD: usize = 32;
/// Receive timeout.
const TIMEOUT_SECONDS: i64 = 10;

/// A socket of the network namespace that it was opened in.
pub struct NetlinkSocket {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
    seq: u32,
    /// The longest batch that fits into the send buffer.
    pub(crate) longest: usize,
}

impl NetlinkSocket {
    /// Opens the socket with the largest buffers that this process may have.
    pub fn open() -> Result<NetlinkSocket, NetlinkError> {
        Self::open_protocol(NETLINK_NETFILTER)
    }

    /// The same of another netlink protocol.
    pub(crate) fn open_protocol(protocol: isize) -> Result<NetlinkSocket, NetlinkError> {
        let opened = netlink_sys::Socket::new(protocol).and_then(|mut socket| {
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        });
        let socket = opened.map_err(|error| failed("opening", &error))?;
        // Errors do not quote the request and carry a text. Both options are optional.
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        let longest = widen(&socket)?;
        Ok(NetlinkSocket { socket, buffer: vec![0; RECEIVE], seq: 0, longest })
    }

    /// Sends a message or a batch.
    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        loop {
            match self.socket.send(bytes, 0) {
                Ok(_) => return Ok(()),
                Err(error) if Errno::from_raw(error.raw_os_error().unwrap_or(0)) == Errno::EINTR => {}
                Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => {
                    return Err(NetlinkError::TooLong { bytes: bytes.len(), limit: self.longest });
                }
                Err(error) => return Err(failed("writing to", &error)),
            }
        }
    }

    /// One datagram, or none if the queue is empty.
    fn receive(&mut self, flags: MsgFlags) -> Result<Option<usize>, NetlinkError> {
        loop {
            match self.socket.recv(&mut &mut self.buffer[..], flags.bits()) {
                Ok(len) => return Ok(Some(len.min(self.buffer.len()))),
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EINTR => {}
                    Errno::EAGAIN => return Ok(None),
                    Errno::ENOBUFS => return Err(NetlinkError::Lost),
                    _ => return Err(failed("reading from", &error)),
                },
            }
        }
    }

    /// Discards replies of an earlier request that failed.
    fn drain(&mut self) {
        while !matches!(self.receive(MsgFlags::MSG_DONTWAIT), Ok(None) | Err(NetlinkError::Socket { .. })) {}
    }

    /// Sends a batch and collects its acknowledgement or the first error.
    pub(crate) fn send_batch(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        if batch.len() > self.longest {
            return Err(NetlinkError::TooLong { bytes: batch.len(), limit: self.longest });
        }
        self.drain();
        self.send(batch)?;
        // The kernel processes the batch within the send call, so every reply is queued by now.
        let (mut refused, mut acknowledged, mut lost) = (None, false, false);
        loop {
            let len = match self.receive(MsgFlags::MSG_DONTWAIT) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(NetlinkError::Lost) => {
                    lost = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for raw in messages(&self.buffer[..len]).filter(|raw| raw.header.kind == abi::NLMSG_ERROR) {
                match refusal(raw) {
                    None => acknowledged = true,
                    Some((errno, text)) => {
                        let seq = raw.header.seq;
                        refused.get_or_insert(NetlinkError::Refused { seq, errno, text });
                    }
                }
            }
        }
        match (refused, acknowledged, lost) {
            (Some(error), _, _) => Err(error),
            (None, true, _) => Ok(()),
            (None, false, true) => Err(NetlinkError::Lost),
            (None, false, false) => Err(NetlinkError::Silent),
        }
    }

    /// Sends messages that the kernel processes one by one, each with NLM_F_ACK, and returns those that it refused. An
    /// answer that got lost makes the outcome of all unknown.
    pub(crate) fn send_each(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        let mut waiting: BTreeSet<u32> = messages(batch).map(|raw| raw.header.seq).collect();
        let mut refused = Vec::new();
        self.drain();
        self.send(batch)?;
        // The kernel processes each message within the send call, so every reply is queued by now.
        while !waiting.is_empty() {
            let len = self.receive(MsgFlags::MSG_DONTWAIT)?.ok_or(NetlinkError::Silent)?;
            for raw in messages(&self.buffer[..len]).filter(|raw| raw.header.kind == abi::NLMSG_ERROR) {
                if waiting.remove(&raw.header.seq)
                    && let Some((errno, _)) = refusal(raw)
                {
                    refused.push((raw.header.seq, errno));
                }
            }
        }
        Ok(refused)
    }

    /// Sends a request and passes the messages of the reply one by one.
    pub(crate) fn request(
        &mut self,
        header: MessageHeader,
        body: impl FnOnce(&mut MessageWriter),
        take: &mut dyn FnMut(RawMessage<'_>),
    ) -> Result<DumpEnd, NetlinkError> {
        self.drain();
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        let mut request = MessageWriter::new();
        request.message(MessageHeader { seq, ..header }, body);
        self.send(request.bytes())?;
        let mut interrupted = false;
        loop {
            let len = self.receive(MsgFlags::empty())?.ok_or(NetlinkError::Silent)?;
            match take_datagram(&self.buffer[..len], seq, take, &mut interrupted)? {
                Progress::More => {}
                Progress::Done if interrupted => return Ok(DumpEnd::Interrupted),
                Progress::Done => return Ok(DumpEnd::Complete),
            }
        }
    }
}

/// How a dump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpEnd {
    Complete,
    /// The dumped objects changed meanwhile: some may be missing or reported twice.
    Interrupted,
}

/// Makes the buffers as large as allowed; returns the longest batch that fits.
fn widen(socket: &netlink_sys::Socket) -> Result<usize, NetlinkError> {
    let options = |errno| NetlinkError::Socket { doing: "setting up", errno };
    if setsockopt(socket, sockopt::SndBufForce, &(SEND_BUFFER / 2)).is_err() {
        // In a user namespace the kernel silently grants at most net.core.wmem_max.
        setsockopt(socket, sockopt::SndBuf, &(SEND_BUFFER / 2)).map_err(options)?;
    }
    if setsockopt(socket, sockopt::RcvBufForce, &(4 << 20)).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &(4 << 20)).map_err(options)?;
    }
    setsockopt(socket, sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_SECONDS)).map_err(options)?;
    let granted = getsockopt(socket, sockopt::SndBuf).map_err(options)?;
    Ok(granted.saturating_sub(SEND_OVERHEAD))
}

fn failed(doing: &'static str, error: &std::io::Error) -> NetlinkError {
    NetlinkError::Socket { doing, errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) }
}

pub(super) enum Progress {
    More,
    Done,
}

/// Passes the messages of one datagram of a dump.
pub(super) fn take_datagram(
    datagram: &[u8],
    seq: u32,
    take: &mut dyn FnMut(RawMessage<'_>),
    interrupted: &mut bool,
) -> Result<Progress, NetlinkError> {
    // Cut off within a message.
    if !whole(datagram) {
        return Err(NetlinkError::Interrupted);
    }
    for raw in messages(datagram).filter(|raw| raw.header.seq == seq) {
        *interrupted |= raw.header.flags & abi::NLM_F_DUMP_INTR != 0;
        match raw.header.kind {
            abi::NLMSG_DONE | abi::NLMSG_ERROR => {
                return match refusal(raw) {
                    None => Ok(Progress::Done),
                    Some((Errno::EINTR | Errno::EAGAIN, _)) => Err(NetlinkError::Interrupted),
                    Some((errno, text)) => Err(NetlinkError::Refused { seq, errno, text }),
                };
            }
            _ => take(raw),
        }
        if raw.header.flags & abi::NLM_F_MULTI == 0 {
            return Ok(Progress::Done);
        }
    }
    Ok(Progress::More)
}

/// The error of an NLMSG_ERROR message, or none if it is an acknowledgement.
fn refusal(raw: RawMessage<'_>) -> Option<(Errno, Option<String>)> {
    let number = i32::from_ne_bytes(raw.payload.get(..4)?.try_into().ok()?);
    if number == 0 {
        return None;
    }
    let quoted = match raw.header.flags & abi::NLM_F_CAPPED {
        0 => raw.payload.get(4..8).map_or(16, |len| {
            let len = u32::from_ne_bytes([len[0], len[1], len[2], len[3]]);
            usize::try_from(len).unwrap_or(16).next_multiple_of(4)
        }),
        _ => 16,
    };
    let has_text = raw.header.flags & abi::NLM_F_ACK_TLVS != 0;
    let attrs = Attrs::new(raw.payload.get(4 + quoted..).filter(|_| has_text).unwrap_or_default());
    Some((Errno::from_raw(number.saturating_neg()), attrs.text(abi::NLMSGERR_ATTR_MSG)))
}
