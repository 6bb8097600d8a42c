//! When the kernel gets what changed: at once on an idle node, together with others under load, again after a failure.
//!
//! ```text
//! change -> wait until the last one is long enough ago -> Changes
//! failure -> wait, twice as long each time -> Whole        (pitfall 1: what was pending may be half done)
//! every syncPeriod -> Look: did somebody else touch the tables?
//! ```
//!
//! Time is an argument.

use std::time::{Duration, Instant};

/// How far apart changes of rules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// So much between the starts of two, because somebody said so; nothing is a wish, too.
    Exactly(Duration),
    /// As much as keeps us below a quarter of a core, and never more than this.
    ByLoad {
        /// The most.
        most: Duration,
    },
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Send what changed.
    Changes,
    /// Read the kernel's tables and send what is different.
    Whole,
    /// See whether somebody else changed any table; if so, as `Whole`.
    Look,
}

/// A rest of three times the work is a quarter of the time at work.
const REST: u32 = 3;
/// The first wait after a failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// What is pending, and since when nothing was done.
#[derive(Clone, Debug)]
pub struct Pace {
    spacing: Spacing,
    period: Duration,
    pending: bool,
    whole: bool,
    last: Option<Run>,
    failures: u32,
    looked: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    started: Instant,
    ended: Instant,
}

impl Pace {
    /// Nothing is pending, and the kernel is yet to be looked at.
    pub fn new(spacing: Spacing, period: Duration, now: Instant) -> Self {
        Self { spacing, period, pending: false, whole: true, last: None, failures: 0, looked: now }
    }

    /// Something changed.
    pub fn change(&mut self) {
        self.pending = true;
    }

    /// Everything has to be compared: the node itself changed.
    pub fn compare(&mut self) {
        self.whole = true;
    }

    /// What to do now, if anything.
    pub fn work(&self, now: Instant) -> Option<Work> {
        let (at, work) = self.next();
        (at.is_none_or(|at| at <= now)).then_some(work)
    }

    /// When there will be something to do if nothing changes; none is now.
    pub fn due(&self) -> Option<Instant> {
        self.next().0
    }

    fn next(&self) -> (Option<Instant>, Work) {
        let look = self.looked + self.period;
        if !self.pending && !self.whole {
            return (Some(look), Work::Look);
        }
        let work = if self.whole { Work::Whole } else { Work::Changes };
        let Some(last) = self.last else { return (None, work) };
        if self.failures > 0 {
            return (Some(last.ended + self.retry()), Work::Whole);
        }
        let free = match self.spacing {
            Spacing::Exactly(least) => last.started + least,
            Spacing::ByLoad { most } => {
                last.ended + last.ended.duration_since(last.started).saturating_mul(REST).min(most)
            }
        };
        (Some(free), work)
    }

    /// Twice as long with each failure, and no longer than syncPeriod (semantics D9).
    fn retry(&self) -> Duration {
        FIRST_RETRY.saturating_mul(1 << (self.failures - 1).min(16)).min(self.period)
    }

    /// Work was done, or was tried.
    pub fn done(&mut self, work: Work, started: Instant, ended: Instant, is_ok: bool) {
        if work != Work::Look {
            self.last = Some(Run { started, ended });
        }
        if work != Work::Changes {
            self.looked = ended;
        }
        if is_ok {
            self.failures = 0;
            if work != Work::Look {
                self.pending = false;
            }
            self.whole &= work != Work::Whole;
        } else {
            self.failures = self.failures.saturating_add(1);
            self.whole = true;
            self.last = Some(Run { started, ended });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    fn started(spacing: Spacing) -> (Pace, Instant) {
        let now = Instant::now();
        let mut pace = Pace::new(spacing, 30 * S, now);
        assert_eq!(pace.work(now), Some(Work::Whole), "the kernel is read first");
        pace.done(Work::Whole, now, now + 100 * MS, true);
        (pace, now + 100 * MS)
    }

    fn run(pace: &mut Pace, now: Instant, took: Duration, is_ok: bool) -> Instant {
        let work = pace.work(now).expect("there is work");
        pace.done(work, now, now + took, is_ok);
        now + took
    }

    #[test]
    fn single_change_on_an_idle_node_is_made_at_once() {
        // Seed 002: the default spaces syncs only under load.
        for spacing in [Spacing::ByLoad { most: S }, Spacing::Exactly(S)] {
            let (mut pace, now) = started(spacing);
            let later = now + 5 * S;
            assert_eq!(pace.work(later), None);
            pace.change();
            assert_eq!(pace.work(later), Some(Work::Changes));
        }
    }

    #[test]
    fn changes_in_a_row_are_spaced_as_wished() {
        let (mut pace, now) = started(Spacing::Exactly(S));
        pace.change();
        let end = run(&mut pace, now + 5 * S, MS, true);
        pace.change();
        assert_eq!(pace.work(end), None);
        assert_eq!(pace.due(), Some(now + 6 * S));
        assert_eq!(pace.work(now + 6 * S), Some(Work::Changes));
    }

    #[test]
    fn explicit_nothing_means_at_once_every_time() {
        let (mut pace, mut now) = started(Spacing::Exactly(Duration::ZERO));
        for _ in 0..100 {
            pace.change();
            assert_eq!(pace.work(now), Some(Work::Changes));
            now = run(&mut pace, now, 500 * MS, true);
        }
    }

    #[test]
    fn by_load_work_takes_a_quarter_of_the_time_at_most_and_waits_a_second_at_most() {
        let (mut pace, mut now) = started(Spacing::ByLoad { most: S });
        now += 5 * S;
        let (begin, mut busy) = (now, Duration::ZERO);
        for _ in 0..1000 {
            pace.change();
            now = now.max(pace.due().expect("it has run"));
            busy += 2 * MS;
            now = run(&mut pace, now, 2 * MS, true);
        }
        let share = busy.as_secs_f64() / (now - begin).as_secs_f64();
        assert!((0.24..0.26).contains(&share), "{share}");
        pace.change();
        now = now.max(pace.due().expect("it has run"));
        now = run(&mut pace, now, 10 * S, true);
        pace.change();
        assert_eq!(pace.due(), Some(now + S));
    }

    #[test]
    fn after_a_failure_everything_is_compared_again_and_waits_grow_up_to_the_period() {
        // Pitfall 1.
        let (mut pace, mut now) = started(Spacing::Exactly(Duration::ZERO));
        pace.change();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = pace.due().expect("it has run").max(now);
            waits.push((due - now).as_secs());
            now = run(&mut pace, due, MS, false);
            assert_eq!(pace.work(now + 31 * S), Some(Work::Whole));
            assert_eq!(pace.work(now), None);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
        let due = pace.due().expect("it has run");
        now = run(&mut pace, due, MS, true);
        assert_eq!(pace.work(now), None);
        pace.change();
        assert_eq!(pace.work(now), Some(Work::Changes));
    }

    #[test]
    fn the_kernel_is_looked_at_every_period() {
        let (mut pace, now) = started(Spacing::Exactly(S));
        assert_eq!(pace.due(), Some(now + 30 * S));
        let end = run(&mut pace, now + 30 * S, MS, true);
        assert_eq!(pace.due(), Some(end + 30 * S));
        pace.compare();
        assert_eq!(pace.work(end), Some(Work::Whole));
    }
}
