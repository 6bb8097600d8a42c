//! nf_tables over netlink: the trait that the real kernel and the fake one implement.

use std::sync::{Arc, Mutex, PoisonError};

use super::abi::{self, elem, msg, rule, set};
use super::codes;
use super::ir::{NftName, TableId};
use crate::nfnetlink::wire::{MessageHeader, MessageWriter, RawMessage, messages, whole};
use crate::nfnetlink::{DumpEnd, NetlinkError, NetlinkSocket};

/// Takes transactions and dumps tables.
pub trait Kernel {
    /// Sends one batch, which is applied as a whole or not at all.
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError>;

    /// The messages that answer a request.
    fn dump(&mut self, request: &DumpRequest) -> Result<Vec<u8>, NetlinkError>;

    /// Passes the messages that answer a request one by one; half a million elements gathered first would be tens of
    /// megabytes. After an error, the messages passed so far are void.
    fn each(
        &mut self,
        request: &DumpRequest,
        take: &mut dyn FnMut(RawMessage<'_>),
    ) -> Result<(), NetlinkError> {
        let dump = self.dump(request)?;
        // A dump that ends within a message was cut off.
        if !whole(&dump) {
            return Err(NetlinkError::Interrupted);
        }
        messages(&dump).for_each(take);
        Ok(())
    }

    /// The generation id, which every transaction on any table increments.
    fn generation(&mut self) -> Result<u32, NetlinkError>;

    /// The longest batch that fits into the send buffer, in bytes.
    fn longest_batch(&self) -> usize;
}

/// Which objects to dump. The kernel dumps chains of all tables at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpRequest {
    /// All tables.
    Tables,
    /// The chains of all tables, without rules.
    Chains,
    /// The sets of a table, without elements.
    Sets(TableId),
    /// The elements of a set.
    Elements(TableId, NftName),
    /// The rules of a table.
    Rules(TableId),
}

/// A kernel with several owners, such as a backend and a test that modifies tables behind its back.
impl<K: Kernel> Kernel for Arc<Mutex<K>> {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).transact(batch)
    }

    fn dump(&mut self, request: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).dump(request)
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).generation()
    }

    fn longest_batch(&self) -> usize {
        self.lock().unwrap_or_else(PoisonError::into_inner).longest_batch()
    }
}

impl Kernel for NetlinkSocket {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        self.send_batch(batch)
    }

    fn dump(&mut self, request: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        let mut gathered = Vec::new();
        Kernel::each(self, request, &mut |raw| gathered.extend_from_slice(raw.bytes))?;
        Ok(gathered)
    }

    fn each(
        &mut self,
        request: &DumpRequest,
        take: &mut dyn FnMut(RawMessage<'_>),
    ) -> Result<(), NetlinkError> {
        match self.request(header(request), |out| attributes(request, out), take)? {
            DumpEnd::Complete => Ok(()),
            DumpEnd::Interrupted => Err(NetlinkError::Interrupted),
        }
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        let header = MessageHeader {
            kind: codes::nft_message(msg::GETGEN),
            flags: abi::NLM_F_REQUEST,
            seq: 0,
            family: 0,
            version: 0,
            resource: 0,
        };
        let mut generation = None;
        let end = self
            .request(header, |_| {}, &mut |raw| generation = generation.or(raw.attrs().u32(abi::GEN_ID)))?;
        match end {
            DumpEnd::Complete => generation.ok_or(NetlinkError::Silent),
            DumpEnd::Interrupted => Err(NetlinkError::Interrupted),
        }
    }

    fn longest_batch(&self) -> usize {
        self.longest
    }
}

fn header(request: &DumpRequest) -> MessageHeader {
    let (message, table) = match request {
        DumpRequest::Tables => (msg::GETTABLE, None),
        DumpRequest::Chains => (msg::GETCHAIN, None),
        DumpRequest::Sets(table) => (msg::GETSET, Some(table)),
        DumpRequest::Elements(table, _) => (msg::GETSETELEM, Some(table)),
        DumpRequest::Rules(table) => (msg::GETRULE, Some(table)),
    };
    let family = table.map_or(0, |table: &TableId| codes::FAMILY.number(table.family));
    MessageHeader {
        kind: codes::nft_message(message),
        flags: abi::NLM_F_REQUEST | abi::NLM_F_DUMP,
        seq: 0,
        family: u8::try_from(family).unwrap_or(0),
        version: 0,
        resource: 0,
    }
}

fn attributes(request: &DumpRequest, out: &mut MessageWriter) {
    match request {
        DumpRequest::Tables | DumpRequest::Chains => {}
        DumpRequest::Sets(table) => out.attr_str(set::TABLE, &table.name),
        DumpRequest::Rules(table) => out.attr_str(rule::TABLE, &table.name),
        DumpRequest::Elements(table, set) => {
            out.attr_str(elem::LIST_TABLE, &table.name);
            out.attr_str(elem::LIST_SET, set);
        }
    }
}
