//! Who leads, decided from what a Lease says and from time, which is an argument.
//!
//! Nobody trusts another's clock. A leader counts from before its last write was sent, and stops after the renew
//! deadline; the others count from when they saw the Lease change, which is later, and wait the lease duration, which
//! is longer. So two never lead at once as long as no clock runs `lease_duration / renew_deadline` times as fast as
//! another: by half, with the usual values.

use std::time::Duration;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the leader's last sign of life.
    pub lease_duration: Duration,
    /// How long the leader leads after its last renewal.
    pub renew_deadline: Duration,
    /// How often to renew, or to look.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its resourceVersion: another one is a sign of life.
    pub version: String,
    /// Who holds it; empty if it was given up.
    pub holder: String,
    /// For how long after each renewal.
    pub duration: Option<Duration>,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What a Lease is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who holds it.
    pub holder: String,
    /// For how long after each renewal.
    pub duration: Duration,
    /// How often it changed hands.
    pub transitions: i32,
    /// It changes hands with this.
    pub acquires: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to look again.
    Wait,
    /// Write the Lease, if it still is as it was seen.
    Write(Record),
}

/// The state of one candidate. Times are the candidate's own, from any beginning.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    /// The Lease as last seen, and when this version was first seen.
    seen: Option<(Seen, Duration)>,
    /// When the last write that succeeded was sent.
    renewed: Option<Duration>,
}

impl Election {
    /// A candidate who has seen nothing yet.
    pub fn new(identity: &str, timing: Timing) -> Self {
        Self { identity: identity.to_owned(), timing, seen: None, renewed: None }
    }

    /// What to do about a Lease, or about none.
    pub fn observe(&mut self, lease: Option<&Seen>, now: Duration) -> Action {
        let Some(lease) = lease else {
            self.seen = None;
            self.renewed = None;
            return Action::Write(self.record(0, true));
        };
        self.note(lease, now);
        if lease.holder == self.identity {
            // Ours, perhaps by a write whose answer was lost. It counts again when it is renewed.
            return Action::Write(self.record(lease.transitions, false));
        }
        self.renewed = None;
        if lease.holder.is_empty() || self.has_run_out(now) {
            return Action::Write(self.record(lease.transitions.saturating_add(1), true));
        }
        Action::Wait
    }

    /// A write succeeded: it was sent then, and this is the Lease now.
    pub fn wrote(&mut self, lease: &Seen, sent: Duration, now: Duration) {
        self.note(lease, now);
        self.renewed = (lease.holder == self.identity).then_some(sent);
    }

    /// Whether the Lease is surely ours.
    pub fn is_leading(&self, now: Duration) -> bool {
        self.leads_until(now).is_some()
    }

    /// When we stop leading unless the Lease is renewed; nothing once that has come.
    pub fn leads_until(&self, now: Duration) -> Option<Duration> {
        let until = self.renewed.map(|renewed| renewed + self.timing.renew_deadline);
        until.filter(|until| now < *until)
    }

    /// How long to wait before the next step.
    pub fn pause(&self, now: Duration) -> Duration {
        let period = self.timing.retry_period;
        if let Some(until) = self.leads_until(now) {
            return period.min(until.saturating_sub(now));
        }
        // Not only at the next look, but as soon as the other's time is over.
        match self.runs_out_at() {
            Some(at) if at > now => period.min(at - now),
            _ => period,
        }
    }

    /// What gives the Lease up, if it is ours. We do not lead from here on, whatever becomes of the write.
    pub fn release(&mut self) -> Option<Record> {
        self.renewed.take()?;
        let (seen, _) = self.seen.as_ref()?;
        let mut record = self.record(seen.transitions, false);
        record.holder = String::new();
        record.duration = Duration::from_secs(1);
        Some(record)
    }

    fn note(&mut self, lease: &Seen, now: Duration) {
        match &mut self.seen {
            Some((seen, _)) if seen.version == lease.version => {}
            seen => *seen = Some((lease.clone(), now)),
        }
    }

    /// When the holder's time is over, by our clock: a whole duration after its last sign of life that we saw.
    fn runs_out_at(&self) -> Option<Duration> {
        let (seen, at) = self.seen.as_ref()?;
        Some(*at + seen.duration.unwrap_or(self.timing.lease_duration))
    }

    fn has_run_out(&self, now: Duration) -> bool {
        self.runs_out_at().is_some_and(|at| now >= at)
    }

    fn record(&self, transitions: i32, acquires: bool) -> Record {
        Record { holder: self.identity.clone(), duration: self.timing.lease_duration, transitions, acquires }
    }
}

#[cfg(test)]
mod tests;
