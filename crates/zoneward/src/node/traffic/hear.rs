//! What the kernel tells of traffic, summed by frontend and endpoint. A thread of its own does the listening and asking: a
//! large table of connections shall not hold up rules.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dataplane::conntrack::{AccountedEntry, ConntrackEvents, ConntrackSocket};
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::connection_counts;
use dataplane::nftables::render::protocol_of;
use model::{Family, Protocol};

use super::PERIOD;

/// How often open connections are asked what they carried so far. That walks the whole table of connections.
const SLOW: Duration = Duration::from_secs(30);
/// Pairs of frontend and endpoint that are told apart.
const MOST_PAIRS: usize = 200_000;

/// A frontend and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) protocol: Protocol,
    pub(super) frontend: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// Something counted, by pair.
pub(super) type Sums = BTreeMap<Pair, u64>;

/// What was heard since it was last taken.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// New connections.
    pub(super) connections: Sums,
    /// Bytes of connections that ended.
    pub(super) ended: Sums,
    /// Bytes of the connections that are open, as of the last time that they were asked.
    pub(super) open: Option<Sums>,
}

/// The sockets on which the kernel tells.
pub(super) struct Ears {
    ended: ConntrackEvents,
    open: ConntrackSocket,
    counts: NetlinkSocket,
    /// What the counters showed the last time.
    last: Sums,
}

impl Ears {
    /// Opens them. What was counted before is not counted again.
    pub(super) fn open() -> Result<Ears, NetlinkError> {
        let mut ears = Ears {
            ended: ConntrackEvents::open()?,
            open: ConntrackSocket::open()?,
            counts: NetlinkSocket::open()?,
            last: Sums::new(),
        };
        ears.read_counts(&mut Sums::new());
        Ok(ears)
    }

    /// Listens until nobody else holds what is heard.
    pub(super) fn listen(mut self, heard: &Arc<Mutex<Heard>>) {
        let (mut counted_at, mut asked_at) = (Instant::now(), Instant::now());
        let step = PERIOD / 2;
        while Arc::strong_count(heard) > 1 {
            let mut ended = Vec::new();
            // What was lost is lost: the sum is a little low, and goes on rightly.
            let _ = self.ended.wait(&mut |account| ended.extend(bytes(&account)));
            let mut new = Sums::new();
            if counted_at.elapsed() >= step {
                counted_at = Instant::now();
                self.read_counts(&mut new);
            }
            let open = (asked_at.elapsed() >= SLOW).then(|| {
                asked_at = Instant::now();
                self.ask()
            });
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            ended.into_iter().for_each(|(pair, bytes)| add(&mut heard.ended, pair, bytes));
            new.into_iter().for_each(|(pair, count)| add(&mut heard.connections, pair, count));
            heard.open = open.or(heard.open.take());
        }
    }

    /// Adds what was counted since the last time.
    fn read_counts(&mut self, new: &mut Sums) {
        let mut now = Sums::new();
        for family in [Family::V4, Family::V6] {
            let found = match connection_counts(&mut self.counts, family) {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "connections will be counted the next time");
                    return;
                }
            };
            for one in found {
                let pair = Pair { protocol: one.protocol, frontend: one.frontend, endpoint: one.endpoint };
                now.insert(pair, one.connections);
            }
        }
        since(&self.last, &now).for_each(|(pair, count)| add(new, pair, count));
        self.last = now;
    }

    fn ask(&mut self) -> Sums {
        let mut sums = Sums::new();
        for family in [Family::V4, Family::V6] {
            let _ = self.open.accounts(family, &mut |account| {
                bytes(&account).into_iter().for_each(|(pair, bytes)| add(&mut sums, pair, bytes));
            });
        }
        sums
    }
}

/// What counters grew by. One that is lower than it was expired in between and began anew.
fn since<'a>(last: &'a Sums, now: &'a Sums) -> impl Iterator<Item = (Pair, u64)> + 'a {
    now.iter().filter_map(|(pair, count)| {
        let before = last.get(pair).copied().filter(|before| before <= count).unwrap_or(0);
        (*count > before).then_some((*pair, count - before))
    })
}

/// Adds to a pair, if it is known or there is room for another.
pub(super) fn add(sums: &mut Sums, pair: Pair, count: u64) {
    if sums.len() < MOST_PAIRS || sums.contains_key(&pair) {
        let sum = sums.entry(pair).or_default();
        *sum = sum.saturating_add(count);
    }
}

/// Only what was sent elsewhere than it was addressed to can be a Service's.
fn bytes(account: &AccountedEntry) -> Option<(Pair, u64)> {
    let flow = &account.entry;
    let protocol = protocol_of(flow.protocol).filter(|_| flow.dst != flow.reply_src)?;
    Some((Pair { protocol, frontend: flow.dst, endpoint: flow.reply_src }, account.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_expired_in_between_counts_from_nothing() {
        let pair = |port: u16| Pair {
            protocol: Protocol::Tcp,
            frontend: ([10, 96, 0, 1], 80).into(),
            endpoint: ([10, 1, 0, 1], port).into(),
        };
        let last = Sums::from([(pair(1), 5), (pair(2), 5), (pair(3), 5), (pair(4), 5)]);
        let now = Sums::from([(pair(1), 5), (pair(2), 8), (pair(3), 2), (pair(5), 1)]);
        let grown: Vec<(Pair, u64)> = since(&last, &now).collect();
        assert_eq!(grown, [(pair(2), 3), (pair(3), 2), (pair(5), 1)]);
    }
}
