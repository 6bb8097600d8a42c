//! When the kernel is synced: at once on an idle node, batched under load, with backoff after a failure.
//!
//! ```text
//! change -> wait for the minimum sync period -> Partial
//! failure -> exponential backoff, up to syncPeriod -> Full    (pitfall 1: the failed change may be half applied)
//! every syncPeriod -> Verify: were the tables modified externally?
//! relist of slices -> Partial and Full wait until it is complete, for a bounded time
//! ```
//!
//! Time is an argument.

use std::time::{Duration, Instant};

/// Minimum interval between syncs (`minSyncPeriod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinSyncPeriod {
    /// Fixed interval between the starts of two syncs; zero means no delay.
    Fixed(Duration),
    /// Long enough to use at most a quarter of a core, up to this interval.
    Adaptive { max: Duration },
}

/// One run of the sync loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Apply the Services that changed.
    Partial,
    /// Read the kernel's tables and apply every difference.
    Full,
    /// Check whether the tables were modified externally, and repair them.
    Verify,
}

/// An idle time of three times the sync is a quarter of a core.
const IDLE_FACTOR: u32 = 3;
/// Backoff after the first failure.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// What is pending, and when it may run.
#[derive(Clone, Debug)]
pub struct SyncSchedule {
    min_sync_period: MinSyncPeriod,
    sync_period: Duration,
    pending: bool,
    needs_full: bool,
    last: Option<LastSync>,
    failures: u32,
    verified: Instant,
    /// No change is applied before this.
    held_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct LastSync {
    started: Instant,
    ended: Instant,
}

impl SyncSchedule {
    /// The first sync is a full one.
    pub fn new(min_sync_period: MinSyncPeriod, sync_period: Duration, now: Instant) -> Self {
        Self {
            min_sync_period,
            sync_period,
            pending: false,
            needs_full: true,
            last: None,
            failures: 0,
            verified: now,
            held_until: None,
        }
    }

    /// A Service or its endpoints changed.
    pub fn request_partial(&mut self) {
        self.pending = true;
    }

    /// The node itself changed, or the kernel's state is uncertain.
    pub fn request_full(&mut self) {
        self.needs_full = true;
    }

    /// Changes wait until [`Self::release`], or for this time. A hold that is in force is not extended, one that is over
    /// begins again.
    pub fn hold(&mut self, now: Instant, time: Duration) {
        if !self.is_held(now) {
            self.held_until = Some(now + time);
        }
    }

    pub fn release(&mut self) {
        self.held_until = None;
    }

    /// Whether a change waits for a sync.
    pub fn has_changes(&self) -> bool {
        self.pending || self.needs_full
    }

    pub fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }

    /// The sync that is due now, if any.
    pub fn due(&self, now: Instant) -> Option<SyncKind> {
        let (at, kind) = self.next();
        (at.is_none_or(|at| at <= now)).then_some(kind)
    }

    /// When the next sync is due if nothing changes; `None` is now.
    pub fn next_at(&self) -> Option<Instant> {
        self.next().0
    }

    fn next(&self) -> (Option<Instant>, SyncKind) {
        if !self.has_changes() {
            return (Some(self.verified + self.sync_period), SyncKind::Verify);
        }
        let (at, kind) = self.next_change();
        (at.max(self.held_until), kind)
    }

    /// When the pending changes may be applied, but for a hold.
    fn next_change(&self) -> (Option<Instant>, SyncKind) {
        let kind = if self.needs_full { SyncKind::Full } else { SyncKind::Partial };
        let Some(last) = self.last else { return (None, kind) };
        if self.failures > 0 {
            return (Some(last.ended + backoff(self.failures, self.sync_period)), SyncKind::Full);
        }
        let at = match self.min_sync_period {
            MinSyncPeriod::Fixed(interval) => last.started + interval,
            MinSyncPeriod::Adaptive { max } => {
                last.ended + last.ended.duration_since(last.started).saturating_mul(IDLE_FACTOR).min(max)
            }
        };
        (Some(at), kind)
    }

    /// Records a sync that ended.
    pub fn finished(&mut self, kind: SyncKind, started: Instant, ended: Instant, is_ok: bool) {
        if kind != SyncKind::Verify {
            self.last = Some(LastSync { started, ended });
        }
        if kind != SyncKind::Partial {
            self.verified = ended;
        }
        if is_ok {
            self.failures = 0;
            if kind != SyncKind::Verify {
                self.pending = false;
            }
            self.needs_full &= kind != SyncKind::Full;
        } else {
            self.failures = self.failures.saturating_add(1);
            self.needs_full = true;
            self.last = Some(LastSync { started, ended });
        }
    }
}

/// The delay after this many failures in a row: doubles with each, up to syncPeriod (semantics D9).
pub fn backoff(failures: u32, sync_period: Duration) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(sync_period)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    fn started(min_sync_period: MinSyncPeriod) -> (SyncSchedule, Instant) {
        let now = Instant::now();
        let mut schedule = SyncSchedule::new(min_sync_period, 30 * S, now);
        assert_eq!(schedule.due(now), Some(SyncKind::Full), "the kernel is read first");
        schedule.finished(SyncKind::Full, now, now + 100 * MS, true);
        (schedule, now + 100 * MS)
    }

    fn run(schedule: &mut SyncSchedule, now: Instant, took: Duration, is_ok: bool) -> Instant {
        let kind = schedule.due(now).expect("a sync is due");
        schedule.finished(kind, now, now + took, is_ok);
        now + took
    }

    #[test]
    fn single_change_on_an_idle_node_is_synced_at_once() {
        // Seed 002: the default spaces syncs only under load.
        for min_sync_period in [MinSyncPeriod::Adaptive { max: S }, MinSyncPeriod::Fixed(S)] {
            let (mut schedule, now) = started(min_sync_period);
            let later = now + 5 * S;
            assert_eq!(schedule.due(later), None);
            schedule.request_partial();
            assert_eq!(schedule.due(later), Some(SyncKind::Partial));
        }
    }

    #[test]
    fn a_fixed_interval_separates_the_starts_of_syncs() {
        let (mut schedule, now) = started(MinSyncPeriod::Fixed(S));
        schedule.request_partial();
        let end = run(&mut schedule, now + 5 * S, MS, true);
        schedule.request_partial();
        assert_eq!(schedule.due(end), None);
        assert_eq!(schedule.next_at(), Some(now + 6 * S));
        assert_eq!(schedule.due(now + 6 * S), Some(SyncKind::Partial));
    }

    #[test]
    fn a_fixed_interval_of_zero_means_no_delay() {
        let (mut schedule, mut now) = started(MinSyncPeriod::Fixed(Duration::ZERO));
        for _ in 0..100 {
            schedule.request_partial();
            assert_eq!(schedule.due(now), Some(SyncKind::Partial));
            now = run(&mut schedule, now, 500 * MS, true);
        }
    }

    #[test]
    fn adaptive_syncs_use_a_quarter_of_a_core_and_wait_up_to_the_maximum() {
        let (mut schedule, mut now) = started(MinSyncPeriod::Adaptive { max: S });
        now += 5 * S;
        let (begin, mut busy) = (now, Duration::ZERO);
        for _ in 0..1000 {
            schedule.request_partial();
            now = now.max(schedule.next_at().expect("it has run"));
            busy += 2 * MS;
            now = run(&mut schedule, now, 2 * MS, true);
        }
        let share = busy.as_secs_f64() / (now - begin).as_secs_f64();
        assert!((0.24..0.26).contains(&share), "{share}");
        schedule.request_partial();
        now = now.max(schedule.next_at().expect("it has run"));
        now = run(&mut schedule, now, 10 * S, true);
        schedule.request_partial();
        assert_eq!(schedule.next_at(), Some(now + S));
    }

    #[test]
    fn failures_cause_full_syncs_with_backoff_up_to_the_sync_period() {
        // Pitfall 1.
        let (mut schedule, mut now) = started(MinSyncPeriod::Fixed(Duration::ZERO));
        schedule.request_partial();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = schedule.next_at().expect("it has run").max(now);
            waits.push((due - now).as_secs());
            now = run(&mut schedule, due, MS, false);
            assert_eq!(schedule.due(now + 31 * S), Some(SyncKind::Full));
            assert_eq!(schedule.due(now), None);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
        let due = schedule.next_at().expect("it has run");
        now = run(&mut schedule, due, MS, true);
        assert_eq!(schedule.due(now), None);
        schedule.request_partial();
        assert_eq!(schedule.due(now), Some(SyncKind::Partial));
    }

    #[test]
    fn tables_are_verified_every_sync_period() {
        let (mut schedule, now) = started(MinSyncPeriod::Fixed(S));
        assert_eq!(schedule.next_at(), Some(now + 30 * S));
        let end = run(&mut schedule, now + 30 * S, MS, true);
        assert_eq!(schedule.next_at(), Some(end + 30 * S));
        schedule.request_full();
        assert_eq!(schedule.due(end), Some(SyncKind::Full));
    }
}
