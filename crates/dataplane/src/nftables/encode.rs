//! Changes as a netlink batch: a begin message, one or more messages per change, an end message.
//!
//! Only the last change requests an acknowledgement. Errors come anyway, and thousands of acknowledgements would overflow
//! the receive buffer.

mod expr;
mod object;
mod packed;
mod userdata;

use super::abi;
use super::ir::{NftChange, NftName, PackedElements, TableId};
use crate::nfnetlink::wire::{MessageHeader, MessageWriter, messages};

/// The bytes of one transaction, with the change that each message belongs to.
#[derive(Debug, Clone)]
pub struct Batch {
    writer: MessageWriter,
    first_seq: u32,
    /// Index of the change, for each message after the begin message.
    change_by_message: Vec<u32>,
    last_message: usize,
    changes: u32,
    closed: bool,
    /// Encodes a dump instead of a transaction.
    is_dump: bool,
}

/// A position that a batch can be reset to.
#[derive(Debug, Clone, Copy)]
pub struct BatchPosition {
    bytes: usize,
    messages: usize,
    last_message: usize,
    changes: u32,
}

impl Batch {
    /// An empty batch whose sequence numbers start at `first_seq`.
    pub fn open(first_seq: u32) -> Batch {
        let mut writer = MessageWriter::new();
        let header = envelope(abi::BATCH_BEGIN, first_seq);
        writer.message(header, |_| {});
        Batch {
            writer,
            first_seq,
            change_by_message: Vec::new(),
            last_message: 0,
            changes: 0,
            closed: false,
            is_dump: false,
        }
    }

    /// Reserves the length of the whole batch, so that it is not copied as it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.writer.reserve(bytes.saturating_sub(self.writer.position()));
    }

    /// Empties the batch for the next transaction and keeps its buffer.
    pub fn reopen(&mut self) {
        let begin = messages(self.writer.bytes()).next().map_or(0, |raw| raw.bytes.len());
        self.writer.truncate(begin);
        self.change_by_message.clear();
        (self.last_message, self.changes, self.closed) = (0, 0, false);
    }

    /// A closed batch of these changes.
    pub fn of(changes: &[NftChange], first_seq: u32) -> Batch {
        let mut batch = Batch::open(first_seq);
        changes.iter().for_each(|change| batch.push(change));
        batch.close();
        batch
    }

    /// A batch of these changes without the end message: the kernel validates it, acknowledges the last change, and
    /// commits nothing.
    pub fn dry_run(changes: &[NftChange], first_seq: u32) -> Batch {
        let mut batch = Batch::open(first_seq);
        changes.iter().for_each(|change| batch.push(change));
        batch.request_acknowledgement();
        batch
    }

    pub fn push(&mut self, change: &NftChange) {
        let index = self.changes;
        self.changes += 1;
        object::encode(self, change, index);
    }

    /// Appends the addition of elements to a set without intervals.
    pub fn push_packed(&mut self, table: &TableId, set: &NftName, elements: &PackedElements) {
        let index = self.changes;
        self.changes += 1;
        packed::encode(self, index, table, set, elements);
    }

    /// The current position, for [`Self::reset`].
    pub fn position(&self) -> BatchPosition {
        BatchPosition {
            bytes: self.writer.position(),
            messages: self.change_by_message.len(),
            last_message: self.last_message,
            changes: self.changes,
        }
    }

    /// Removes what was pushed after the position.
    pub fn reset(&mut self, to: BatchPosition) {
        self.writer.truncate(to.bytes);
        self.change_by_message.truncate(to.messages);
        self.last_message = to.last_message;
        self.changes = to.changes;
    }

    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Length after [`Self::close`].
    pub fn closed_len(&self) -> usize {
        self.writer.position() + if self.closed { 0 } else { crate::nfnetlink::wire::HEADER }
    }

    /// Appends the end message and requests an acknowledgement of the last change.
    pub fn close(&mut self) {
        if self.closed {
            return;
        }
        self.request_acknowledgement();
        let seq = self.next_seq();
        self.writer.message(envelope(abi::BATCH_END, seq), |_| {});
        self.closed = true;
    }

    /// Requests an acknowledgement of the last change.
    fn request_acknowledgement(&mut self) {
        if !self.change_by_message.is_empty() {
            self.writer.add_flags(self.last_message, abi::NLM_F_ACK);
        }
    }

    pub fn bytes(&self) -> &[u8] {
        self.writer.bytes()
    }

    /// Sequence number of the message that requests the acknowledgement.
    pub fn acknowledged_seq(&self) -> u32 {
        self.first_seq.wrapping_add(u32::try_from(self.change_by_message.len()).unwrap_or(u32::MAX))
    }

    /// The first sequence number after this batch.
    pub fn seq_after(&self) -> u32 {
        self.acknowledged_seq().wrapping_add(2)
    }

    /// The index of the change that a message belongs to; none for begin and end.
    pub fn change_of(&self, seq: u32) -> Option<usize> {
        let message = usize::try_from(seq.wrapping_sub(self.first_seq)).ok()?.checked_sub(1)?;
        self.change_by_message.get(message).and_then(|change| usize::try_from(*change).ok())
    }

    fn next_seq(&self) -> u32 {
        self.acknowledged_seq().wrapping_add(1)
    }

    fn message(&mut self, change: u32, mut header: MessageHeader, body: impl FnOnce(&mut MessageWriter)) {
        header.seq = self.next_seq();
        self.last_message = self.writer.position();
        self.change_by_message.push(change);
        self.writer.message(header, body);
    }
}

/// The messages with which a kernel dumps the objects that these changes create.
pub(super) fn dump_messages(changes: &[NftChange]) -> Vec<u8> {
    let mut batch = Batch { is_dump: true, ..Batch::open(0) };
    let begin = batch.writer.position();
    changes.iter().for_each(|change| batch.push(change));
    batch.writer.into_bytes().split_off(begin)
}

fn envelope(kind: u16, seq: u32) -> MessageHeader {
    MessageHeader {
        kind,
        flags: abi::NLM_F_REQUEST,
        seq,
        family: 0,
        version: 0,
        resource: abi::SUBSYS_NFTABLES,
    }
}
