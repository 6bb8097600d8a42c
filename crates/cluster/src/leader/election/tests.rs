//! The election against a Lease that behaves: versions, lost answers, slow requests, clocks that drift, processes that
//! stand still.

use proptest::prelude::*;

use super::*;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn seen(version: &str, holder: &str) -> Seen {
    Seen {
        version: version.to_owned(),
        holder: holder.to_owned(),
        duration: Some(seconds(15)),
        transitions: 4,
    }
}

fn candidate() -> Election {
    Election::new("us", Timing::default())
}

#[test]
fn a_lease_that_is_missing_or_given_up_is_taken_at_once() {
    let Action::Write(made) = candidate().observe(None, seconds(0)) else { panic!("it is made") };
    assert_eq!((made.holder.as_str(), made.transitions, made.acquires), ("us", 0, true));
    let Action::Write(taken) = candidate().observe(Some(&seen("1", "")), seconds(0)) else {
        panic!("it is taken")
    };
    assert_eq!((taken.holder.as_str(), taken.transitions, taken.acquires), ("us", 5, true));
}

#[test]
fn another_ones_lease_is_taken_a_whole_duration_after_its_last_sign_of_life() {
    let mut election = candidate();
    assert_eq!(election.observe(Some(&seen("1", "them")), seconds(0)), Action::Wait);
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(10)), Action::Wait);
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(24)), Action::Wait);
    assert_eq!(election.pause(seconds(24)), seconds(1));
    assert!(matches!(election.observe(Some(&seen("2", "them")), seconds(25)), Action::Write(_)));
}

#[test]
fn a_leader_counts_from_before_its_write_and_stops_by_itself() {
    let mut election = candidate();
    election.observe(None, seconds(0));
    assert!(!election.is_leading(seconds(0)));
    election.wrote(&seen("1", "us"), seconds(1), seconds(4));
    assert!(election.is_leading(seconds(10)));
    assert_eq!(election.pause(seconds(10)), seconds(1));
    assert!(!election.is_leading(seconds(11)));
    assert_eq!(election.pause(seconds(11)), seconds(2), "whoever no longer leads does not hurry");
}

#[test]
fn whoever_sees_another_holder_stops_at_once() {
    let mut election = candidate();
    election.wrote(&seen("1", "us"), seconds(0), seconds(0));
    assert_eq!(election.observe(Some(&seen("2", "them")), seconds(1)), Action::Wait);
    assert!(!election.is_leading(seconds(1)));
}

#[test]
fn only_what_is_held_is_given_up() {
    let mut election = candidate();
    assert_eq!(election.release(), None);
    election.wrote(&seen("1", "us"), seconds(0), seconds(0));
    let record = election.release().expect("it was held");
    assert_eq!((record.holder.as_str(), record.transitions), ("", 4));
    assert!(!election.is_leading(seconds(0)));
}

/// One thing that a candidate does at a time of the world, in milliseconds.
#[derive(Clone, Debug)]
struct Step {
    who: usize,
    /// How long after the step before.
    after: u64,
    /// How long the request takes to reach the API, and the answer to come back.
    there: u64,
    back: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Renew,
    /// The write happens and its answer is lost.
    LoseAnswer,
    Release,
}

/// A candidate with a clock of its own.
struct Drifting {
    election: Election,
    /// By how many thousandths its clock is fast or slow, and where it begins.
    rate: i64,
    offset: u64,
    /// Nothing else is done until then: it waits for an answer.
    busy_until: u64,
    /// The Lease as it last saw it: what it gives up is that one and no other.
    last: Option<Seen>,
}

impl Drifting {
    fn clock(&self, world: u64) -> Duration {
        let drifted = world as i64 + world as i64 * self.rate / 1_000;
        Duration::from_millis(self.offset + drifted as u64)
    }
}

fn apply(lease: &mut Option<Seen>, version: &mut u64, based_on: Option<&Seen>, record: &Record) -> bool {
    if lease.as_ref().map(|l| &l.version) != based_on.map(|l| &l.version) {
        return false;
    }
    *version += 1;
    *lease = Some(Seen {
        version: version.to_string(),
        holder: record.holder.clone(),
        duration: Some(record.duration),
        transitions: record.transitions,
    });
    true
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![8 => Just(What::Renew), 1 => Just(What::LoseAnswer), 1 => Just(What::Release)];
    let step = (0..3usize, 0..9_000u64, 0..4_000u64, 0..4_000u64, what);
    let step = step.prop_map(|(who, after, there, back, what)| Step { who, after, there, back, what });
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Clocks up to 19 % fast or slow differ by less than half (1.19 / 0.81 = 1.47), which is what the usual times bear.
    #[test]
    fn two_never_lead_at_once_when_clocks_drift_within_bounds(
        rates in prop::array::uniform3(-190..190i64),
        offsets in prop::array::uniform3(0..100_000u64),
        steps in steps(),
    ) {
        let candidate = |i: usize| Drifting {
            election: Election::new(&format!("c{i}"), Timing::default()),
            rate: rates[i],
            offset: offsets[i],
            busy_until: 0,
            last: None,
        };
        let mut all: Vec<Drifting> = (0..3).map(candidate).collect();
        let (mut lease, mut version, mut world) = (None::<Seen>, 0u64, 0u64);
        for step in steps {
            world += step.after;
            let one = &mut all[step.who];
            if world < one.busy_until {
                continue;
            }
            // The read is as old as the way back is long at most; here it is exact, the write comes later.
            if step.what != What::Release {
                one.last.clone_from(&lease);
            }
            let read = one.last.clone();
            let record = match step.what {
                What::Release => one.election.release(),
                _ => match one.election.observe(read.as_ref(), one.clock(world)) {
                    Action::Write(record) => Some(record),
                    Action::Wait => None,
                },
            };
            let Some(record) = record else { continue };
            let sent = one.clock(world);
            let arrives = world + step.there;
            let answered = arrives + step.back;
            one.busy_until = answered;
            // Nothing else happens on the way: a race is one of the versions, which the next lines decide.
            if apply(&mut lease, &mut version, read.as_ref(), &record) && step.what != What::LoseAnswer {
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
