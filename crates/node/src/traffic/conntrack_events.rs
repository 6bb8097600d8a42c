//! Conntrack events and dumps, summed by frontend and endpoint. Read on a thread of its own: dumping a large conntrack
//! table must not delay a sync.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clock::Clock;
use dataplane::conntrack::{AccountedEntry, ConntrackEvents, ConntrackSocket};
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::connection_counts;
use dataplane::nftables::render::protocol_of;
use model::{Family, Protocol};

use super::PERIOD;

/// Interval between dumps of open connections, which walk the whole conntrack table.
const DUMP_INTERVAL: Duration = Duration::from_secs(30);
/// Most pairs of frontend and endpoint.
const MAX_PAIRS: usize = 200_000;

/// A frontend and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowPair {
    pub(super) protocol: Protocol,
    pub(super) frontend: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// Something counted, by pair.
pub(super) type Sums = BTreeMap<FlowPair, u64>;

/// Counts since the last update of the metrics.
#[derive(Debug, Default)]
pub(super) struct TrafficCounts {
    /// New connections.
    pub(super) connections: Sums,
    /// Bytes of connections that ended.
    pub(super) ended: Sums,
    /// Bytes of open connections, as of the last dump.
    pub(super) open: Option<Sums>,
}

/// The netlink sockets.
pub(super) struct ConntrackReader {
    ended: ConntrackEvents,
    open: ConntrackSocket,
    counts: NetlinkSocket,
    /// Values of the rule counters at the last read.
    last: Sums,
}

impl ConntrackReader {
    /// Opens the sockets. Earlier counts are not counted again.
    pub(super) fn open() -> Result<ConntrackReader, NetlinkError> {
        let mut reader = ConntrackReader {
            ended: ConntrackEvents::open()?,
            open: ConntrackSocket::open()?,
            counts: NetlinkSocket::open()?,
            last: Sums::new(),
        };
        reader.read_counts(&mut Sums::new());
        Ok(reader)
    }

    /// Runs until the other holder of the counts is dropped.
    pub(super) fn run(mut self, counts: &Arc<Mutex<TrafficCounts>>, clock: &Clock) {
        let (mut counted_at, mut dumped_at) = (clock.now(), clock.now());
        let step = PERIOD / 2;
        while Arc::strong_count(counts) > 1 {
            let mut ended = Vec::new();
            // Lost events make the sum a little low.
            let _ = self.ended.wait(&mut |account| ended.extend(bytes(&account)));
            let mut new = Sums::new();
            if clock.since(counted_at) >= step {
                counted_at = clock.now();
                self.read_counts(&mut new);
            }
            let open = (clock.since(dumped_at) >= DUMP_INTERVAL).then(|| {
                dumped_at = clock.now();
                self.dump_open()
            });
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            ended.into_iter().for_each(|(pair, bytes)| add(&mut counts.ended, pair, bytes));
            new.into_iter().for_each(|(pair, count)| add(&mut counts.connections, pair, count));
            counts.open = open.or(counts.open.take());
        }
    }

    /// Adds the connections since the last read.
    fn read_counts(&mut self, new: &mut Sums) {
        let mut now = Sums::new();
        for family in [Family::V4, Family::V6] {
            let found = match connection_counts(&mut self.counts, family) {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "failed to read connection counters; the next read retries");
                    return;
                }
            };
            for one in found {
                let pair =
                    FlowPair { protocol: one.protocol, frontend: one.frontend, endpoint: one.endpoint };
                now.insert(pair, one.connections);
            }
        }
        since(&self.last, &now).for_each(|(pair, count)| add(new, pair, count));
        self.last = now;
    }

    fn dump_open(&mut self) -> Sums {
        let mut sums = Sums::new();
        for family in [Family::V4, Family::V6] {
            let _ = self.open.accounts(family, &mut |account| {
                bytes(&account).into_iter().for_each(|(pair, bytes)| add(&mut sums, pair, bytes));
            });
        }
        sums
    }
}

/// Increases of counters. A counter that is lower than before expired and restarted.
fn since<'a>(last: &'a Sums, now: &'a Sums) -> impl Iterator<Item = (FlowPair, u64)> + 'a {
    now.iter().filter_map(|(pair, count)| {
        let before = last.get(pair).copied().filter(|before| before <= count).unwrap_or(0);
        (*count > before).then_some((*pair, count - before))
    })
}

/// Adds to a pair if it is known or fits.
pub(super) fn add(sums: &mut Sums, pair: FlowPair, count: u64) {
    if sums.len() < MAX_PAIRS || sums.contains_key(&pair) {
        let sum = sums.entry(pair).or_default();
        *sum = sum.saturating_add(count);
    }
}

/// Only translated flows can belong to a Service.
fn bytes(account: &AccountedEntry) -> Option<(FlowPair, u64)> {
    let flow = &account.entry;
    let protocol = protocol_of(flow.protocol).filter(|_| flow.dst != flow.reply_src)?;
    Some((FlowPair { protocol, frontend: flow.dst, endpoint: flow.reply_src }, account.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_expired_in_between_counts_from_nothing() {
        let pair = |port: u16| FlowPair {
            protocol: Protocol::Tcp,
            frontend: ([10, 96, 0, 1], 80).into(),
            endpoint: ([10, 1, 0, 1], port).into(),
        };
        let last = Sums::from([(pair(1), 5), (pair(2), 5), (pair(3), 5), (pair(4), 5)]);
        let now = Sums::from([(pair(1), 5), (pair(2), 8), (pair(3), 2), (pair(5), 1)]);
        let grown: Vec<(FlowPair, u64)> = since(&last, &now).collect();
        assert_eq!(grown, [(pair(2), 3), (pair(3), 2), (pair(5), 1)]);
    }
}
