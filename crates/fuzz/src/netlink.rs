//! Replies of the kernel: datagrams of dumps, nf_tables objects, conntrack entries. The input is a datagram.

use dataplane::fuzzing;
use dataplane::nfnetlink::wire::{messages, whole};
use dataplane::nftables::decode::{self, RulesetReader};
use dataplane::nftables::encode::Batch;
use dataplane::nftables::ir::{Element, IntervalEncoding, NftChange, NftFamily, TableId};

pub(crate) fn run(datagram: &[u8]) {
    let all: Vec<_> = messages(datagram).collect();
    let covered: usize = all.iter().map(|raw| raw.bytes.len()).sum();
    assert!(covered <= datagram.len(), "messages have more bytes than the datagram");
    assert_eq!(whole(datagram), covered == datagram.len());
    let seq = all.first().map_or(0, |raw| raw.header.seq);
    if let Ok(count) = fuzzing::take_datagram(datagram, seq) {
        assert!(count <= all.len() && whole(datagram), "a datagram that is cut off was taken");
    }
    for raw in &all {
        if let Some(found) = fuzzing::destroyed_connection(*raw) {
            let again = fuzzing::recoded_connection(&found.entry);
            assert_eq!(again.as_ref(), Some(&found.entry), "a connection does not survive encoding");
        }
    }
    read_ruleset(datagram);
    // Elements whose ends are joined may overlap in any way: decoded, but not compared.
    let _ = decode::changes(datagram, |_, _| Some(IntervalEncoding::TwoElements));
    if let Ok(changes) = decode::changes(datagram, |_, _| Some(IntervalEncoding::None)) {
        // A list without elements is not written.
        let is_written = |change: &NftChange| !elements(change).is_some_and(<[_]>::is_empty);
        recode(&changes.into_iter().filter(is_written).collect::<Vec<_>>());
    }
}

/// The elements of a change of elements.
fn elements(change: &NftChange) -> Option<&[Element]> {
    match change {
        NftChange::AddElements { elements, .. } | NftChange::DeleteElements { elements, .. } => {
            Some(elements)
        }
        _ => None,
    }
}

/// What the encoder writes is decoded as it was. A message of another program may be decoded to less than it says, so
/// the first encoding only makes it ours.
fn recode(changes: &[NftChange]) {
    let elements = changes.iter().filter_map(elements).flatten();
    let is_set = changes.iter().any(|change| matches!(change, NftChange::AddSet { .. }));
    let has_end = elements.clone().any(|element| element.value.key_end.is_some());
    // A set's own encoding decides how its elements are written; the fuzzer rarely gets both right.
    if has_end || (is_set && elements.count() > 0) {
        return;
    }
    let recoded = |changes: &[NftChange]| {
        decode::changes(Batch::of(changes, 1).bytes(), |_, _| Some(IntervalEncoding::None))
    };
    let Ok(ours) = recoded(changes) else { return };
    assert_eq!(recoded(&ours).as_ref(), Ok(&ours), "changes do not survive encoding");
}

/// As a dump of our tables.
fn read_ruleset(datagram: &[u8]) {
    let tables =
        [NftFamily::Ip, NftFamily::Ip6, NftFamily::Inet].map(|family| TableId::new(family, "zoneward"));
    let mut reader = RulesetReader::default();
    messages(datagram).for_each(|raw| reader.take(raw, &tables));
    reader.settle();
    let tables = reader.so_far().tables.values();
    let mut sets: Vec<_> = tables.flat_map(|table| table.sets.values().cloned()).collect();
    let (ruleset, problems) = reader.finish();
    let objects: usize = ruleset.tables.values().map(|table| table.chains.len() + table.sets.len()).sum();
    let count = messages(datagram).count();
    assert!(ruleset.tables.len() + objects + problems.len() <= count, "more objects than messages");
    // What the kernel holds differs in nothing from itself.
    for set in sets.iter_mut().filter(|set| set.spec.ranges() == IntervalEncoding::None) {
        let mut reader = RulesetReader::default();
        messages(datagram).for_each(|raw| reader.take_difference(raw, set));
    }
}
