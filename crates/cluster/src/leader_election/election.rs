//! The decisions of leader election. Time is an argument.
//!
//! Candidates do not compare their wall clocks. A leader measures from before its last write was sent, and stops leading at
//! the renew deadline. The others measure from when they observed the Lease change, which is later, and wait for the lease
//! duration, which is longer. Two never lead at the same time as long as no clock runs `lease_duration / renew_deadline`
//! times as fast as another: 1.5 times with the defaults.

use std::time::Duration;

use model::plant::{PlantedBug, is_planted};

/// As in client-go's LeaderElectionConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTiming {
    /// Time that other candidates wait after the last observed renewal.
    pub lease_duration: Duration,
    /// Time that the leader leads after its last renewal.
    pub renew_deadline: Duration,
    /// Interval between renewals, or attempts to acquire.
    pub retry_period: Duration,
}

impl Default for ElectionTiming {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A Lease as observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// The resourceVersion, which every renewal changes.
    pub version: String,
    /// Empty after a release.
    pub holder: String,
    pub duration: Option<Duration>,
    pub transitions: i32,
}

/// A Lease to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    pub holder: String,
    pub duration: Duration,
    pub transitions: i32,
    /// The holder changes with this write.
    pub acquires: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionAction {
    Wait,
    /// Write the Lease with the observed resourceVersion as a precondition.
    Write(LeaseRecord),
}

/// The state of one candidate. Times are monotonic, from an arbitrary start.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    timing: ElectionTiming,
    /// The Lease as last observed, and when this version was first observed.
    seen: Option<(LeaseState, Duration)>,
    /// When the last successful write was sent.
    renewed: Option<Duration>,
}

impl Election {
    pub fn new(identity: &str, timing: ElectionTiming) -> Self {
        Self { identity: identity.to_owned(), timing, seen: None, renewed: None }
    }

    /// Decides what to do about the Lease; `None` if it does not exist.
    pub fn observe(&mut self, lease: Option<&LeaseState>, now: Duration) -> ElectionAction {
        let Some(lease) = lease else {
            self.seen = None;
            self.renewed = None;
            return ElectionAction::Write(self.record(0, true));
        };
        self.note(lease, now);
        if lease.holder == self.identity {
            // Held already, perhaps by a write whose response was lost. It counts once it is renewed.
            return ElectionAction::Write(self.record(lease.transitions, false));
        }
        self.renewed = None;
        if lease.holder.is_empty() || self.has_expired(now) {
            return ElectionAction::Write(self.record(lease.transitions.saturating_add(1), true));
        }
        ElectionAction::Wait
    }

    /// A write that was sent at `sent` succeeded and returned this Lease.
    pub fn wrote(&mut self, lease: &LeaseState, sent: Duration, now: Duration) {
        self.note(lease, now);
        self.renewed = (lease.holder == self.identity).then_some(sent);
    }

    /// Whether this candidate holds the Lease for certain.
    pub fn is_leading(&self, now: Duration) -> bool {
        self.leads_until(now).is_some()
    }

    /// End of the term unless the Lease is renewed; `None` when not leading.
    pub fn leads_until(&self, now: Duration) -> Option<Duration> {
        let until = self.renewed.map(|renewed| renewed + self.timing.renew_deadline);
        if is_planted(PlantedBug::TwoLeaders) {
            return until.map(|until| until.max(now + self.timing.retry_period));
        }
        until.filter(|until| now < *until)
    }

    /// Time until the next step.
    pub fn pause(&self, now: Duration) -> Duration {
        let period = self.timing.retry_period;
        if let Some(until) = self.leads_until(now) {
            return period.min(until.saturating_sub(now));
        }
        // As soon as the other's Lease expires, if that is before the retry period ends.
        match self.expires_at() {
            Some(at) if at > now => period.min(at - now),
            _ => period,
        }
    }

    /// The record that releases the Lease, if it is held. Leading ends here, whatever the outcome of the write.
    pub fn release(&mut self) -> Option<LeaseRecord> {
        self.renewed.take()?;
        let (seen, _) = self.seen.as_ref()?;
        let mut record = self.record(seen.transitions, false);
        record.holder = String::new();
        record.duration = Duration::from_secs(1);
        Some(record)
    }

    fn note(&mut self, lease: &LeaseState, now: Duration) {
        match &mut self.seen {
            Some((seen, _)) if seen.version == lease.version => {}
            seen => *seen = Some((lease.clone(), now)),
        }
    }

    /// When the Lease expires by the local clock: one lease duration after the last observed renewal.
    fn expires_at(&self) -> Option<Duration> {
        let (seen, at) = self.seen.as_ref()?;
        Some(*at + seen.duration.unwrap_or(self.timing.lease_duration))
    }

    fn has_expired(&self, now: Duration) -> bool {
        self.expires_at().is_some_and(|at| now >= at)
    }

    fn record(&self, transitions: i32, acquires: bool) -> LeaseRecord {
        LeaseRecord {
            holder: self.identity.clone(),
            duration: self.timing.lease_duration,
            transitions,
            acquires,
        }
    }
}

#[cfg(test)]
mod tests;
