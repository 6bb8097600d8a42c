//! When a node or proxy reports: every 30 seconds, and ten seconds after the last report if its traffic changed by a fifth.
//! Connections and bytes both tell: the bytes of open connections are known later, the new connections of long ones are
//! few.

use std::time::Duration;

use super::TrafficRow;
use plan::work_queue::MonotonicTime;

const INTERVAL: Duration = Duration::from_secs(30);
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Smaller changes of an idle node are not worth a report.
const MIN_CHANGE: ReportedSums = ReportedSums { connections: 100, bytes: 65_536 };

/// Connections and bytes since the start of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedSums {
    pub connections: u64,
    pub bytes: u64,
}

impl ReportedSums {
    pub fn new(rows: &[TrafficRow]) -> Self {
        let pairs = rows.iter().flat_map(|row| &row.zone_pairs);
        pairs.fold(Self::default(), |sums, pair| Self {
            connections: sums.connections.saturating_add(pair.connections),
            bytes: sums.bytes.saturating_add(pair.bytes),
        })
    }
}

/// What was reported last.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportSchedule {
    last: Option<(MonotonicTime, ReportedSums)>,
    connections_per_second: f64,
    bytes_per_second: f64,
}

impl ReportSchedule {
    /// Whether a report with these sums is due.
    pub fn is_due(&self, sums: ReportedSums, now: MonotonicTime) -> bool {
        let Some((at, reported)) = self.last else { return true };
        let passed = now.0.saturating_sub(at.0);
        if passed < MIN_INTERVAL || passed >= INTERVAL {
            return passed >= INTERVAL;
        }
        let has_changed = |grown: u64, per_second: f64, min_change: u64| {
            let expected = per_second * passed.as_secs_f64();
            let change = (grown as f64 - expected).abs();
            change >= min_change as f64 && change >= expected * 0.2
        };
        let connections = sums.connections.saturating_sub(reported.connections);
        let bytes = sums.bytes.saturating_sub(reported.bytes);
        has_changed(connections, self.connections_per_second, MIN_CHANGE.connections)
            || has_changed(bytes, self.bytes_per_second, MIN_CHANGE.bytes)
    }

    /// A report was accepted.
    pub fn sent(&mut self, sums: ReportedSums, now: MonotonicTime) {
        if let Some((at, reported)) = self.last {
            let seconds = now.0.saturating_sub(at.0).as_secs_f64().max(1.0);
            let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            self.connections_per_second = per_second(sums.connections, reported.connections);
            self.bytes_per_second = per_second(sums.bytes, reported.bytes);
        }
        self.last = Some((now, sums));
    }

    /// The next report goes to a controller that has none.
    pub fn restart(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_secs(seconds))
    }

    fn bytes(bytes: u64) -> ReportedSums {
        ReportedSums { connections: 0, bytes }
    }

    #[test]
    fn steady_traffic_is_reported_every_half_minute_and_a_change_after_ten_seconds() {
        let mut schedule = ReportSchedule::default();
        assert!(schedule.is_due(bytes(0), at(0)));
        schedule.sent(bytes(0), at(0));
        schedule.sent(bytes(30_000_000), at(30));
        assert!(!schedule.is_due(bytes(41_000_000), at(40)), "a tenth more than before");
        assert!(schedule.is_due(bytes(61_000_000), at(60)));
        assert!(!schedule.is_due(bytes(90_000_000), at(39)), "not before ten seconds");
        assert!(schedule.is_due(bytes(43_000_000), at(40)), "a third more");
        assert!(schedule.is_due(bytes(31_000_000), at(40)), "nine tenths less");
        schedule.sent(bytes(61_000_000), at(60));
        schedule.sent(bytes(61_000_000), at(90));
        assert!(!schedule.is_due(bytes(61_060_000), at(110)), "an idle node's noise");
        schedule.restart();
        assert!(schedule.is_due(bytes(61_000_000), at(91)));
    }

    #[test]
    fn a_change_of_new_connections_is_reported_before_their_bytes_are_known() {
        let connections = |connections: u64| ReportedSums { connections, bytes: 0 };
        let mut schedule = ReportSchedule::default();
        schedule.sent(connections(0), at(0));
        schedule.sent(connections(3_000), at(30));
        assert!(!schedule.is_due(connections(4_100), at(40)), "a tenth more than before");
        assert!(schedule.is_due(connections(6_000), at(40)), "three times as many");
        schedule.sent(connections(6_000), at(40));
        schedule.sent(connections(6_000), at(70));
        assert!(!schedule.is_due(connections(6_050), at(80)), "an idle node's noise");
    }
}
