//! From changes to the bytes of a transaction.
//!
//! A batch is one begin message, one or more messages per change and one end message; the kernel does all of it or
//! nothing. Only the last change asks for an acknowledgement: errors come without asking, and a batch of thousands of
//! changes must not fill the receive buffer with thanks.

mod expr;
mod object;
mod rows;
mod userdata;

use super::ir::{Change, Name, Rows, TableId};
use super::netlink::abi;
use super::netlink::wire::{Header, Writer, messages};

/// The bytes of one transaction, and which change each message came from.
#[derive(Debug, Clone)]
pub struct Batch {
    writer: Writer,
    first_seq: u32,
    /// The change behind each message after the begin message.
    change_by_message: Vec<u32>,
    last_message: usize,
    changes: u32,
    closed: bool,
    /// What a kernel shows, not what is sent to one.
    is_dump: bool,
}

/// A place in a batch that it can be taken back to.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    position: usize,
    messages: usize,
    last_message: usize,
    changes: u32,
}

impl Batch {
    /// An empty batch whose messages count from `first_seq`. With a generation the kernel refuses it (ERESTART) if
    /// anyone changed any table since that generation.
    pub fn open(first_seq: u32, generation: Option<u32>) -> Batch {
        let mut writer = Writer::new();
        let header = envelope(abi::BATCH_BEGIN, first_seq);
        writer.message(header, |out| {
            if let Some(generation) = generation {
                out.attr_u32(abi::BATCH_GENID, generation);
            }
        });
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

    /// Makes room for a batch of this length, so that it need not be copied as it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.writer.reserve(bytes.saturating_sub(self.writer.position()));
    }

    /// Empties it for the next transaction; the buffer stays.
    pub fn reopen(&mut self) {
        let begin = messages(self.writer.bytes()).next().map_or(0, |raw| raw.bytes.len());
        self.writer.truncate(begin);
        self.change_by_message.clear();
        (self.last_message, self.changes, self.closed) = (0, 0, false);
    }

    /// The whole of these changes as one batch.
    pub fn of(changes: &[Change], first_seq: u32, generation: Option<u32>) -> Batch {
        let mut batch = Batch::open(first_seq, generation);
        changes.iter().for_each(|change| batch.push(change));
        batch.close();
        batch
    }

    /// Appends a change.
    pub fn push(&mut self, change: &Change) {
        let index = self.changes;
        self.changes += 1;
        object::encode(self, change, index);
    }

    /// Appends elements that a set without ranges gets.
    pub fn push_rows(&mut self, table: &TableId, set: &Name, rows: &Rows) {
        let index = self.changes;
        self.changes += 1;
        rows::encode(self, index, table, set, rows);
    }

    /// Where the batch stands, to come back to.
    pub fn mark(&self) -> Mark {
        Mark {
            position: self.writer.position(),
            messages: self.change_by_message.len(),
            last_message: self.last_message,
            changes: self.changes,
        }
    }

    /// Takes back what was pushed after the mark.
    pub fn reset(&mut self, mark: Mark) {
        self.writer.truncate(mark.position);
        self.change_by_message.truncate(mark.messages);
        self.last_message = mark.last_message;
        self.changes = mark.changes;
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Its length once it is closed.
    pub fn closed_len(&self) -> usize {
        self.writer.position() + if self.closed { 0 } else { super::netlink::wire::HEADER }
    }

    /// Ends the batch: the last change asks for an answer, and the end message follows.
    pub fn close(&mut self) {
        if self.closed {
            return;
        }
        if !self.change_by_message.is_empty() {
            self.writer.add_flags(self.last_message, abi::NLM_F_ACK);
        }
        let seq = self.next_seq();
        self.writer.message(envelope(abi::BATCH_END, seq), |_| {});
        self.closed = true;
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        self.writer.bytes()
    }

    /// The number of the message that asks for an answer.
    pub fn acknowledged_seq(&self) -> u32 {
        self.first_seq.wrapping_add(u32::try_from(self.change_by_message.len()).unwrap_or(u32::MAX))
    }

    /// The number after all of this batch.
    pub fn seq_after(&self) -> u32 {
        self.acknowledged_seq().wrapping_add(2)
    }

    /// Which change, counted from 0, a message number belongs to; none for begin and end.
    pub fn change_of(&self, seq: u32) -> Option<usize> {
        let message = usize::try_from(seq.wrapping_sub(self.first_seq)).ok()?.checked_sub(1)?;
        self.change_by_message.get(message).and_then(|change| usize::try_from(*change).ok())
    }

    fn next_seq(&self) -> u32 {
        self.acknowledged_seq().wrapping_add(1)
    }

    /// Starts one message of a change.
    fn message(&mut self, change: u32, mut header: Header, body: impl FnOnce(&mut Writer)) {
        header.seq = self.next_seq();
        self.last_message = self.writer.position();
        self.change_by_message.push(change);
        self.writer.message(header, body);
    }
}

/// The messages by which a kernel would show what these changes make, without an envelope.
pub(super) fn dump_messages(changes: &[Change]) -> Vec<u8> {
    let mut batch = Batch { is_dump: true, ..Batch::open(0, None) };
    let begin = batch.writer.position();
    changes.iter().for_each(|change| batch.push(change));
    batch.writer.into_bytes().split_off(begin)
}

fn envelope(kind: u16, seq: u32) -> Header {
    Header { kind, flags: abi::NLM_F_REQUEST, seq, family: 0, version: 0, resource: abi::SUBSYS_NFTABLES }
}
