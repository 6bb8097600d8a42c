//! Failures of the API as log lines: one when a failure begins, one a minute while it lasts, one when it is over,
//! however many requests fail meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// The interval between lines while a failure lasts.
const REMINDER: Duration = Duration::from_secs(60);
/// Failures that are followed at once; more of them are not logged.
const MOST: usize = 256;

/// What fails.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The API does not answer, or answers that it cannot.
    Api,
    /// The API refuses one kind of request.
    Request(String),
}

/// A failure that lasts.
#[derive(Clone, Copy, Debug)]
struct Open {
    since: Instant,
    said: Instant,
    failures: u64,
}

/// What to log about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Began,
    Lasts { seconds: u64, failures: u64 },
}

/// All failures that last. Time is an argument.
#[derive(Debug)]
struct Outages(BTreeMap<Subject, Open>);

impl Outages {
    /// One more failure; the answer is what to log.
    fn failed(&mut self, subject: Subject, now: Instant) -> Option<Line> {
        let Some(open) = self.0.get_mut(&subject) else {
            let is_room = self.0.len() < MOST;
            if is_room {
                self.0.insert(subject, Open { since: now, said: now, failures: 1 });
            }
            return is_room.then_some(Line::Began);
        };
        open.failures += 1;
        if now.saturating_duration_since(open.said) < REMINDER {
            return None;
        }
        open.said = now;
        let seconds = now.saturating_duration_since(open.since).as_secs();
        Some(Line::Lasts { seconds, failures: open.failures })
    }

    /// It works; the answer is for how many seconds it did not.
    fn worked(&mut self, subject: &Subject, now: Instant) -> Option<u64> {
        let open = self.0.remove(subject)?;
        Some(now.saturating_duration_since(open.since).as_secs())
    }
}

/// A process speaks to one API.
static OUTAGES: Mutex<Outages> = Mutex::new(Outages(BTreeMap::new()));
/// How many failures last, so that success costs no lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn change<T>(act: impl FnOnce(&mut Outages) -> T) -> T {
    let mut outages = OUTAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut outages);
    OPEN.store(outages.0.len(), Ordering::Relaxed);
    result
}

/// Whether a status says that no API server could answer. Other failures are about the single request.
pub fn means_away(code: u16) -> bool {
    matches!(code, 502..=504)
}

/// The API did not answer, or its proxy said so.
pub fn api_failed(error: &str) {
    match change(|outages| outages.failed(Subject::Api, Instant::now())) {
        Some(Line::Began) => warn!(error, "API unreachable; retrying"),
        Some(Line::Lasts { seconds, failures }) => {
            warn!(error, seconds, failures, "API still unreachable; retrying");
        }
        None => {}
    }
}

/// The API answered.
pub fn api_answered() {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(seconds) = change(|outages| outages.worked(&Subject::Api, Instant::now())) {
        info!(seconds, "API reachable again");
    }
}

/// Whether the API is away now: failures of single writes are then no news.
pub fn is_api_away() -> bool {
    OPEN.load(Ordering::Relaxed) > 0 && change(|outages| outages.0.contains_key(&Subject::Api))
}

/// The API refused a request of this kind, as `watch Services`, which is sent again.
pub fn request_failed(request: &str, error: &str) {
    let subject = Subject::Request(request.to_owned());
    match change(|outages| outages.failed(subject, Instant::now())) {
        Some(Line::Began) => warn!(request, error, "API request failed; retrying"),
        Some(Line::Lasts { seconds, failures }) => {
            warn!(request, error, seconds, failures, "API request still failing; retrying");
        }
        None => {}
    }
}

/// The API does not serve what the request asks for, as a kind without its CustomResourceDefinition: no failure, so it
/// is logged once.
pub fn request_missing(request: &str) {
    let subject = Subject::Request(request.to_owned());
    if let Some(Line::Began) = change(|outages| outages.failed(subject, Instant::now())) {
        info!(request, "the API does not serve this kind; retrying (definitions are in deploy/crds)");
    }
}

/// A request of this kind succeeded.
pub fn request_worked(request: &str) {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    let subject = Subject::Request(request.to_owned());
    if let Some(seconds) = change(|outages| outages.worked(&subject, Instant::now())) {
        info!(request, seconds, "API request succeeds again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_line_when_it_begins_one_a_minute_and_one_at_its_end() {
        let mut outages = Outages(BTreeMap::new());
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(outages.failed(Subject::Api, at(0)), Some(Line::Began));
        let lines: Vec<(u64, Line)> = (1..=150)
            .filter_map(|second| Some((second, outages.failed(Subject::Api, at(second))?)))
            .collect();
        let lasts = |seconds| Line::Lasts { seconds, failures: seconds + 1 };
        assert_eq!(lines, [(60, lasts(60)), (120, lasts(120))]);
        assert_eq!(outages.worked(&Subject::Api, at(151)), Some(151));
        assert_eq!(outages.worked(&Subject::Api, at(152)), None);
        assert_eq!(outages.failed(Subject::Api, at(153)), Some(Line::Began));
    }

    #[test]
    fn what_is_followed_is_bounded() {
        let mut outages = Outages(BTreeMap::new());
        let now = Instant::now();
        let began = (0..MOST * 2).filter_map(|i| outages.failed(Subject::Request(i.to_string()), now));
        assert_eq!(began.count(), MOST);
    }
}
