//! The time of one party: tokio's paused clock, read through `clock::Clock`. A party's timers and its clock run at the
//! same rate, which differs from party to party.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clock::{Clock, TimeSource};
use model::Timestamp;
use tokio::runtime::{Builder, Handle, Runtime};

/// The wall time at the start of every simulation: 2027-01-15.
pub(crate) const START: Duration = Duration::from_secs(1_800_000_000);

/// The wall time of a clock that is right.
pub(crate) fn wall_time(now: u64) -> Timestamp {
    Timestamp::from_seconds((START + Duration::from_millis(now)).as_secs() as i64)
}

/// Reads the paused clock of the runtime that runs.
#[derive(Debug)]
struct PausedTime {
    base: Instant,
    /// Wall time at `base`.
    wall: Mutex<SystemTime>,
    /// Milliseconds after `base` at the end of the last step, for reads outside of the runtime.
    last: AtomicU64,
    /// The reading of the clock that was given last, and how often: a loop that never waits stops the time.
    repeated: Mutex<(Instant, u32)>,
}

/// Readings of the same time after which a party counts as spinning.
const SPINS: u32 = 300_000;

impl PausedTime {
    fn spins(&self) -> bool {
        self.repeated.lock().unwrap_or_else(PoisonError::into_inner).1 > SPINS
    }

    fn read(&self) -> Instant {
        let now = tokio::time::Instant::now().into_std();
        let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
        *repeated = if repeated.0 == now { (now, repeated.1 + 1) } else { (now, 0) };
        assert!(repeated.1 <= SPINS, "this party reads the clock again and again and never waits");
        now
    }
}

impl TimeSource for PausedTime {
    fn monotonic(&self) -> Instant {
        match Handle::try_current() {
            Ok(_) => self.read(),
            Err(_) => self.base + Duration::from_millis(self.last.load(Ordering::Relaxed)),
        }
    }

    fn wall(&self) -> SystemTime {
        let base = *self.wall.lock().unwrap_or_else(PoisonError::into_inner);
        base + self.monotonic().saturating_duration_since(self.base)
    }

    /// One thread runs all parties: nothing that a blocked thread waits for could happen.
    fn sleep_blocking(&self, _: Duration) {}
}

/// A runtime on its own paused time.
pub(crate) struct PausedRuntime {
    runtime: Runtime,
    time: Arc<PausedTime>,
    /// Simulated time of the start, and local milliseconds since.
    started: u64,
    elapsed: u64,
    /// Local time per simulated time, in thousandths.
    rate: u64,
}

impl PausedRuntime {
    /// Starts at simulated millisecond `now`; its wall clock is `wall_offset` seconds off.
    pub(crate) fn start(now: u64, rate: u64, wall_offset: i64) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
        let base = runtime.block_on(async { tokio::time::Instant::now().into_std() });
        let shifted = START.as_secs().saturating_add_signed(wall_offset);
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(shifted) + Duration::from_millis(now);
        let time = Arc::new(PausedTime {
            base,
            wall: Mutex::new(wall),
            last: AtomicU64::new(0),
            repeated: Mutex::new((base, 0)),
        });
        Self { runtime, time, started: now, elapsed: 0, rate }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::of(self.time.clone())
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Runs a future to its end at the current time, if nothing in it waits for long.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Runs everything that is due until simulated millisecond `now`.
    pub(crate) fn run_until(&mut self, now: u64) {
        let local = (now - self.started) * self.rate / 1_000;
        if local > self.elapsed {
            self.elapsed = local;
        }
        let until = tokio::time::Instant::from_std(self.time.base + Duration::from_millis(self.elapsed));
        self.runtime.block_on(async { tokio::time::sleep_until(until).await });
        self.time.last.store(self.elapsed, Ordering::Relaxed);
    }

    /// Whether a task of this party ran without end at one time; it was stopped.
    pub(crate) fn has_spun(&self) -> bool {
        self.time.spins()
    }

    /// The administrator, or NTP, sets the wall clock.
    pub(crate) fn jump_wall(&self, seconds: i64) {
        let mut wall = self.time.wall.lock().unwrap_or_else(PoisonError::into_inner);
        let shift = Duration::from_secs(seconds.unsigned_abs());
        *wall = if seconds < 0 { *wall - shift } else { *wall + shift };
    }
}
