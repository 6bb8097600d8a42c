//! The election against a simulated Lease: versions, lost responses, slow requests, drifting clocks, paused processes.

use proptest::prelude::*;

use super::*;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn seen(version: &str, holder: &str) -> LeaseState {
    LeaseState {
        version: version.to_owned(),
        holder: holder.to_owned(),
        duration: Some(seconds(15)),
        transitions: 4,
    }
}

fn candidate() -> Election {
    Election::new("us", ElectionTiming::default())
}

#[test]
fn a_missing_or_released_lease_is_acquired_immediately() {
    let ElectionAction::Write(made) = candidate().observe(None, seconds(0)) else { panic!("it is made") };
    assert_eq!((made.holder.as_str(), made.transitions, made.acquires), ("us", 0, true));
    let ElectionAction::Write(taken) = candidate().observe(Some(&seen("1", "")), seconds(0)) else {
        panic!("it is taken")
    };
    assert_eq!((taken.holder.as_str(), taken.transitions, taken.acquires), ("us", 5, true));
}

#[test]
fn a_lease_is_acquired_one_lease_duration_after_its_last_observed_renewal() {
    let mut election = candidate();
    assert_eq!(election.observe(Some(&seen("1", "them")), seconds(0)), ElectionAction::Wait);
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(10)), ElectionAction::Wait);
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(24)), ElectionAction::Wait);
    assert_eq!(election.pause(seconds(24)), seconds(1));
    assert!(matches!(election.observe(Some(&seen("2", "them")), seconds(25)), ElectionAction::Write(_)));
}

#[test]
fn a_term_starts_before_the_write_and_ends_at_the_renew_deadline() {
    let mut election = candidate();
    election.observe(None, seconds(0));
    assert!(!election.is_leading(seconds(0)));
    election.wrote(&seen("1", "us"), seconds(1), seconds(4));
    assert!(election.is_leading(seconds(10)));
    assert_eq!(election.pause(seconds(10)), seconds(1));
    assert!(!election.is_leading(seconds(11)));
    assert_eq!(election.pause(seconds(11)), seconds(2), "a former leader waits for the retry period");
}

#[test]
fn observing_another_holder_ends_the_term() {
    let mut election = candidate();
    election.wrote(&seen("1", "us"), seconds(0), seconds(0));
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(1)), ElectionAction::Wait);
    assert!(!election.is_leading(seconds(1)));
}

#[test]
fn only_a_held_lease_is_released() {
    let mut election = candidate();
    assert_eq!(election.release(), None);
    election.wrote(&seen("1", "us"), seconds(0), seconds(0));
    let record = election.release().expect("it was held");
    assert_eq!((record.holder.as_str(), record.transitions), ("", 4));
    assert!(!election.is_leading(seconds(0)));
}

/// One action of a candidate; times in milliseconds.
#[derive(Clone, Debug)]
struct Step {
    who: usize,
    /// Delay after the previous step.
    after: u64,
    /// Latency of the request and of the response.
    there: u64,
    back: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Renew,
    /// The write succeeds and its response is lost.
    LoseResponse,
    Release,
}

/// A candidate with its own clock.
struct Drifting {
    election: Election,
    /// Drift in thousandths, and start of its clock.
    rate: i64,
    offset: u64,
    /// Waiting for a response until then.
    busy_until: u64,
    /// The Lease as last observed: a release is a write to this version.
    last: Option<LeaseState>,
}

impl Drifting {
    fn clock(&self, world: u64) -> Duration {
        let drifted = world as i64 + world as i64 * self.rate / 1_000;
        Duration::from_millis(self.offset + drifted as u64)
    }
}

fn apply(
    lease: &mut Option<LeaseState>,
    version: &mut u64,
    based_on: Option<&LeaseState>,
    record: &LeaseRecord,
) -> bool {
    if lease.as_ref().map(|l| &l.version) != based_on.map(|l| &l.version) {
        return false;
    }
    *version += 1;
    *lease = Some(LeaseState {
        version: version.to_string(),
        holder: record.holder.clone(),
        duration: Some(record.duration),
        transitions: record.transitions,
    });
    true
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![8 => Just(What::Renew), 1 => Just(What::LoseResponse), 1 => Just(What::Release)];
    let step = (0..3usize, 0..9_000u64, 0..4_000u64, 0..4_000u64, what);
    let step = step.prop_map(|(who, after, there, back, what)| Step { who, after, there, back, what });
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Clocks up to 19 % fast or slow differ by less than half (1.19 / 0.81 = 1.47), the bound of the default timing.
    #[test]
    fn two_never_lead_at_once_when_clocks_drift_within_bounds(
        rates in prop::array::uniform3(-190..190i64),
        offsets in prop::array::uniform3(0..100_000u64),
        steps in steps(),
    ) {
        let candidate = |i: usize| Drifting {
            election: Election::new(&format!("c{i}"), ElectionTiming::default()),
            rate: rates[i],
            offset: offsets[i],
            busy_until: 0,
            last: None,
        };
        let mut all: Vec<Drifting> = (0..3).map(candidate).collect();
        let (mut lease, mut version, mut world) = (None::<LeaseState>, 0u64, 0u64);
        for step in steps {
            world += step.after;
            let one = &mut all[step.who];
            if world < one.busy_until {
                continue;
            }
            // The read is exact; the write comes later.
            if step.what != What::Release {
                one.last.clone_from(&lease);
            }
            let read = one.last.clone();
            let record = match step.what {
                What::Release => one.election.release(),
                _ => match one.election.observe(read.as_ref(), one.clock(world)) {
                    ElectionAction::Write(record) => Some(record),
                    ElectionAction::Wait => None,
                },
            };
            let Some(record) = record else { continue };
            let sent = one.clock(world);
            let arrives = world + step.there;
            let answered = arrives + step.back;
            one.busy_until = answered;
            // Races are decided by the version.
            if apply(&mut lease, &mut version, read.as_ref(), &record) && step.what != What::LoseResponse {
                let written = lease.clone().expect("it was just written");
                let now = one.clock(answered);
                one.election.wrote(&written, sent, now);
                one.last = Some(written);
            }
            for later in (0..40).map(|n| world + n * 500) {
                let leaders = all.iter().filter(|c| c.election.is_leading(c.clock(later))).count();
                prop_assert!(leaders <= 1, "{leaders} lead at {later} ms");
            }
        }
    }
}
