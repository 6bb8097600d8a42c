//! When a node reports: every 30 seconds, and 10 seconds after its last report if its traffic changed by a fifth.

use std::time::Duration;

use crate::work_queue::MonotonicTime;

const INTERVAL: Duration = Duration::from_secs(30);
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Smaller changes of an idle node are not worth a report.
const MIN_CHANGE_BYTES: f64 = 65_536.0;

/// What was reported last.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportSchedule {
    last: Option<(MonotonicTime, u64)>,
    bytes_per_second: f64,
}

impl ReportSchedule {
    /// Whether a report with this sum of bytes is due.
    pub fn is_due(&self, bytes: u64, now: MonotonicTime) -> bool {
        let Some((at, reported)) = self.last else { return true };
        let passed = now.0.saturating_sub(at.0);
        if passed < MIN_INTERVAL || passed >= INTERVAL {
            return passed >= INTERVAL;
        }
        let expected = self.bytes_per_second * passed.as_secs_f64();
        let change = (bytes.saturating_sub(reported) as f64 - expected).abs();
        change >= MIN_CHANGE_BYTES && change >= expected * 0.2
    }

    /// A report was accepted.
    pub fn sent(&mut self, bytes: u64, now: MonotonicTime) {
        if let Some((at, reported)) = self.last {
            let seconds = now.0.saturating_sub(at.0).as_secs_f64().max(1.0);
            self.bytes_per_second = bytes.saturating_sub(reported) as f64 / seconds;
        }
        self.last = Some((now, bytes));
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

    #[test]
    fn steady_traffic_is_reported_every_half_minute_and_a_change_after_ten_seconds() {
        let mut schedule = ReportSchedule::default();
        assert!(schedule.is_due(0, at(0)));
        schedule.sent(0, at(0));
        schedule.sent(30_000_000, at(30));
        assert!(!schedule.is_due(41_000_000, at(40)), "a tenth more than before");
        assert!(schedule.is_due(61_000_000, at(60)));
        assert!(!schedule.is_due(90_000_000, at(39)), "not before ten seconds");
        assert!(schedule.is_due(43_000_000, at(40)), "a third more");
        assert!(schedule.is_due(31_000_000, at(40)), "nine tenths less");
        schedule.sent(61_000_000, at(60));
        schedule.sent(61_000_000, at(90));
        assert!(!schedule.is_due(61_060_000, at(110)), "an idle node's noise");
        schedule.restart();
        assert!(schedule.is_due(61_000_000, at(91)));
    }
}
