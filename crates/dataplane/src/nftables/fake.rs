//! A kernel in memory: takes batches, validates and stores them by the kernel's rules, and answers dumps.
//!
//! It receives the encoder's bytes, not the values that were encoded.

mod dump;
mod faults;
mod transaction;
mod validate;

pub use faults::{FaultyKernel, KernelFault};

use std::collections::BTreeMap;

use model::Family;
use nix::errno::Errno;

use self::transaction::Transaction;
use super::apply::{ConnectionCount, counted_pair};
use super::decode::{self, NftMessage};
use super::ir::{Bytes, NftName, Ruleset, Set, TableId};
use super::kernel::{DumpRequest, Kernel};
use super::render::{SetName, table_id};
use super::trace::{
    Evaluation, NodeAddresses, TooManyPaths, TracePath, TracedPacket, evaluate, evaluate_once,
};
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::{messages, whole};

/// The default send buffer in a user namespace.
const LONGEST_BATCH: usize = 425_952;

/// Tables in memory.
#[derive(Debug, Clone)]
pub struct FakeKernel {
    ruleset: Ruleset,
    generation: u32,
    last_handle: u64,
    longest_batch: usize,
    halves_batches: bool,
    /// Counters of elements. A dump has none.
    counts: BTreeMap<(TableId, NftName, Bytes), u64>,
}

impl Default for FakeKernel {
    fn default() -> FakeKernel {
        FakeKernel {
            ruleset: Ruleset::default(),
            generation: 1,
            last_handle: 0,
            longest_batch: LONGEST_BATCH,
            halves_batches: false,
            counts: BTreeMap::new(),
        }
    }
}

impl FakeKernel {
    pub fn new() -> FakeKernel {
        FakeKernel::default()
    }

    pub fn with_longest_batch(self, longest_batch: usize) -> FakeKernel {
        FakeKernel { longest_batch, ..self }
    }

    /// A bug that a test plants: every batch is applied up to its middle.
    pub fn with_halved_batches(self, halves_batches: bool) -> FakeKernel {
        FakeKernel { halves_batches, ..self }
    }

    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Another program deletes all tables, as `nft flush ruleset`.
    pub fn flush(&mut self) {
        self.ruleset = Ruleset::default();
        self.counts.clear();
        self.generation = self.generation.wrapping_add(1);
    }

    /// All paths of a packet.
    pub fn evaluate(&self, packet: &TracedPacket, node: &NodeAddresses) -> Result<Evaluation, TooManyPaths> {
        evaluate(&self.ruleset, packet, node)
    }

    /// Sends one packet and stores the elements that rules add. `random` returns a number below its argument.
    pub fn send(
        &mut self,
        packet: &TracedPacket,
        node: &NodeAddresses,
        random: impl FnMut(u32) -> u32,
    ) -> TracePath {
        let path = evaluate_once(&self.ruleset, packet, node, random);
        for update in &path.updates {
            let Some(set) = self.set(&update.table, &update.set) else { continue };
            match &update.value {
                Some(value) => set.elements.insert(update.key.clone(), value.clone()),
                None => set.elements.remove(&update.key),
            };
        }
        path
    }

    /// Counts a packet that takes this path, and stores nothing else of it.
    pub fn count(&mut self, path: &TracePath) {
        for update in path.updates.iter().filter(|update| update.counts && update.value.is_some()) {
            let key = (update.table.clone(), update.set.clone(), update.key.clone());
            *self.counts.entry(key).or_default() += 1;
        }
    }

    /// What the rules counted. A set that is deleted takes its counters with it.
    pub fn connection_counts(&mut self, family: Family) -> Vec<ConnectionCount> {
        let tables = &self.ruleset.tables;
        let is_there = |(id, set, _): &(TableId, NftName, Bytes)| {
            tables.get(id).is_some_and(|t| t.sets.contains_key(set))
        };
        self.counts.retain(|key, _| is_there(key));
        let (id, name) = (table_id(family), NftName::from(SetName::Connections.stem()));
        let of_set = self.counts.iter().filter(|((table, set, _), _)| *table == id && *set == name);
        let count = |((_, _, key), connections): (&(TableId, NftName, Bytes), &u64)| {
            let (protocol, frontend, endpoint) = counted_pair(key, family)?;
            Some(ConnectionCount { protocol, frontend, endpoint, connections: *connections })
        };
        of_set.filter_map(count).collect()
    }

    fn set(&mut self, table: &TableId, set: &NftName) -> Option<&mut Set> {
        self.ruleset.tables.get_mut(table)?.sets.get_mut(set)
    }
}

impl Kernel for FakeKernel {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        if batch.len() > self.longest_batch {
            return Err(NetlinkError::TooLong { bytes: batch.len(), limit: self.longest_batch });
        }
        // The kernel discards such a batch without a reply.
        if !whole(batch) {
            return Err(NetlinkError::Silent);
        }
        let mut transaction = Transaction::new(&mut self.ruleset, self.last_handle);
        match take(&mut transaction, batch, self.halves_batches) {
            Ok(true) => {
                self.last_handle = transaction.last_handle;
                self.generation = self.generation.wrapping_add(1);
                Ok(())
            }
            // Without its end message a batch is validated and dropped.
            Ok(false) => {
                transaction.abort();
                Ok(())
            }
            Err(error) => {
                transaction.abort();
                Err(error)
            }
        }
    }

    fn dump(&mut self, request: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        dump::dump(&self.ruleset, request).map_err(|errno| NetlinkError::Refused {
            seq: 0,
            errno,
            text: None,
        })
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        Ok(self.generation)
    }

    fn longest_batch(&self) -> usize {
        self.longest_batch
    }
}

/// Takes a batch. Returns whether it has an end message, without which it is dropped.
fn take(transaction: &mut Transaction<'_>, batch: &[u8], halves: bool) -> Result<bool, NetlinkError> {
    let mut last = 0;
    let (mut ended, mut acknowledged) = (false, false);
    let half = messages(batch).count() / 2;
    for (index, raw) in messages(batch).enumerate() {
        let (seq, flags) = (raw.header.seq, raw.header.flags);
        let refused = |errno: Errno, text: Option<String>| NetlinkError::Refused { seq, errno, text };
        let message =
            decode::message(raw).map_err(|error| refused(Errno::EINVAL, Some(error.to_string())))?;
        match message {
            NftMessage::Begin => {}
            NftMessage::End => ended = true,
            _ if index > half && halves => {}
            message => {
                transaction.take(message).map_err(|errno| refused(errno, None))?;
                last = seq;
                acknowledged |= flags & super::abi::NLM_F_ACK != 0;
            }
        }
    }
    let refused = |errno| NetlinkError::Refused { seq: last, errno, text: None };
    if !ended && !acknowledged {
        return Err(NetlinkError::Silent);
    }
    if transaction.changes_jumps {
        validate::ruleset(transaction.ruleset).map_err(refused)?;
    }
    Ok(ended)
}
