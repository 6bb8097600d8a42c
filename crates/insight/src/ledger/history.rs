//! The ledger of the leading controller: 24 hours by the minute, of the 200 Services with the most traffic; all others
//! are one row. Everything is bounded, and time is an argument. docs/reference/ledger.md has the memory of a full ledger.

mod minute_cells;
mod packed_counts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use plan::spill::measured::BusiestNode;

use super::{
    LedgerDemand, ServiceDemandRow, TrafficGaps, TrafficOwner, TrafficReport, TrafficRow, TrafficSums,
    ZoneDemandRow, ZonePairTraffic,
};
use minute_cells::{CellSums, MinuteCells};
use packed_counts::PackedCounts;
use plan::work_queue::MonotonicTime;

const MINUTE: u64 = 60;
/// Minutes that are kept.
const MAX_MINUTES: u64 = 24 * 60;
/// Services with a row of their own.
pub const MAX_SERVICES: usize = 200;
/// Services whose names are known, so that reporters' sums take little memory.
const MAX_OWNERS: usize = 20_000;
/// Zones with a name of their own; others count as unknown.
const MAX_ZONES: usize = 64;
/// Pairs of Service and zones with traffic in a minute; Services beyond share a row, and are of unknown zones beyond the
/// second bound.
const MAX_CELLS: usize = 2_048;
const MAX_CELLS_OF_ALL: usize = 3_072;
/// Pairs of zones with traffic in a minute, all Services together; others count as unknown.
const MAX_PAIRS: usize = 1_024;
/// Nodes and proxies.
const MAX_REPORTERS: usize = 10_000;
/// Pairs of Service and zones of one report.
pub const MAX_REPORT_PAIRS: usize = 1_024;
/// Longer names are no names of Kubernetes.
const MAX_NAME: usize = 600;
/// A reporter without a report for this time is silent, and forgotten after a day.
const SILENT_AFTER: Duration = Duration::from_secs(90);
const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

type OwnerId = u16;
const OTHER: OwnerId = 0;
const DIRECT: OwnerId = 1;
/// The zone "".
const UNKNOWN: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CellKey {
    owner: OwnerId,
    from: u8,
    to: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    connections: u64,
    bytes: u64,
}

impl Counts {
    fn add(&mut self, more: Counts) {
        self.connections = self.connections.saturating_add(more.connections);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    /// A sum that is lower than before started from zero: a Service was deleted and created again.
    fn since(self, before: Counts) -> Counts {
        if self.connections < before.connections || self.bytes < before.bytes {
            return self;
        }
        Counts { connections: self.connections - before.connections, bytes: self.bytes - before.bytes }
    }
}

#[derive(Debug, Default)]
struct Minute {
    number: u64,
    cells: MinuteCells,
    /// The same for all owners together; their owner is [`OTHER`].
    pairs: MinuteCells,
}

#[derive(Debug)]
struct Reporter {
    start: String,
    sequence: u64,
    /// When its sums were zero.
    started: Option<MonotonicTime>,
    heard: MonotonicTime,
    counts: PackedCounts,
    /// New connections per second between its last two reports, sorted; `None` after one.
    rates: Option<Vec<(CellKey, f32)>>,
    gaps: TrafficGaps,
    /// Of earlier starts.
    earlier_gaps: TrafficGaps,
}

impl Reporter {
    fn is_silent(&self, now: MonotonicTime) -> bool {
        now.0.saturating_sub(self.heard.0) >= SILENT_AFTER
    }
}

fn connection_rates(
    before: &Reporter,
    after: &[(CellKey, Counts)],
    now: MonotonicTime,
) -> Vec<(CellKey, f32)> {
    // Two reports within a second would make a rate of noise.
    let seconds = now.0.saturating_sub(before.heard.0).as_secs_f64().max(1.0);
    let counted =
        growth(&before.counts, after).filter(|(key, growth)| growth.connections > 0 && key.owner > DIRECT);
    counted.map(|(key, growth)| (key, (growth.connections as f64 / seconds) as f32)).collect()
}

/// What grew, both in the order of keys.
fn growth<'a>(
    before: &'a PackedCounts,
    after: &'a [(CellKey, Counts)],
) -> impl Iterator<Item = (CellKey, Counts)> + 'a {
    let mut before = before.iter().peekable();
    after.iter().filter_map(move |(key, counts)| {
        while before.next_if(|(known, _)| known < key).is_some() {}
        let last = before.next_if(|(known, _)| known == key).map(|(_, counts)| counts);
        let growth = counts.since(last.unwrap_or_default());
        (growth != Counts::default()).then_some((*key, growth))
    })
}

/// Why a report is not in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRefused {
    TooManyReporters,
    TooManyPairs,
    MalformedName,
}

impl fmt::Display for ReportRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyReporters => write!(f, "more than {MAX_REPORTERS} reporters"),
            Self::TooManyPairs => write!(f, "more than {MAX_REPORT_PAIRS} pairs of Service and zones"),
            Self::MalformedName => write!(f, "a name is longer than {MAX_NAME} bytes"),
        }
    }
}

/// The traffic of one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficMinute {
    /// Seconds from the start of the ledger to the start of the minute.
    pub start_seconds: u64,
    pub zone_pairs: Vec<ZonePairTraffic>,
}

/// Traffic of all reporters.
#[derive(Debug)]
pub struct TrafficLedger {
    since: String,
    started: MonotonicTime,
    zones: Vec<String>,
    owners: Vec<Option<TrafficOwner>>,
    ids: BTreeMap<TrafficOwner, OwnerId>,
    /// Numbers without an owner.
    free: Vec<OwnerId>,
    /// Services with a row of their own, and their bytes of the last 24 hours.
    tracked: BTreeMap<OwnerId, u64>,
    /// Bytes of other Services in this hour.
    candidates: BTreeMap<OwnerId, u64>,
    /// Oldest first; minutes without traffic are missing.
    minutes: VecDeque<Minute>,
    reporters: BTreeMap<String, Reporter>,
    /// Since the start: (through a Service, from, to).
    totals: BTreeMap<(bool, u8, u8), Counts>,
    last_hour: u64,
    /// Of the last look for reporters to forget.
    last_minute: u64,
}

impl TrafficLedger {
    /// `since` is the wall time of `now`, as RFC 3339.
    pub fn new(since: impl Into<String>, now: MonotonicTime) -> Self {
        let rows = [TrafficOwner::OtherServices, TrafficOwner::NotThroughService];
        Self {
            since: since.into(),
            started: now,
            zones: vec![String::new()],
            ids: rows.iter().cloned().zip([OTHER, DIRECT]).collect(),
            owners: rows.map(Some).into(),
            free: Vec::new(),
            tracked: BTreeMap::new(),
            candidates: BTreeMap::new(),
            minutes: VecDeque::new(),
            reporters: BTreeMap::new(),
            totals: BTreeMap::new(),
            last_hour: 0,
            last_minute: 0,
        }
    }

    /// Adds what a report has more than the previous one of its reporter. The first report of a reporter that started
    /// before the ledger is where its counting begins. Returns whether it is newer than what was reported before.
    pub fn record(&mut self, report: &TrafficReport, now: MonotonicTime) -> Result<bool, ReportRefused> {
        self.check(report)?;
        self.expire(now);
        let counted = Duration::from_secs(report.counted_seconds);
        let started = now.0.checked_sub(counted).map(MonotonicTime);
        let before = self.reporters.get(&report.reporter);
        if before.is_some_and(|before| is_late(before, report, started)) {
            return Ok(false);
        }
        let same_start = before.is_some_and(|before| before.start == report.start);
        let is_known = before.is_some();
        let counts = self.counts(&report.rows);
        // A new start of a known reporter, and a reporter that is younger than the ledger, count from zero.
        let counts_all = is_known || started.is_some_and(|started| started >= self.started);
        let mut earlier_gaps = TrafficGaps::default();
        let mut rates = None;
        if let Some(before) = self.reporters.remove(&report.reporter) {
            earlier_gaps = before.earlier_gaps;
            if same_start {
                rates = Some(connection_rates(&before, &counts, now));
                self.add_growth(&before.counts, &counts, now);
            } else {
                // Open flows are those of now.
                add_gaps(&mut earlier_gaps, TrafficGaps { unaccounted_flows: 0, ..before.gaps });
            }
        }
        if !same_start && counts_all {
            self.add_growth(&PackedCounts::default(), &counts, now);
        }
        let reporter = Reporter {
            start: report.start.clone(),
            sequence: report.sequence,
            started,
            heard: now,
            counts: PackedCounts::new(&counts),
            rates,
            gaps: report.gaps,
            earlier_gaps,
        };
        self.reporters.insert(report.reporter.clone(), reporter);
        Ok(true)
    }

    fn check(&self, report: &TrafficReport) -> Result<(), ReportRefused> {
        if report.rows.iter().map(|row| row.zone_pairs.len()).sum::<usize>() > MAX_REPORT_PAIRS {
            return Err(ReportRefused::TooManyPairs);
        }
        let names = report.rows.iter().flat_map(|row| {
            let zones = row.zone_pairs.iter().flat_map(|at| [&at.from_zone, &at.to_zone]);
            let service = match &row.owner {
                TrafficOwner::Service { namespace, name } => vec![namespace, name],
                TrafficOwner::OtherServices | TrafficOwner::NotThroughService => Vec::new(),
            };
            zones.chain(service)
        });
        if names.chain([&report.reporter, &report.start]).any(|name| name.len() > MAX_NAME) {
            return Err(ReportRefused::MalformedName);
        }
        if !self.reporters.contains_key(&report.reporter) && self.reporters.len() >= MAX_REPORTERS {
            return Err(ReportRefused::TooManyReporters);
        }
        Ok(())
    }

    fn counts(&mut self, rows: &[TrafficRow]) -> Vec<(CellKey, Counts)> {
        let mut counts: BTreeMap<CellKey, Counts> = BTreeMap::new();
        if self.ids.len() + rows.len() > MAX_OWNERS {
            self.forget_unused_owners();
        }
        for row in rows {
            let owner = self.owner_id(&row.owner);
            for at in &row.zone_pairs {
                let key = CellKey { owner, from: self.zone_id(&at.from_zone), to: self.zone_id(&at.to_zone) };
                let more = Counts { connections: at.connections, bytes: at.bytes };
                counts.entry(key).or_default().add(more);
            }
        }
        counts.into_iter().collect()
    }

    fn zone_id(&mut self, zone: &str) -> u8 {
        let known = self.zones.iter().position(|known| known == zone);
        let id = known.or_else(|| {
            (self.zones.len() < MAX_ZONES).then(|| {
                self.zones.push(zone.to_owned());
                self.zones.len() - 1
            })
        });
        id.and_then(|id| u8::try_from(id).ok()).unwrap_or(UNKNOWN)
    }

    fn owner_id(&mut self, owner: &TrafficOwner) -> OwnerId {
        if let Some(id) = self.ids.get(owner) {
            return *id;
        }
        if self.ids.len() >= MAX_OWNERS {
            return OTHER;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.owners.push(None);
            OwnerId::try_from(self.owners.len() - 1).unwrap_or(OTHER)
        });
        self.owners[usize::from(id)] = Some(owner.clone());
        self.ids.insert(owner.clone(), id);
        id
    }

    fn forget_unused_owners(&mut self) {
        let counted =
            self.reporters.values().flat_map(|reporter| reporter.counts.iter()).map(|(key, _)| key.owner);
        let used: BTreeSet<OwnerId> =
            counted.chain(self.tracked.keys().copied()).chain([OTHER, DIRECT]).collect();
        self.ids.retain(|_, id| used.contains(id));
        for (id, owner) in (0..).zip(&mut self.owners) {
            if !used.contains(&id) && owner.take().is_some() {
                self.free.push(id);
            }
        }
        self.candidates.retain(|id, _| used.contains(id));
    }

    fn add_growth(&mut self, before: &PackedCounts, after: &[(CellKey, Counts)], now: MonotonicTime) {
        for (key, growth) in growth(before, after) {
            self.add(key, growth, now);
        }
    }

    fn add(&mut self, key: CellKey, growth: Counts, now: MonotonicTime) {
        let through_service = key.owner != DIRECT;
        self.totals.entry((through_service, key.from, key.to)).or_default().add(growth);
        let owner = self.row_of(key.owner, growth.bytes);
        let number = self.minute(now);
        if self.minutes.back().is_none_or(|minute| minute.number != number) {
            if let Some(last) = self.minutes.back_mut() {
                last.cells.close();
                last.pairs.close();
            }
            self.minutes.push_back(Minute { number, ..Minute::default() });
        }
        let Some(minute) = self.minutes.back_mut() else { return };
        let mut key = CellKey { owner, ..key };
        if minute.cells.len() >= MAX_CELLS && !minute.cells.contains(key) && owner != DIRECT {
            key.owner = OTHER;
        }
        minute.cells.add_within(MAX_CELLS_OF_ALL, key, growth);
        minute.pairs.add_within(MAX_PAIRS, CellKey { owner: OTHER, ..key }, growth);
        if let Some(bytes) = self.tracked.get_mut(&key.owner) {
            *bytes = bytes.saturating_add(growth.bytes);
        }
    }

    /// The row of an owner: its own if there is room.
    fn row_of(&mut self, owner: OwnerId, bytes: u64) -> OwnerId {
        if owner == OTHER || owner == DIRECT || self.tracked.contains_key(&owner) {
            return owner;
        }
        if self.tracked.len() < MAX_SERVICES {
            self.tracked.insert(owner, 0);
            return owner;
        }
        let candidate = self.candidates.entry(owner).or_default();
        *candidate = candidate.saturating_add(bytes);
        OTHER
    }

    fn minute(&self, now: MonotonicTime) -> u64 {
        now.0.saturating_sub(self.started.0).as_secs() / MINUTE
    }

    /// Drops what is older than a day, and gives rows to Services that had more traffic in an hour than others in a day.
    fn expire(&mut self, now: MonotonicTime) {
        let minute = self.minute(now);
        while self.minutes.front().is_some_and(|oldest| oldest.number + MAX_MINUTES <= minute) {
            let Some(oldest) = self.minutes.pop_front() else { break };
            for (key, counts) in oldest.cells.iter() {
                if let Some(bytes) = self.tracked.get_mut(&key.owner) {
                    *bytes = bytes.saturating_sub(counts.bytes);
                }
            }
        }
        if minute == self.last_minute {
            return;
        }
        self.last_minute = minute;
        self.reporters.retain(|_, reporter| now.0.saturating_sub(reporter.heard.0) < FORGET_AFTER);
        let hour = minute / 60;
        if hour != self.last_hour {
            self.last_hour = hour;
            self.promote_candidates();
        }
    }

    fn promote_candidates(&mut self) {
        let mut candidates: Vec<(u64, OwnerId)> =
            std::mem::take(&mut self.candidates).into_iter().map(|(id, bytes)| (bytes, id)).collect();
        candidates.sort_unstable();
        let (mut promoted, mut demoted) = (BTreeSet::new(), BTreeSet::new());
        while let Some((bytes, candidate)) = candidates.pop() {
            let others = self.tracked.iter().filter(|(id, _)| !promoted.contains(*id));
            let smallest = others.map(|(id, bytes)| (*bytes, *id)).min();
            let Some((_, smallest)) = smallest.filter(|(least, _)| *least < bytes) else { break };
            self.tracked.remove(&smallest);
            demoted.insert(smallest);
            self.tracked.insert(candidate, 0);
            promoted.insert(candidate);
        }
        if !demoted.is_empty() {
            let minutes = self.minutes.iter_mut();
            minutes.for_each(|minute| minute.cells.move_to_others(|owner| demoted.contains(&owner)));
        }
    }

    /// Sums of the last `window`, rounded to whole minutes.
    pub fn sums(&self, window: Duration, now: MonotonicTime) -> TrafficSums {
        let current = self.minute(now);
        let minutes = window.as_secs().div_ceil(MINUTE).clamp(1, MAX_MINUTES);
        let first = (current + 1).saturating_sub(minutes);
        let mut cells = CellSums::default();
        self.minutes
            .iter()
            .filter(|minute| minute.number >= first)
            .for_each(|minute| cells.add(&minute.cells));
        let mut rows: BTreeMap<TrafficOwner, Vec<ZonePairTraffic>> = BTreeMap::new();
        for (key, counts) in cells.into_iter() {
            if let Some(owner) = self.owners.get(usize::from(key.owner)).cloned().flatten() {
                rows.entry(owner).or_default().push(self.traffic(key.from, key.to, counts));
            }
        }
        let sorted = |(owner, mut zone_pairs): (TrafficOwner, Vec<ZonePairTraffic>)| {
            zone_pairs.sort();
            TrafficRow { owner, zone_pairs }
        };
        let mut gaps = TrafficGaps::default();
        for reporter in self.reporters.values() {
            add_gaps(&mut gaps, reporter.earlier_gaps);
            add_gaps(&mut gaps, reporter.gaps);
        }
        let silent = self.reporters.iter().filter(|(_, reporter)| reporter.is_silent(now));
        TrafficSums {
            since: self.since.clone(),
            window_seconds: now.0.saturating_sub(self.started.0).as_secs().saturating_sub(first * MINUTE),
            rows: rows.into_iter().map(sorted).collect(),
            gaps,
            reporters: self.reporters.len(),
            silent: silent.map(|(name, _)| name.clone()).collect(),
        }
    }

    fn traffic(&self, from: u8, to: u8, counts: Counts) -> ZonePairTraffic {
        let zone = |id: u8| self.zones.get(usize::from(id)).cloned().unwrap_or_default();
        let Counts { connections, bytes } = counts;
        ZonePairTraffic { from_zone: zone(from), to_zone: zone(to), connections, bytes }
    }

    /// The minutes with traffic of one row, or of all, oldest first. The cost does not depend on the number of rows.
    pub fn history(&self, owner: Option<&TrafficOwner>) -> Vec<TrafficMinute> {
        let wanted = owner.map(|owner| self.ids.get(owner).copied());
        let of = |minute: &Minute| {
            let pair = |(key, counts): (CellKey, Counts)| self.traffic(key.from, key.to, counts);
            let zone_pairs = match wanted {
                None => minute.pairs.iter().map(pair).collect(),
                Some(None) => Vec::new(),
                Some(Some(owner)) => minute.cells.of_owner(owner).map(pair).collect(),
            };
            TrafficMinute { start_seconds: minute.number * MINUTE, zone_pairs }
        };
        self.minutes.iter().map(of).filter(|minute| !minute.zone_pairs.is_empty()).collect()
    }

    /// Connections per second by Service and zones, between the last two reports of each reporter that is not silent.
    /// `zone_of_node` is the zone of a Node by name: connections that a node reports from another zone do not count.
    pub fn demand<'a>(
        &self,
        now: MonotonicTime,
        zone_of_node: impl Fn(&str) -> Option<&'a str>,
    ) -> LedgerDemand {
        let mut reporting = BTreeSet::new();
        let mut rates: BTreeMap<CellKey, f64> = BTreeMap::new();
        let mut highest: BTreeMap<(OwnerId, u8), (f64, BusiestNode)> = BTreeMap::new();
        let zone = |id: u8| self.zones.get(usize::from(id)).map_or("", String::as_str);
        for (name, reporter) in &self.reporters {
            let Some(own) = reporter.rates.as_ref().filter(|_| !reporter.is_silent(now)) else { continue };
            reporting.insert(name.clone());
            let node = name.strip_prefix("node/");
            let node_zone = node.and_then(&zone_of_node);
            for cells in own.chunk_by(|(a, _), (b, _)| (a.owner, a.from) == (b.owner, b.from)) {
                let from = zone(cells[0].0.from);
                if !from.is_empty() && node_zone.is_some_and(|own| own != from) {
                    continue;
                }
                let mut sum = 0.0;
                for (key, rate) in cells {
                    *rates.entry(*key).or_default() += f64::from(*rate);
                    sum += f64::from(*rate);
                }
                let (most, busiest) = highest.entry((cells[0].0.owner, cells[0].0.from)).or_default();
                *most = most.max(sum);
                if let Some(node) = node {
                    busiest.add(node, sum);
                }
            }
        }
        let rates: Vec<(CellKey, f64)> = rates.into_iter().collect();
        let row = |cells: &[(CellKey, f64)]| {
            let (highest_rate, busiest) =
                highest.get(&(cells[0].0.owner, cells[0].0.from)).cloned().unwrap_or_default();
            ZoneDemandRow {
                from_zone: zone(cells[0].0.from).to_owned(),
                rate_by_target: cells.iter().map(|(key, rate)| (zone(key.to).to_owned(), *rate)).collect(),
                highest_rate,
                busiest,
            }
        };
        let service = |cells: &[(CellKey, f64)]| {
            let owner = self.owners.get(cells[0].0.owner as usize).cloned().flatten()?;
            let zones = cells.chunk_by(|(a, _), (b, _)| a.from == b.from).map(row).collect();
            Some(ServiceDemandRow { owner, zones })
        };
        let services = rates.chunk_by(|(a, _), (b, _)| a.owner == b.owner).filter_map(service).collect();
        LedgerDemand { services, reporting }
    }

    /// Sums since the start of the ledger, for counters: whether through a Service, and the pair of zones.
    pub fn totals(&self) -> impl Iterator<Item = (bool, ZonePairTraffic)> {
        self.totals.iter().map(|((through_service, from, to), counts)| {
            (*through_service, self.traffic(*from, *to, *counts))
        })
    }
}

/// Whether a newer report of the reporter is in the ledger already.
fn is_late(before: &Reporter, report: &TrafficReport, started: Option<MonotonicTime>) -> bool {
    if before.start == report.start {
        return report.sequence <= before.sequence;
    }
    // Ages are whole seconds, and reports take time.
    let slack = Duration::from_secs(5);
    match (before.started, started) {
        (Some(before), Some(started)) => started.0 + slack < before.0,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

fn add_gaps(sum: &mut TrafficGaps, more: TrafficGaps) {
    sum.lost_events = sum.lost_events.saturating_add(more.lost_events);
    sum.dropped_counts = sum.dropped_counts.saturating_add(more.dropped_counts);
    sum.unaccounted_flows = sum.unaccounted_flows.saturating_add(more.unaccounted_flows);
}

#[cfg(test)]
mod tests;
