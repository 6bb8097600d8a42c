//! Time as a parameter: every component that reads a clock takes a [`Clock`].
//!
//! The binary passes [`Clock::system`]; a test or a simulation passes a [`ManualTime`] and moves it. Nothing else in
//! the workspace may call `Instant::now` or `SystemTime::now` (clippy.toml). Waiting is tokio's: its paused time
//! follows the same tests. Random numbers come from `model::random::Random`, seeded once per process by [`os_seed`].

#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

/// A handle to monotonic and wall time. Clones read the same time.
#[derive(Clone, Default)]
pub struct Clock {
    /// `None` is the time of this machine.
    source: Option<Arc<dyn TimeSource>>,
}

/// Time from elsewhere than this machine, such as a simulation's.
pub trait TimeSource: Send + Sync {
    /// Monotonic time.
    fn monotonic(&self) -> Instant;
    /// Wall time.
    fn wall(&self) -> SystemTime;
    /// A thread would block for this long.
    fn sleep_blocking(&self, duration: Duration);
}

impl Clock {
    /// The time of this machine.
    pub fn system() -> Self {
        Self::default()
    }

    /// The time of a source.
    pub fn of(source: Arc<dyn TimeSource>) -> Self {
        Self { source: Some(source) }
    }

    /// Monotonic time.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
    pub fn now(&self) -> Instant {
        match &self.source {
            None => Instant::now(),
            Some(source) => source.monotonic(),
        }
    }

    /// Time since an earlier reading of this clock; zero if `earlier` is later.
    pub fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Wall time.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn wall(&self) -> SystemTime {
        match &self.source {
            None => SystemTime::now(),
            Some(source) => source.wall(),
        }
    }

    /// Wall time as Kubernetes writes it. Times outside of jiff's range, some ten thousand years, are the epoch.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::try_from(self.wall()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Blocks this thread; manual time is moved instead. Only for threads of their own: async code waits with tokio.
    #[allow(clippy::disallowed_methods, reason = "the one place that blocks a thread for a time")]
    pub fn sleep_blocking(&self, duration: Duration) {
        match &self.source {
            None => std::thread::sleep(duration),
            Some(source) => source.sleep_blocking(duration),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.source.is_none() { "Clock(system)" } else { "Clock(other)" })
    }
}

/// Time that moves only when it is told to.
#[derive(Clone, Debug)]
pub struct ManualTime {
    readings: Arc<Mutex<Readings>>,
}

#[derive(Clone, Copy, Debug)]
struct Readings {
    monotonic: Instant,
    wall: SystemTime,
}

impl ManualTime {
    /// Starts at a wall time; monotonic time starts anywhere, as it does on every machine.
    pub fn starting_at(wall: SystemTime) -> Self {
        let monotonic = Clock::system().now();
        Self { readings: Arc::new(Mutex::new(Readings { monotonic, wall })) }
    }

    /// A clock that reads this time.
    pub fn clock(&self) -> Clock {
        Clock::of(Arc::new(self.clone()))
    }

    /// Moves both times forward.
    pub fn advance(&self, duration: Duration) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.monotonic += duration;
        readings.wall += duration;
    }

    /// Sets wall time alone, as an administrator or NTP does; monotonic time goes on.
    pub fn set_wall(&self, wall: SystemTime) {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).wall = wall;
    }

    fn read(&self) -> Readings {
        *self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimeSource for ManualTime {
    fn monotonic(&self) -> Instant {
        self.read().monotonic
    }

    fn wall(&self) -> SystemTime {
        self.read().wall
    }

    /// Moves the time instead.
    fn sleep_blocking(&self, duration: Duration) {
        self.advance(duration);
    }
}

/// A seed from the operating system, for the one random source of a process.
pub fn os_seed() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Early at boot there may be no entropy yet; two processes still differ by their id and their time.
        let since_epoch = Clock::system().wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since_epoch.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_a_manual_clock_move_together() {
        let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH);
        let (one, other) = (time.clock(), time.clock());
        let start = one.now();
        time.advance(Duration::from_secs(90));
        assert_eq!(other.since(start), Duration::from_secs(90));
        assert_eq!(other.timestamp().to_string(), "1970-01-01T00:01:30Z");
    }

    #[test]
    fn setting_the_wall_clock_leaves_monotonic_time_alone() {
        let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(3_600));
        let clock = time.clock();
        let start = clock.now();
        time.set_wall(SystemTime::UNIX_EPOCH);
        assert_eq!((clock.since(start), clock.wall()), (Duration::ZERO, SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn a_blocking_sleep_moves_manual_time() {
        let clock = ManualTime::starting_at(SystemTime::UNIX_EPOCH).clock();
        let start = clock.now();
        clock.sleep_blocking(Duration::from_secs(86_400));
        assert_eq!(clock.since(start), Duration::from_secs(86_400));
    }
}
