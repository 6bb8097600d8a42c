//! Log lines about API failures: one when a failure starts, one a minute while it lasts, one when it ends, however many
//! requests fail meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use tracing::{info, warn};

/// Interval between log lines while a failure lasts.
const REMINDER: Duration = Duration::from_secs(60);
/// Most failures tracked at once; further ones are not logged.
const MAX_TRACKED: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The API is unreachable.
    Api,
    /// The API rejects one kind of request.
    Request(String),
}

/// A failure that lasts.
#[derive(Clone, Copy, Debug)]
struct OpenFailure {
    since: Instant,
    logged: Instant,
    failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogLine {
    Started,
    Lasts { seconds: u64, failures: u64 },
}

#[derive(Debug, Default)]
struct OutageTracker {
    open: BTreeMap<Subject, OpenFailure>,
    clock: Clock,
}

impl OutageTracker {
    /// Counts a failure and returns what to log.
    fn failed(&mut self, subject: Subject) -> Option<LogLine> {
        let now = self.clock.now();
        let Some(open) = self.open.get_mut(&subject) else {
            let has_room = self.open.len() < MAX_TRACKED;
            if has_room {
                self.open.insert(subject, OpenFailure { since: now, logged: now, failures: 1 });
            }
            return has_room.then_some(LogLine::Started);
        };
        open.failures += 1;
        if now.saturating_duration_since(open.logged) < REMINDER {
            return None;
        }
        open.logged = now;
        let seconds = now.saturating_duration_since(open.since).as_secs();
        Some(LogLine::Lasts { seconds, failures: open.failures })
    }

    /// Ends a failure and returns its length in seconds.
    fn succeeded(&mut self, subject: &Subject) -> Option<u64> {
        let open = self.open.remove(subject)?;
        Some(self.clock.since(open.since).as_secs())
    }
}

/// One for the process, which has one API.
static TRACKER: LazyLock<Mutex<OutageTracker>> = LazyLock::new(Mutex::default);
/// Open failures, so that a success takes no lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn change<T>(act: impl FnOnce(&mut OutageTracker) -> T) -> T {
    let mut tracker = TRACKER.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut tracker);
    OPEN.store(tracker.open.len(), Ordering::Relaxed);
    result
}

/// Sets the clock that failures are timed with; done for each new API client.
pub(crate) fn set_clock(clock: &Clock) {
    change(|tracker| tracker.clock = clock.clone());
}

/// Whether a status means that no API server could answer. Other failures are about the request.
pub fn is_unreachable_status(code: u16) -> bool {
    matches!(code, 502..=504)
}

/// The API did not answer, or a load balancer in front of it failed.
pub fn api_failed(error: &str) {
    match change(|tracker| tracker.failed(Subject::Api)) {
        Some(LogLine::Started) => warn!(error, "API unreachable; retrying"),
        Some(LogLine::Lasts { seconds, failures }) => {
            warn!(error, seconds, failures, "API still unreachable; retrying");
        }
        None => {}
    }
}

pub(crate) fn api_answered() {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(seconds) = change(|tracker| tracker.succeeded(&Subject::Api)) {
        info!(seconds, "API reachable again");
    }
}

/// Whether the API is unreachable now: a failed write then needs no log line.
pub fn is_api_unreachable() -> bool {
    OPEN.load(Ordering::Relaxed) > 0 && change(|tracker| tracker.open.contains_key(&Subject::Api))
}

/// For how long the API has been unreachable; `None` if it answers.
pub fn unreachable_for() -> Option<Duration> {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return None;
    }
    change(|tracker| tracker.open.get(&Subject::Api).map(|open| tracker.clock.since(open.since)))
}

/// The API rejected a request of this kind, as `watch Service`, which is sent again.
pub fn request_failed(request: &str, error: &str) {
    let subject = Subject::Request(request.to_owned());
    match change(|tracker| tracker.failed(subject)) {
        Some(LogLine::Started) => warn!(request, error, "API request failed; retrying"),
        Some(LogLine::Lasts { seconds, failures }) => {
            warn!(request, error, seconds, failures, "API request still failing; retrying");
        }
        None => {}
    }
}

/// The API does not serve the kind, as without its CustomResourceDefinition. This is logged once.
pub(crate) fn kind_not_served(request: &str) {
    let subject = Subject::Request(request.to_owned());
    if let Some(LogLine::Started) = change(|tracker| tracker.failed(subject)) {
        info!(request, "the API does not serve this kind; retrying (definitions are in deploy/crds)");
    }
}

/// The API does not serve an optional kind, or not to this account. This is logged once for all kinds.
pub(crate) fn optional_kind_not_served(kind: &str, error: &str) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        info!(
            kind,
            error, "the API does not serve this optional kind; it is asked for again from time to time"
        );
    }
}

/// A request of this kind succeeded.
pub fn request_succeeded(request: &str) {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    let subject = Subject::Request(request.to_owned());
    if let Some(seconds) = change(|tracker| tracker.succeeded(&subject)) {
        info!(request, seconds, "API request succeeds again");
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use clock::ManualTime;

    use super::*;

    #[test]
    fn a_failure_is_logged_when_it_starts_every_minute_and_when_it_ends() {
        let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH);
        let mut tracker = OutageTracker { clock: time.clock(), ..OutageTracker::default() };
        let second = Duration::from_secs(1);
        assert_eq!(tracker.failed(Subject::Api), Some(LogLine::Started));
        let mut lines = Vec::new();
        for elapsed in 1..=150 {
            time.advance(second);
            lines.extend(tracker.failed(Subject::Api).map(|line| (elapsed, line)));
        }
        let lasts = |seconds| LogLine::Lasts { seconds, failures: seconds + 1 };
        assert_eq!(lines, [(60, lasts(60)), (120, lasts(120))]);
        time.advance(second);
        assert_eq!(tracker.succeeded(&Subject::Api), Some(151));
        assert_eq!(tracker.succeeded(&Subject::Api), None);
        assert_eq!(tracker.failed(Subject::Api), Some(LogLine::Started));
    }

    #[test]
    fn tracked_failures_are_bounded() {
        let mut tracker = OutageTracker::default();
        let started = (0..MAX_TRACKED * 2).filter_map(|i| tracker.failed(Subject::Request(i.to_string())));
        assert_eq!(started.count(), MAX_TRACKED);
    }
}
