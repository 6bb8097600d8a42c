//! Sets of addresses as intervals.
//!
//! A band that is nearly full is one interval, so the next free address takes one look-up, and a /64 costs no more than
//! a /28.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::Family;

use super::ip_range::{Span, number};

/// A set of addresses of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressSet {
    v4: Intervals,
    v6: Intervals,
}

impl AddressSet {
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.intervals(Family::of(ip)).interval_of(number(ip)).is_some()
    }

    /// False if it was there.
    pub(super) fn insert(&mut self, ip: IpAddr) -> bool {
        self.intervals_mut(Family::of(ip)).insert(number(ip))
    }

    /// False if it was not there.
    pub(super) fn remove(&mut self, ip: IpAddr) -> bool {
        self.intervals_mut(Family::of(ip)).remove(number(ip))
    }

    /// The lowest number of the span that is not in the set.
    pub(super) fn first_missing(&self, span: Span) -> Option<u128> {
        self.intervals(span.family).first_missing(span.first, span.last)
    }

    /// How many addresses of the span are in the set.
    pub(super) fn count(&self, span: Span) -> u128 {
        self.intervals(span.family).count(span.first, span.last)
    }

    fn intervals(&self, family: Family) -> &Intervals {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn intervals_mut(&mut self, family: Family) -> &mut Intervals {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Adjacent intervals are merged, so that equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Intervals {
    last_by_first: BTreeMap<u128, u128>,
}

impl Intervals {
    /// First and last number of the interval that contains `n`.
    fn interval_of(&self, n: u128) -> Option<(u128, u128)> {
        let (first, last) = self.last_by_first.range(..=n).next_back()?;
        (n <= *last).then_some((*first, *last))
    }

    fn insert(&mut self, n: u128) -> bool {
        if self.interval_of(n).is_some() {
            return false;
        }
        let below = n.checked_sub(1).and_then(|below| self.interval_of(below));
        let above = n.checked_add(1).and_then(|above| self.last_by_first.remove(&above));
        self.last_by_first.insert(below.map_or(n, |(first, _)| first), above.unwrap_or(n));
        true
    }

    fn remove(&mut self, n: u128) -> bool {
        let Some((first, last)) = self.interval_of(n) else { return false };
        self.last_by_first.remove(&first);
        if first < n {
            self.last_by_first.insert(first, n - 1);
        }
        if n < last {
            self.last_by_first.insert(n + 1, last);
        }
        true
    }

    fn first_missing(&self, first: u128, last: u128) -> Option<u128> {
        let candidate = match self.interval_of(first) {
            Some((_, end)) => end.checked_add(1)?,
            None => first,
        };
        (candidate <= last).then_some(candidate)
    }

    fn count(&self, first: u128, last: u128) -> u128 {
        if first > last {
            return 0;
        }
        let reaching_in = self.interval_of(first).filter(|(start, _)| *start < first);
        let within = self.last_by_first.range(first..=last).map(|(start, end)| (*start, *end));
        let clipped = reaching_in.into_iter().chain(within);
        clipped.map(|(start, end)| end.min(last) - start.max(first) + 1).fold(0, u128::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn adjacent_intervals_merge_and_split() {
        let mut intervals = Intervals::default();
        for n in [1, 3, 2, u128::MAX, 0] {
            assert!(intervals.insert(n));
            assert!(!intervals.insert(n));
        }
        assert_eq!(intervals.last_by_first, BTreeMap::from([(0, 3), (u128::MAX, u128::MAX)]));
        assert_eq!(intervals.first_missing(0, 10), Some(4));
        assert_eq!(intervals.first_missing(u128::MAX, u128::MAX), None);
        assert!(intervals.remove(1) && !intervals.remove(1));
        assert_eq!(intervals.first_missing(0, 10), Some(1));
        assert_eq!(intervals.count(0, u128::MAX), 4);
    }

    proptest! {
        #[test]
        fn intervals_equal_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0u128..40), 0..120),
            first in 0u128..40,
            length in 0u128..40,
        ) {
            let (mut intervals, mut plain) = (Intervals::default(), BTreeSet::new());
            for (insert, n) in steps {
                if insert {
                    prop_assert_eq!(intervals.insert(n), plain.insert(n));
                } else {
                    prop_assert_eq!(intervals.remove(n), plain.remove(&n));
                }
            }
            let last = first + length;
            let held = plain.range(first..=last).count() as u128;
            prop_assert_eq!(intervals.count(first, last), held);
            prop_assert_eq!(intervals.first_missing(first, last), (first..=last).find(|n| !plain.contains(n)));
            let touching = intervals.last_by_first.values().filter(|last| plain.contains(&(**last + 1)));
            prop_assert_eq!(touching.count(), 0);
        }
    }
}
