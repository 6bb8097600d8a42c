//! Conntrack events and dumps, as growth by frontend and endpoint. Read on a thread of its own: dumping a large conntrack
//! table must not delay a sync.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use dataplane::conntrack::{AccountedEntry, ConntrackEvents, ConntrackSocket, DumpStatus};
use dataplane::ipvs::{IpvsSocket, server_counts};
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{ConnectionCount, RulesetReadError, connection_counts};
use dataplane::nftables::render::{MAX_COUNTED_PAIRS, protocol_of};
use model::{Family, Protocol};

use super::PERIOD;

/// Interval between dumps of open connections, which walk the whole conntrack table.
const DUMP_INTERVAL: Duration = Duration::from_secs(30);
/// Most pairs of frontend and endpoint, and of pods, between two updates of the metrics.
const MAX_PAIRS: usize = 200_000;
/// Most open connections whose bytes are remembered: the upper bound of nf_conntrack_max.
const MAX_FLOWS: usize = 1 << 20;

/// A frontend and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowPair {
    pub(super) protocol: Protocol,
    pub(super) frontend: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// Source and destination of connections that no rule translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirectPair {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// Something counted, by pair.
pub(super) type Sums = BTreeMap<FlowPair, u64>;

/// New connections, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) connections: u64,
    pub(super) bytes: u64,
}

/// What counts connections to Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSource {
    /// The rules of mode nftables.
    Rules,
    /// The rules, and virtual servers.
    Ipvs,
    /// Conntrack: a connection counts when it ends, or after half a minute.
    Conntrack,
}

/// Counts since the last update of the metrics.
#[derive(Debug, Default)]
pub(super) struct TrafficCounts {
    /// New connections.
    pub(super) connections: Sums,
    /// Bytes.
    pub(super) bytes: Sums,
    /// Connections that no rule translated.
    pub(super) direct: BTreeMap<DirectPair, Growth>,
    /// Overflows of the receive buffer of events.
    pub(super) lost_events: u64,
    /// Counts that found no place.
    pub(super) dropped: u64,
    /// Open connections without counters, as of the last dump.
    pub(super) unaccounted: Option<u64>,
}

impl TrafficCounts {
    fn add(&mut self, account: &AccountedEntry, growth: Growth, source: ConnectionSource) {
        let flow = &account.entry;
        let Some(protocol) = protocol_of(flow.protocol) else { return };
        // Only translated flows can belong to a Service.
        if flow.dst == flow.reply_src {
            let pair = DirectPair { src: flow.src.ip(), dst: flow.dst.ip() };
            if self.direct.len() >= MAX_PAIRS && !self.direct.contains_key(&pair) {
                self.dropped += 1;
                return;
            }
            let sum = self.direct.entry(pair).or_default();
            sum.connections = sum.connections.saturating_add(growth.connections);
            sum.bytes = sum.bytes.saturating_add(growth.bytes);
            return;
        }
        let pair = FlowPair { protocol, frontend: flow.dst, endpoint: flow.reply_src };
        if growth.bytes > 0 {
            self.dropped += u64::from(!add(&mut self.bytes, pair, growth.bytes));
        }
        if growth.connections > 0 && source == ConnectionSource::Conntrack {
            self.dropped += u64::from(!add(&mut self.connections, pair, growth.connections));
        }
    }
}

/// The bytes of open connections that were counted.
#[derive(Debug, Default)]
pub(super) struct OpenFlows {
    /// By a hash of protocol and addresses: bytes, and the last dump that showed it.
    counted: BTreeMap<u64, (u64, u32)>,
    dump: u32,
}

impl OpenFlows {
    /// The growth of an open connection.
    pub(super) fn open(&mut self, account: &AccountedEntry) -> Growth {
        let (Some(bytes), key) = (account.bytes, flow_key(account)) else { return Growth::default() };
        if self.counted.len() >= MAX_FLOWS && !self.counted.contains_key(&key) {
            // Counted when it ends.
            return Growth::default();
        }
        let before = self.counted.insert(key, (bytes, self.dump));
        growth(before.map(|(bytes, _)| bytes), bytes)
    }

    /// The growth of a connection that ended.
    pub(super) fn ended(&mut self, account: &AccountedEntry) -> Growth {
        let before = self.counted.remove(&flow_key(account));
        account.bytes.map_or(Growth::default(), |bytes| growth(before.map(|(bytes, _)| bytes), bytes))
    }

    /// Forgets connections that two complete dumps did not show: their events are lost. After one dump, the event may
    /// still be unread.
    pub(super) fn dumped(&mut self, is_complete: bool) {
        if is_complete {
            let dump = self.dump;
            self.counted.retain(|_, (_, seen)| dump.wrapping_sub(*seen) < 2);
            self.dump = dump.wrapping_add(1);
        }
    }
}

/// Fewer bytes than before are those of a new connection with the same addresses.
fn growth(before: Option<u64>, now: u64) -> Growth {
    match before.filter(|before| *before <= now) {
        Some(before) => Growth { connections: 0, bytes: now - before },
        None => Growth { connections: 1, bytes: now },
    }
}

fn flow_key(account: &AccountedEntry) -> u64 {
    let flow = &account.entry;
    let mut hasher = DefaultHasher::new();
    (flow.protocol, flow.src, flow.dst).hash(&mut hasher);
    hasher.finish()
}

/// What the kernel tells of connections.
pub trait TrafficKernel: Send {
    /// Passes connections that ended, after waiting for a while. `Lost` if some were not received.
    fn ended(&mut self, take: &mut dyn FnMut(AccountedEntry)) -> Result<(), NetlinkError>;

    /// Passes all open connections of a family.
    fn open(
        &mut self,
        family: Family,
        take: &mut dyn FnMut(AccountedEntry),
    ) -> Result<DumpStatus, NetlinkError>;

    /// Connections that the rules counted.
    fn connections(&mut self, family: Family) -> Result<Vec<ConnectionCount>, RulesetReadError>;
}

/// The netlink sockets.
pub(super) struct TrafficSockets {
    ended: ConntrackEvents,
    open: ConntrackSocket,
    counts: NetlinkSocket,
}

impl TrafficSockets {
    pub(super) fn open() -> Result<Self, NetlinkError> {
        Ok(Self {
            ended: ConntrackEvents::open()?,
            open: ConntrackSocket::open()?,
            counts: NetlinkSocket::open()?,
        })
    }
}

impl TrafficKernel for TrafficSockets {
    fn ended(&mut self, take: &mut dyn FnMut(AccountedEntry)) -> Result<(), NetlinkError> {
        self.ended.wait(take)
    }

    fn open(
        &mut self,
        family: Family,
        take: &mut dyn FnMut(AccountedEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        self.open.accounts(family, take)
    }

    fn connections(&mut self, family: Family) -> Result<Vec<ConnectionCount>, RulesetReadError> {
        connection_counts(&mut self.counts, family)
    }
}

/// Reads what the kernel counts.
pub struct TrafficReader {
    kernel: Box<dyn TrafficKernel>,
    clock: Clock,
    counted_at: Instant,
    dumped_at: Instant,
    /// The other holder takes them.
    counts: Arc<Mutex<TrafficCounts>>,
    /// In mode ipvs: connections that its virtual servers forward.
    ipvs: Option<ServerCounters>,
    /// Values of the rule counters at the last read.
    last: Sums,
    flows: OpenFlows,
    source: ConnectionSource,
}

impl TrafficReader {
    /// Earlier counts are not counted again.
    pub(super) fn new(clock: &Clock, kernel: Box<dyn TrafficKernel>, source: ConnectionSource) -> Self {
        let mut reader = Self {
            kernel,
            clock: clock.clone(),
            counted_at: clock.now(),
            dumped_at: clock.now(),
            counts: Arc::default(),
            ipvs: (source == ConnectionSource::Ipvs).then(ServerCounters::open).flatten(),
            last: Sums::new(),
            flows: OpenFlows::default(),
            source,
        };
        let mut before = TrafficCounts::default();
        reader.read_counts(&mut before);
        reader.dump_open(&mut before);
        reader
    }

    pub(super) fn counts(&self) -> Arc<Mutex<TrafficCounts>> {
        self.counts.clone()
    }

    /// Runs until the other holder of the counts is dropped.
    pub(super) fn run(mut self) {
        while Arc::strong_count(&self.counts) > 1 {
            self.step();
        }
    }

    /// Waits for connections that end, and reads what is due.
    pub fn step(&mut self) {
        let mut ended = Vec::new();
        let heard = self.kernel.ended(&mut |account| ended.push(account));
        let is_count_due = self.clock.since(self.counted_at) >= PERIOD / 2;
        let is_dump_due = self.clock.since(self.dumped_at) >= DUMP_INTERVAL;
        // The dump itself must not hold the lock.
        let lost_events = u64::from(matches!(heard, Err(NetlinkError::Lost)));
        let mut new = TrafficCounts { lost_events, ..TrafficCounts::default() };
        for account in ended {
            let growth = self.flows.ended(&account);
            new.add(&account, growth, self.source);
        }
        if is_count_due {
            self.counted_at = self.clock.now();
            self.read_counts(&mut new);
        }
        if is_dump_due {
            self.dumped_at = self.clock.now();
            self.dump_open(&mut new);
        }
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).merge(new);
    }

    /// Adds the connections since the last read.
    fn read_counts(&mut self, new: &mut TrafficCounts) {
        let mut now = Sums::new();
        for family in [Family::V4, Family::V6] {
            let found = match self.kernel.connections(family) {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "failed to read connection counters; the next read retries");
                    return;
                }
            };
            // The kernel adds no pair to a full set.
            new.dropped += u64::from(found.len() >= MAX_COUNTED_PAIRS as usize);
            for one in found {
                let pair =
                    FlowPair { protocol: one.protocol, frontend: one.frontend, endpoint: one.endpoint };
                now.insert(pair, one.connections);
            }
        }
        if let Some(ipvs) = &mut self.ipvs {
            now.extend(ipvs.read());
        }
        for (pair, count) in since(&self.last, &now) {
            new.dropped += u64::from(!add(&mut new.connections, pair, count));
        }
        self.last = now;
    }

    fn dump_open(&mut self, new: &mut TrafficCounts) {
        let (mut is_complete, mut unaccounted) = (true, 0_u64);
        for family in [Family::V4, Family::V6] {
            let (flows, source) = (&mut self.flows, self.source);
            let dumped = self.kernel.open(family, &mut |account| {
                unaccounted += u64::from(account.bytes.is_none());
                let growth = flows.open(&account);
                new.add(&account, growth, source);
            });
            is_complete &= matches!(dumped, Ok(DumpStatus::Complete));
        }
        self.flows.dumped(is_complete);
        new.unaccounted = Some(unaccounted);
    }
}

/// Counters of virtual servers.
struct ServerCounters {
    kernel: IpvsSocket,
    /// Connections of each virtual server at the last read.
    known: BTreeMap<(Protocol, SocketAddr), u64>,
    sums: Sums,
}

impl ServerCounters {
    fn open() -> Option<Self> {
        let kernel = IpvsSocket::open().inspect_err(|error| {
            tracing::warn!(%error, "cannot count the connections of virtual servers");
        });
        Some(Self { kernel: kernel.ok()?, known: BTreeMap::new(), sums: Sums::new() })
    }

    /// The connections so far. Only virtual servers with new ones are read.
    fn read(&mut self) -> Sums {
        match server_counts(&mut self.kernel, &mut self.known) {
            Ok(found) => {
                // A real server that is deleted with open connections and comes back has its counters again.
                if self.sums.len() > MAX_PAIRS {
                    let is_there = |pair: &FlowPair| self.known.contains_key(&(pair.protocol, pair.frontend));
                    self.sums.retain(|pair, _| is_there(pair));
                }
                self.sums.extend(found.into_iter().map(|one| {
                    let ConnectionCount { protocol, frontend, endpoint, connections } = one;
                    (FlowPair { protocol, frontend, endpoint }, connections)
                }));
            }
            Err(error) => {
                tracing::debug!(%error, "failed to read counters of IPVS; the next read retries");
            }
        }
        self.sums.clone()
    }
}

impl TrafficCounts {
    fn merge(&mut self, new: TrafficCounts) {
        let mut dropped = new.dropped;
        for (sums, more) in [(&mut self.connections, new.connections), (&mut self.bytes, new.bytes)] {
            for (pair, count) in more {
                dropped += u64::from(!add(sums, pair, count));
            }
        }
        for (pair, more) in new.direct {
            if self.direct.len() >= MAX_PAIRS && !self.direct.contains_key(&pair) {
                dropped += 1;
                continue;
            }
            let sum = self.direct.entry(pair).or_default();
            sum.connections = sum.connections.saturating_add(more.connections);
            sum.bytes = sum.bytes.saturating_add(more.bytes);
        }
        self.dropped += dropped;
        self.lost_events += new.lost_events;
        self.unaccounted = new.unaccounted.or(self.unaccounted);
    }
}

/// Increases of counters. A counter that is lower than before expired and restarted.
fn since<'a>(last: &'a Sums, now: &'a Sums) -> impl Iterator<Item = (FlowPair, u64)> + 'a {
    now.iter().filter_map(|(pair, count)| {
        let before = last.get(pair).copied().filter(|before| before <= count).unwrap_or(0);
        (*count > before).then_some((*pair, count - before))
    })
}

/// Adds to a pair; false if it is new and does not fit.
pub(super) fn add(sums: &mut Sums, pair: FlowPair, count: u64) -> bool {
    let fits = sums.len() < MAX_PAIRS || sums.contains_key(&pair);
    if fits {
        let sum = sums.entry(pair).or_default();
        *sum = sum.saturating_add(count);
    }
    fits
}

#[cfg(test)]
mod tests {
    use dataplane::conntrack::ConntrackEntry;

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

    fn account(port: u16, bytes: Option<u64>) -> AccountedEntry {
        let (client, server) = (([10, 1, 0, 2], port).into(), ([10, 96, 0, 1], 80).into());
        let endpoint = ([10, 1, 0, 9], 8080).into();
        let entry = ConntrackEntry {
            protocol: 6,
            src: client,
            dst: server,
            reply_src: endpoint,
            reply_dst: client,
            id: None,
        };
        AccountedEntry { entry, bytes }
    }

    #[test]
    fn bytes_of_a_connection_are_counted_once_whether_dumped_or_ended() {
        let mut flows = OpenFlows::default();
        let grown = |connections, bytes| Growth { connections, bytes };
        assert_eq!(flows.open(&account(1, Some(1_000))), grown(1, 1_000));
        assert_eq!(flows.open(&account(1, Some(1_500))), grown(0, 500));
        assert_eq!(flows.ended(&account(1, Some(1_700))), grown(0, 200));
        assert_eq!(flows.ended(&account(2, Some(40))), grown(1, 40), "it was never open at a dump");
        assert_eq!(flows.ended(&account(3, None)), grown(0, 0), "older than the accounting");
        // The event was lost, and the addresses are used again.
        assert_eq!(flows.open(&account(4, Some(900))), grown(1, 900));
        assert_eq!(flows.open(&account(4, Some(100))), grown(1, 100));
    }

    #[test]
    fn a_connection_without_an_event_is_forgotten_after_two_complete_dumps() {
        let mut flows = OpenFlows::default();
        flows.open(&account(1, Some(1_000)));
        flows.dumped(true);
        flows.dumped(false);
        flows.dumped(true);
        assert_eq!(flows.ended(&account(1, Some(1_001))).bytes, 1, "its event was unread at the dump");
        flows.open(&account(2, Some(1_000)));
        (0..3).for_each(|_| flows.dumped(true));
        assert!(flows.counted.is_empty());
    }
}
