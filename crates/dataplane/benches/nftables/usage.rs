//! What something cost: time on the clock, and time of processors, the kernel's work for us included.

use std::ops::Sub;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Time on the clock and time of processors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Cost {
    pub(crate) fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            wall: self.wall.saturating_sub(before.wall),
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

fn now(who: UsageWho, start: Instant) -> Cost {
    let usage = getrusage(who).expect("every process may ask for its own use");
    let duration = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, 0) + Duration::from_micros(time.tv_usec() as u64)
    };
    Cost { wall: start.elapsed(), user: duration(usage.user_time()), system: duration(usage.system_time()) }
}

/// What this process spends on something.
pub(crate) fn cost<T>(run: impl FnOnce() -> T) -> (T, Cost) {
    of(UsageWho::RUSAGE_SELF, run)
}

/// What this thread spends on something.
pub(crate) fn cost_of_thread<T>(run: impl FnOnce() -> T) -> (T, Cost) {
    of(UsageWho::RUSAGE_THREAD, run)
}

/// What programs spend that are started and waited for meanwhile.
pub(crate) fn cost_of_children<T>(run: impl FnOnce() -> T) -> (T, Cost) {
    of(UsageWho::RUSAGE_CHILDREN, run)
}

fn of<T>(who: UsageWho, run: impl FnOnce() -> T) -> (T, Cost) {
    let start = Instant::now();
    let before = now(who, start);
    let result = run();
    (result, now(who, start) - before)
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The value that this part of all, given in thousandths, stays below or meets.
pub(crate) fn percentile(sorted: &[Duration], thousandths: usize) -> Duration {
    let at = (sorted.len() * thousandths).div_ceil(1000).max(1) - 1;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
