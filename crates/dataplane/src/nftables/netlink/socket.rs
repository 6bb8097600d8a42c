//! The kept NETLINK_NETFILTER socket. It stays open as long as the program runs: closing one that spoke nf_tables costs
//! the kernel up to 25 ms, a commit on a kept one a fraction of one.

use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::abi::{self, elem, msg, rule, set};
use super::wire::{Attrs, Header, Raw, Writer, messages, whole};
use super::{Kernel, NetlinkError, Query, codes};
use crate::nftables::ir::TableId;

/// With the right to force it, one transaction holds the full load of a large cluster.
const SEND_BUFFER: usize = 64 << 20;
/// The kernel cuts dumps into pieces of at most 32 KiB.
const RECEIVE: usize = 64 << 10;
/// Netlink keeps this much of the send buffer for itself.
const SEND_OVERHEAD: usize = 32;
/// A dump that does not go on for so long is given up.
const PATIENCE_SECONDS: i64 = 10;

/// One open netlink socket of the namespace that it was opened in.
pub struct Socket {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
    seq: u32,
    longest: usize,
}

impl Socket {
    /// Opens the socket, with buffers as large as this process may have.
    pub fn open() -> Result<Socket, NetlinkError> {
        let opened = netlink_sys::Socket::new(NETLINK_NETFILTER).and_then(|mut socket| {
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        });
        let socket = opened.map_err(|error| failed("opening", &error))?;
        // Both shape errors only: not quoting the request, and a text beside the number.
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        let longest = widen(&socket)?;
        Ok(Socket { socket, buffer: vec![0; RECEIVE], seq: 0, longest })
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

    /// One piece of the answer, or none if there is nothing (more).
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

    /// Throws away what an earlier, broken exchange left.
    fn drain(&mut self) {
        while !matches!(self.receive(MsgFlags::MSG_DONTWAIT), Ok(None) | Err(NetlinkError::Socket { .. })) {}
    }

    /// Sends a request and gathers the messages of the answer.
    fn gather(&mut self, header: Header, body: impl FnOnce(&mut Writer)) -> Result<Vec<u8>, NetlinkError> {
        let mut gathered = Vec::new();
        match self.answer(header, body, &mut |raw| gathered.extend_from_slice(raw.bytes))? {
            Complete::Yes => Ok(gathered),
            Complete::Interrupted => Err(NetlinkError::Interrupted),
        }
    }

    /// Sends a request and hands out the messages of the answer one by one, so that a long answer needs no memory.
    pub(crate) fn answer(
        &mut self,
        header: Header,
        body: impl FnOnce(&mut Writer),
        take: &mut dyn FnMut(Raw<'_>),
    ) -> Result<Complete, NetlinkError> {
        self.drain();
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        let mut request = Writer::new();
        request.message(Header { seq, ..header }, body);
        self.send(request.bytes())?;
        let mut interrupted = false;
        loop {
            let len = self.receive(MsgFlags::empty())?.ok_or(NetlinkError::Silent)?;
            match take_piece(&self.buffer[..len], seq, take, &mut interrupted)? {
                Progress::More => {}
                Progress::Done if interrupted => return Ok(Complete::Interrupted),
                Progress::Done => return Ok(Complete::Yes),
            }
        }
    }
}

/// Whether an answer is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complete {
    /// It is.
    Yes,
    /// What was asked for changed on the way, so that some of it may be missing or twice there.
    Interrupted,
}

/// Makes the buffers as large as allowed, and says how long a batch may be.
fn widen(socket: &netlink_sys::Socket) -> Result<usize, NetlinkError> {
    let options = |errno| NetlinkError::Socket { doing: "setting up", errno };
    if setsockopt(socket, sockopt::SndBufForce, &(SEND_BUFFER / 2)).is_err() {
        // In a user namespace: the kernel silently grants as much as net.core.wmem_max.
        setsockopt(socket, sockopt::SndBuf, &(SEND_BUFFER / 2)).map_err(options)?;
    }
    if setsockopt(socket, sockopt::RcvBufForce, &(4 << 20)).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &(4 << 20)).map_err(options)?;
    }
    setsockopt(socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS)).map_err(options)?;
    let granted = getsockopt(socket, sockopt::SndBuf).map_err(options)?;
    Ok(granted.saturating_sub(SEND_OVERHEAD))
}

fn failed(doing: &'static str, error: &std::io::Error) -> NetlinkError {
    NetlinkError::Socket { doing, errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) }
}

enum Progress {
    More,
    Done,
}

/// Takes the messages of one piece of a dump.
fn take_piece(
    piece: &[u8],
    seq: u32,
    take: &mut dyn FnMut(Raw<'_>),
    interrupted: &mut bool,
) -> Result<Progress, NetlinkError> {
    // Cut off in the middle of a message: as good as not read.
    if !whole(piece) {
        return Err(NetlinkError::Interrupted);
    }
    for raw in messages(piece).filter(|raw| raw.header.seq == seq) {
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

/// The error in a message of that kind, or none if it says that all went well.
fn refusal(raw: Raw<'_>) -> Option<(Errno, Option<String>)> {
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
    let told = raw.header.flags & abi::NLM_F_ACK_TLVS != 0;
    let attrs = Attrs::new(raw.payload.get(4 + quoted..).filter(|_| told).unwrap_or_default());
    Some((Errno::from_raw(number.saturating_neg()), attrs.text(abi::NLMSGERR_ATTR_MSG)))
}

impl Kernel for Socket {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        if batch.len() > self.longest {
            return Err(NetlinkError::TooLong { bytes: batch.len(), limit: self.longest });
        }
        self.drain();
        self.send(batch)?;
        // The kernel works the batch off within the call above, so that every answer is there already.
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

    fn dump(&mut self, query: &Query) -> Result<Vec<u8>, NetlinkError> {
        let mut gathered = Vec::new();
        Kernel::each(self, query, &mut |raw| gathered.extend_from_slice(raw.bytes))?;
        Ok(gathered)
    }

    fn each(&mut self, query: &Query, take: &mut dyn FnMut(Raw<'_>)) -> Result<(), NetlinkError> {
        let asked = self.answer(header_of(query), |out| question(query, out), take)?;
        if asked == Complete::Interrupted { Err(NetlinkError::Interrupted) } else { Ok(()) }
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        let header = Header {
            kind: codes::nft_message(msg::GETGEN),
            flags: abi::NLM_F_REQUEST,
            seq: 0,
            family: 0,
            version: 0,
            resource: 0,
        };
        let answer = self.gather(header, |_| {})?;
        let number = messages(&answer).next().and_then(|raw| raw.attrs().u32(abi::GEN_ID));
        number.ok_or(NetlinkError::Silent)
    }

    fn longest_batch(&self) -> usize {
        self.longest
    }
}

fn header_of(query: &Query) -> Header {
    let (message, table) = match query {
        Query::Tables => (msg::GETTABLE, None),
        Query::Chains => (msg::GETCHAIN, None),
        Query::Sets(table) => (msg::GETSET, Some(table)),
        Query::Elements(table, _) => (msg::GETSETELEM, Some(table)),
        Query::Rules(table) => (msg::GETRULE, Some(table)),
    };
    let family = table.map_or(0, |table: &TableId| codes::FAMILY.number(table.family));
    Header {
        kind: codes::nft_message(message),
        flags: abi::NLM_F_REQUEST | abi::NLM_F_DUMP,
        seq: 0,
        family: u8::try_from(family).unwrap_or(0),
        version: 0,
        resource: 0,
    }
}

fn question(query: &Query, out: &mut Writer) {
    match query {
        Query::Tables | Query::Chains => {}
        Query::Sets(table) => out.attr_str(set::TABLE, &table.name),
        Query::Rules(table) => out.attr_str(rule::TABLE, &table.name),
        Query::Elements(table, set) => {
            out.attr_str(elem::LIST_TABLE, &table.name);
            out.attr_str(elem::LIST_SET, set);
        }
    }
}
