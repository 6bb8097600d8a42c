//! A kernel that behaves: it takes the bytes of transactions, keeps tables by the kernel's own rules, and says what would
//! become of a packet.
//!
//! It never sees what the encoder meant, only what it wrote; and `evaluate` works on any program, so that tables dumped
//! from a real kernel can be asked the same question.
//!
//! ```text
//!  from outside: prerouting -> to the node: input
//!                           -> to others:   forward -> postrouting
//!  from the node: output -> postrouting (-> to the node: prerouting -> input)
//! ```

mod check;
mod dump;
mod evaluate;
mod machine;
mod packet;
mod register;
mod state;

pub use evaluate::{TooManyWays, evaluate, evaluate_once};
pub use packet::{Evaluation, Fate, Learned, Node, Packet, Path, Step};

use nix::errno::Errno;

use super::decode::{self, Message};
use super::ir::{Name, Program, Set, TableId};
use super::netlink::wire::{messages, whole};
use super::netlink::{Kernel, NetlinkError, Query};

/// A send buffer as a user namespace has it by default.
const LONGEST_BATCH: usize = 425_952;

/// Tables in memory, behind the same trait as the kernel's.
#[derive(Debug, Clone)]
pub struct FakeKernel {
    program: Program,
    generation: u32,
    last_handle: u64,
    longest_batch: usize,
}

impl Default for FakeKernel {
    fn default() -> FakeKernel {
        FakeKernel {
            program: Program::default(),
            generation: 1,
            last_handle: 0,
            longest_batch: LONGEST_BATCH,
        }
    }
}

impl FakeKernel {
    /// A kernel without tables.
    pub fn new() -> FakeKernel {
        FakeKernel::default()
    }

    /// The same with another limit for batches.
    pub fn with_longest_batch(self, longest_batch: usize) -> FakeKernel {
        FakeKernel { longest_batch, ..self }
    }

    /// What it holds.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Everything that can become of a packet.
    pub fn evaluate(&self, packet: &Packet, node: &Node) -> Result<Evaluation, TooManyWays> {
        evaluate(&self.program, packet, node)
    }

    /// Lets one packet through and remembers what rules learn from it. `chance` answers with a number below its
    /// argument.
    pub fn send(&mut self, packet: &Packet, node: &Node, chance: impl FnMut(u32) -> u32) -> Path {
        let path = evaluate_once(&self.program, packet, node, chance);
        for learned in &path.learned {
            let Some(set) = self.set(&learned.table, &learned.set) else { continue };
            match &learned.value {
                Some(value) => set.elements.insert(learned.key.clone(), value.clone()),
                None => set.elements.remove(&learned.key),
            };
        }
        path
    }

    fn set(&mut self, table: &TableId, set: &Name) -> Option<&mut Set> {
        self.program.tables.get_mut(table)?.sets.get_mut(set)
    }
}

impl Kernel for FakeKernel {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        if batch.len() > self.longest_batch {
            return Err(NetlinkError::TooLong { bytes: batch.len(), limit: self.longest_batch });
        }
        // The kernel gives such a batch up without an answer.
        if !whole(batch) {
            return Err(NetlinkError::Silent);
        }
        let mut draft = state::Draft { program: self.program.clone(), last_handle: self.last_handle };
        let mut last = 0;
        let mut ended = false;
        for raw in messages(batch) {
            let seq = raw.header.seq;
            let refused = |errno: Errno, text: Option<String>| NetlinkError::Refused { seq, errno, text };
            let message =
                decode::message(raw).map_err(|error| refused(Errno::EINVAL, Some(error.to_string())))?;
            match message {
                Message::Begin { generation: Some(seen) } if seen != self.generation => {
                    return Err(refused(Errno::ERESTART, None));
                }
                Message::Begin { .. } => {}
                Message::End => ended = true,
                message => {
                    draft.take(message).map_err(|errno| refused(errno, None))?;
                    last = seq;
                }
            }
        }
        if !ended {
            return Err(NetlinkError::Silent);
        }
        let refused = |errno| NetlinkError::Refused { seq: last, errno, text: None };
        check::program(&draft.program).map_err(refused)?;
        (self.program, self.last_handle) = (draft.program, draft.last_handle);
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn dump(&mut self, query: &Query) -> Result<Vec<u8>, NetlinkError> {
        dump::dump(&self.program, query).map_err(|errno| NetlinkError::Refused { seq: 0, errno, text: None })
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        Ok(self.generation)
    }

    fn longest_batch(&self) -> usize {
        self.longest_batch
    }
}
