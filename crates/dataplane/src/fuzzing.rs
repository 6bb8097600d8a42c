//! Entries for the fuzz target of netlink replies. No stable interface.

use crate::conntrack::{AccountedEntry, ConntrackEntry};
use crate::nfnetlink::wire::RawMessage;

/// A datagram of a dump: how many messages it has for this sequence number, or the error that it carries.
pub fn take_datagram(datagram: &[u8], seq: u32) -> Result<usize, String> {
    let mut count = 0;
    crate::nfnetlink::take_datagram(datagram, seq, &mut |_| count += 1)?;
    Ok(count)
}

/// A conntrack entry with its counters, as an event reports it.
pub fn destroyed_connection(raw: RawMessage<'_>) -> Option<AccountedEntry> {
    crate::conntrack::destroyed(raw)
}

/// The original direction of an entry, encoded and decoded: protocol, source, destination.
pub fn recoded_connection(entry: &ConntrackEntry) -> Option<ConntrackEntry> {
    crate::conntrack::recoded(entry)
}
