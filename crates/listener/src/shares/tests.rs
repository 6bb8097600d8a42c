//! Who loses when a pool is full.

use proptest::prelude::*;

use super::*;

type Pool = FairShares<&'static str, &'static str>;

/// The evicted handles; `None` if it is refused.
fn take(
    pool: &mut Pool,
    group: &'static str,
    member: u64,
    handle: &'static str,
) -> Option<Vec<&'static str>> {
    let taken = pool.take((group, member), handle, AtShare::EvictOldest);
    taken.map(|(_, evicted)| evicted.into_iter().collect())
}

#[test]
fn one_group_may_use_everything_until_another_asks() {
    let mut pool = Pool::new(3);
    for handle in ["a1", "a2", "a3"] {
        assert_eq!(take(&mut pool, "a", 0, handle), Some(vec![]));
    }
    assert_eq!(take(&mut pool, "b", 0, "b1"), Some(vec!["a1"]));
    assert_eq!(take(&mut pool, "b", 0, "b2"), Some(vec!["a2"]), "of 2 and 2 the oldest");
    assert_eq!(take(&mut pool, "b", 0, "b3"), Some(vec!["b1"]), "its own: the other has less");
}

#[test]
fn within_a_group_the_largest_member_loses() {
    let mut pool = Pool::new(3);
    for (member, handle) in [(1, "quiet"), (2, "loud1"), (2, "loud2")] {
        assert_eq!(take(&mut pool, "a", member, handle), Some(vec![]));
    }
    assert_eq!(take(&mut pool, "a", 2, "loud3"), Some(vec!["loud1"]));
    assert_eq!(take(&mut pool, "a", 3, "new"), Some(vec!["loud2"]));
}

#[test]
fn idle_holders_lose_before_busy_ones_and_touched_ones_last() {
    let mut pool = Pool::new(3);
    let mut ids = Vec::new();
    for handle in ["busy", "used", "idle"] {
        ids.extend(pool.take(("a", 0), handle, AtShare::EvictOldest).map(|(id, _)| id));
    }
    pool.touch(ids[0], true);
    pool.touch(ids[1], false);
    assert_eq!(take(&mut pool, "a", 0, "new"), Some(vec!["idle"]));
    assert_eq!(take(&mut pool, "a", 0, "newer"), Some(vec!["used"]));
    assert_eq!(take(&mut pool, "a", 0, "newest"), Some(vec!["new"]));
    assert_eq!(pool.evict_one(), Some("newer"));
    assert_eq!(pool.evict_one(), Some("newest"));
    assert_eq!(pool.evict_one(), Some("busy"));
    assert_eq!((pool.evict_one(), pool.used(), pool.group_count()), (None, 0, 0));
}

#[test]
fn many_sources_with_one_each_lose_by_age() {
    let mut pool: FairShares<u32, u32> = FairShares::new(4);
    for source in 0..4 {
        assert_eq!(pool.take((source, 0), source, AtShare::EvictOldest).map(|taken| taken.1), Some(None));
    }
    let evicted = (4..8).map(|source| pool.take((source, 0), source, AtShare::EvictOldest));
    let evicted: Vec<u32> = evicted.filter_map(|taken| taken?.1).collect();
    assert_eq!(evicted, [0, 1, 2, 3]);
}

#[test]
fn where_holders_are_refused_only_larger_users_are_evicted() {
    let mut pool = Pool::new(4);
    let mut ask = |group, member, handle| {
        let taken = pool.take((group, member), handle, AtShare::Refuse);
        taken.map(|(_, evicted)| evicted.into_iter().collect::<Vec<_>>())
    };
    for handle in ["a1", "a2", "a3", "a4"] {
        assert_eq!(ask("a", 1, handle), Some(vec![]));
    }
    assert_eq!(ask("a", 1, "a5"), None, "it uses everything already");
    assert_eq!(ask("a", 2, "other"), Some(vec!["a1"]), "another connection of the same user");
    assert_eq!(ask("b", 3, "b1"), Some(vec!["a2"]));
    assert_eq!(ask("b", 3, "b2"), Some(vec!["a3"]), "2 and 2");
    assert_eq!(ask("b", 3, "b3"), None);
    assert_eq!(ask("a", 1, "a6"), None);
    assert_eq!(ask("c", 4, "c1"), Some(vec!["a4"]), "of 2 and 2 the oldest");
}

#[test]
fn a_holder_that_grows_evicts_the_largest_user() {
    let mut pool = Pool::new(100);
    let slow = pool.take(("a", 1), "slow", AtShare::EvictOldest).unwrap().0;
    let small = pool.take(("b", 2), "small", AtShare::EvictOldest).unwrap().0;
    assert_eq!(pool.resize(slow, 60), Vec::<&str>::new());
    assert_eq!(pool.resize(small, 40), Vec::<&str>::new());
    assert_eq!(pool.resize(small, 45), ["slow"]);
    assert_eq!((pool.used(), pool.release(slow)), (45, None));
    assert_eq!(pool.resize(small, 101), ["small"], "more than there is");
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_holder_counts_for_the_group_that_it_is_assigned_to() {
    let mut pool = Pool::new(3);
    let id = pool.take(("source", 1), "known", AtShare::EvictOldest).unwrap().0;
    assert_eq!(take(&mut pool, "source", 2, "silent1"), Some(vec![]));
    assert_eq!(take(&mut pool, "source", 3, "silent2"), Some(vec![]));
    pool.assign(id, "user");
    assert_eq!((pool.used_by(&"user"), pool.used_by(&"source")), (1, 2));
    assert_eq!(take(&mut pool, "source", 4, "silent3"), Some(vec!["silent1"]));
}

/// The evicted handle for a claim of one unit.
fn give_way(pool: &mut Pool, group: &'static str, member: u64, old: &[&str]) -> Option<&'static str> {
    let claim = ShareClaim { group: &group, member, units: 1, newest: 0 };
    pool.give_way(&claim, |handle| old.contains(handle))
}

#[test]
fn only_those_that_use_more_even_then_give_way() {
    let mut pool = Pool::new(u64::MAX);
    for (group, member, handle) in [("a", 1, "a1"), ("a", 1, "a2"), ("a", 2, "other"), ("b", 3, "b1")] {
        pool.add((group, member), 1, handle);
    }
    assert_eq!(give_way(&mut pool, "c", 9, &[]), Some("a1"), "3, 1 and the new one");
    assert_eq!(give_way(&mut pool, "c", 9, &[]), Some("a2"), "2, 1 and the new one: its members use 1 each");
    assert_eq!(give_way(&mut pool, "c", 9, &[]), None, "1, 1 and the new one");
}

#[test]
fn equals_give_way_when_they_are_old() {
    let mut pool = Pool::new(u64::MAX);
    for (group, member, handle) in [("a", 1, "a1"), ("b", 2, "b1")] {
        pool.add((group, member), 1, handle);
    }
    assert_eq!(give_way(&mut pool, "c", 9, &["b1"]), None, "the oldest is not old");
    assert_eq!(give_way(&mut pool, "a", 1, &["a1", "b1"]), None, "it uses as much");
    assert_eq!(
        give_way(&mut pool, "a", 2, &["a1", "b1"]),
        Some("a1"),
        "another connection behind one address"
    );
    assert_eq!(give_way(&mut pool, "c", 9, &["b1"]), Some("b1"));
}

#[test]
fn of_equals_the_oldest_of_the_newest_gives_way_to_a_claimant_without_any() {
    for is_one_group in [false, true] {
        let mut pool: FairShares<u64, u64> = FairShares::new(u64::MAX);
        let owner = |at: u64| if is_one_group { (0, at) } else { (at, 0) };
        let ids: Vec<HolderId> = (1..=6).map(|at| pool.add(owner(at), 1, at)).collect();
        let mut claim = |at, newest| {
            let (group, member) = owner(at);
            pool.give_way(&ShareClaim { group: &group, member, units: 1, newest }, |_| false)
        };
        assert_eq!(claim(9, 0), None);
        assert_eq!(claim(6, 2), None, "it has one");
        assert_eq!(claim(9, 2), Some(5));
        assert_eq!(claim(9, 2), Some(4), "5 is gone");
        assert_eq!(claim(9, 8), None, "there are not so many");
        pool.touch(ids[2], true);
        let mut claim = |at, newest| {
            let (group, member) = owner(at);
            pool.give_way(&ShareClaim { group: &group, member, units: 1, newest }, |_| false)
        };
        assert_eq!(claim(9, 2), Some(2), "3 is busy");
        assert_eq!(claim(9, 1), Some(6));
    }
}

#[test]
fn those_that_use_least_are_served_first() {
    let mut pool = Pool::new(u64::MAX);
    for (group, member, units, handle) in
        [("a", 1, 9, "large"), ("b", 2, 2, "b1"), ("c", 3, 1, "c1"), ("b", 4, 1, "b2"), ("d", 5, 1, "d1")]
    {
        pool.add((group, member), units, handle);
    }
    let served: Vec<_> = std::iter::from_fn(|| pool.pop_smallest()).collect();
    assert_eq!(served, ["c1", "d1", "b2", "b1", "large"]);
}

/// One request to a pool.
#[derive(Clone, Debug)]
enum Step {
    Take { group: u8, member: u64 },
    Resize { at: usize, units: u64 },
    Touch { at: usize, is_busy: bool },
    Assign { at: usize, group: u8 },
    Release { at: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..5u8, 0..3u64).prop_map(|(group, member)| Step::Take { group, member }),
        2 => (0..64usize, 1..8u64).prop_map(|(at, units)| Step::Resize { at, units }),
        1 => (0..64usize, any::<bool>()).prop_map(|(at, is_busy)| Step::Touch { at, is_busy }),
        1 => (0..64usize, 0..5u8).prop_map(|(at, group)| Step::Assign { at, group }),
        1 => (0..64usize).prop_map(|at| Step::Release { at }),
    ];
    prop::collection::vec(step, 1..200)
}

/// What the test knows of the holders, by the number that is their handle.
#[derive(Clone, Default)]
struct Known {
    holders: BTreeMap<u64, (HolderId, u8, u64)>,
}

impl Known {
    fn used_by(&self, group: u8) -> u64 {
        self.holders.values().filter(|(_, of, _)| *of == group).map(|(.., units)| units).sum()
    }

    fn used(&self) -> u64 {
        self.holders.values().map(|(.., units)| units).sum()
    }

    fn groups(&self) -> BTreeSet<u8> {
        self.holders.values().map(|(_, group, _)| *group).collect()
    }

    /// The property that everything rests on: who loses is the largest, so it is above its share.
    fn evict(&mut self, capacity: u64, evicted: &[u64]) {
        for number in evicted {
            let (_, group, _) = self.holders[number];
            let (used, groups) = (self.used_by(group), self.groups());
            assert!(self.used() > capacity, "evicted although there was room");
            assert!(
                used * groups.len() as u64 > capacity,
                "{group} lost {number} with {used}, below its share"
            );
            assert!(groups.iter().all(|other| self.used_by(*other) <= used), "another group used more");
            self.holders.remove(number);
        }
    }
}

fn run(capacity: u64, at_share: AtShare, steps: Vec<Step>) {
    let mut pool: FairShares<u8, u64> = FairShares::new(capacity);
    let (mut known, mut number) = (Known::default(), 0);
    for step in steps {
        let nth = |at: usize| known.holders.keys().nth(at % known.holders.len().max(1)).copied();
        match step {
            Step::Take { group, member } => {
                number += 1;
                let before = known.clone();
                // As if it were admitted, under an id that is known only afterwards.
                known.holders.insert(number, (HolderId(0), group, 1));
                match pool.take((group, member), number, at_share) {
                    Some((id, evicted)) => {
                        known.evict(capacity, evicted.as_slice());
                        known.holders.insert(number, (id, group, 1));
                    }
                    None => {
                        let share = capacity / known.groups().len() as u64;
                        assert!(known.used() > capacity, "refused although there was room");
                        assert!(known.used_by(group) > share, "refused below its share");
                        known = before;
                    }
                }
            }
            Step::Resize { at, units } => {
                let Some(number) = nth(at) else { continue };
                let holder = known.holders.get_mut(&number).unwrap();
                holder.2 = units;
                let evicted = pool.resize(holder.0, units);
                known.evict(capacity, &evicted);
            }
            Step::Touch { at, is_busy } => {
                if let Some(number) = nth(at) {
                    pool.touch(known.holders[&number].0, is_busy);
                }
            }
            Step::Assign { at, group } => {
                if let Some(number) = nth(at) {
                    pool.assign(known.holders[&number].0, group);
                    known.holders.get_mut(&number).unwrap().1 = group;
                }
            }
            Step::Release { at } => {
                if let Some(number) = nth(at) {
                    let (id, ..) = known.holders.remove(&number).unwrap();
                    assert_eq!(pool.release(id), Some(number));
                }
            }
        }
        assert!(pool.used() <= capacity);
        assert_eq!((pool.used(), pool.group_count()), (known.used(), known.groups().len()));
        for group in known.groups() {
            assert_eq!(pool.used_by(&group), known.used_by(group));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_group_below_its_share_is_evicted(capacity in 8..40u64, steps in steps()) {
        run(capacity, AtShare::EvictOldest, steps);
    }

    #[test]
    fn no_group_below_its_share_is_refused(capacity in 5..20u64, steps in steps()) {
        run(capacity, AtShare::Refuse, steps);
    }
}

/// A resource whose capacity is counted elsewhere, as the slots of requests are.
#[derive(Default)]
struct Slots {
    /// By number: group and member.
    held: BTreeMap<u64, (HolderId, u8, u64)>,
}

impl Slots {
    fn used_by(&self, group: u8) -> usize {
        self.held.values().filter(|(_, of, _)| *of == group).count()
    }

    fn used_by_member(&self, group: u8, member: u64) -> usize {
        self.held.values().filter(|(_, of, own)| (*of, *own) == (group, member)).count()
    }

    /// Groups that hold something or want to.
    fn groups(&self, claimant: u8) -> BTreeSet<u8> {
        self.held.values().map(|(_, group, _)| *group).chain([claimant]).collect()
    }
}

proptest! {
    #[test]
    fn no_group_below_its_share_gives_way(
        limit in 1usize..24,
        newest in 0usize..4,
        steps in prop::collection::vec((0u8..5, 0u64..4, 0u64..3, 0usize..64), 1..300),
    ) {
        let mut pool: FairShares<u8, u64> = FairShares::new(u64::MAX);
        let mut slots = Slots::default();
        for (number, (group, member, action, pick)) in steps.into_iter().enumerate() {
            let number = number as u64;
            if action == 0 && !slots.held.is_empty() {
                let at = *slots.held.keys().nth(pick % slots.held.len()).unwrap();
                let (id, ..) = slots.held.remove(&at).unwrap();
                prop_assert_eq!(pool.release(id), Some(at));
                continue;
            }
            // Work-conserving: with room, none is evicted.
            if pool.used() >= limit as u64 {
                let claim = ShareClaim { group: &group, member, units: 1, newest };
                let old = number.saturating_sub(pick as u64);
                let groups = slots.groups(group);
                let most = groups.iter().map(|group| slots.used_by(*group)).max().unwrap_or_default();
                let own = slots.used_by(group);
                let Some(evicted) = pool.give_way(&claim, |number| *number <= old) else {
                    prop_assert!(own + 1 >= most, "refused below the share: {} of {}", own, most);
                    continue;
                };
                let (_, of, of_member) = slots.held[&evicted];
                let (used, of_member) = (slots.used_by(of), slots.used_by_member(of, of_member));
                // The share of each of n is limit / n, and the largest is never below the mean.
                if of == group {
                    prop_assert!(slots.used_by_member(group, member) < of_member);
                    prop_assert!(own + 1 >= most, "another group holds more");
                } else {
                    prop_assert!(own < used);
                    prop_assert_eq!(used, most, "another group holds more");
                    prop_assert!(used * groups.len() >= limit, "a group below its share");
                }
                let members = (0..4).map(|member| slots.used_by_member(of, member));
                prop_assert_eq!(Some(of_member), members.max(), "another member holds more");
                slots.held.remove(&evicted);
            }
            slots.held.insert(number, (pool.add((group, member), 1, number), group, member));
            prop_assert_eq!(pool.used(), slots.held.len() as u64);
            prop_assert!(slots.held.len() <= limit);
        }
    }

    #[test]
    fn a_newcomer_gets_its_share_whatever_others_hold(
        limit in 4usize..64,
        others in prop::collection::vec((0u8..6, 0u64..4), 64),
    ) {
        let mut pool: FairShares<u8, bool> = FairShares::new(u64::MAX);
        for owner in others.into_iter().take(limit) {
            pool.add(owner, 1, false);
        }
        let claim = ShareClaim { group: &99, member: 1, units: 1, newest: 0 };
        let mut got = 0;
        while got < limit && let Some(is_own) = pool.give_way(&claim, |_| false) {
            prop_assert!(!is_own);
            pool.add((99, 1), 1, true);
            got += 1;
        }
        // Seven groups at most.
        prop_assert!(got >= limit / 7, "{} of {}", got, limit);
    }
}
