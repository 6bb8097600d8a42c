//! Sets of addresses, held as runs of neighbours.
//!
//! A band that is nearly full is one long run: the free address behind it is one look-up away, however many
//! addresses are taken, and a /64 costs no more than a /28.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::Family;

use super::range::{Span, number};

/// A set of addresses of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressSet {
    v4: Runs,
    v6: Runs,
}

impl AddressSet {
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.runs(Family::of(ip)).run_with(number(ip)).is_some()
    }

    /// Puts an address in; false if it was there.
    pub(super) fn insert(&mut self, ip: IpAddr) -> bool {
        self.runs_mut(Family::of(ip)).insert(number(ip))
    }

    /// Takes an address out; false if it was not there.
    pub(super) fn remove(&mut self, ip: IpAddr) -> bool {
        self.runs_mut(Family::of(ip)).remove(number(ip))
    }

    /// The lowest number of the span that is not in the set.
    pub(super) fn first_missing(&self, span: Span) -> Option<u128> {
        self.runs(span.family).first_missing(span.first, span.last)
    }

    /// How many addresses of the span are in the set.
    pub(super) fn count(&self, span: Span) -> u128 {
        self.runs(span.family).count(span.first, span.last)
    }

    fn runs(&self, family: Family) -> &Runs {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn runs_mut(&mut self, family: Family) -> &mut Runs {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Runs never touch: neighbours are one run, so that equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Runs {
    last_by_first: BTreeMap<u128, u128>,
}

impl Runs {
    /// First and last of the run that `n` is in.
    fn run_with(&self, n: u128) -> Option<(u128, u128)> {
        let (first, last) = self.last_by_first.range(..=n).next_back()?;
        (n <= *last).then_some((*first, *last))
    }

    fn insert(&mut self, n: u128) -> bool {
        if self.run_with(n).is_some() {
            return false;
        }
        let below = n.checked_sub(1).and_then(|below| self.run_with(below));
        let above = n.checked_add(1).and_then(|above| self.last_by_first.remove(&above));
        self.last_by_first.insert(below.map_or(n, |(first, _)| first), above.unwrap_or(n));
        true
    }

    fn remove(&mut self, n: u128) -> bool {
        let Some((first, last)) = self.run_with(n) else { return false };
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
        let candidate = match self.run_with(first) {
            Some((_, end)) => end.checked_add(1)?,
            None => first,
        };
        (candidate <= last).then_some(candidate)
    }

    fn count(&self, first: u128, last: u128) -> u128 {
        if first > last {
            return 0;
        }
        let reaching_in = self.run_with(first).filter(|(start, _)| *start < first);
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
    fn neighbours_join_and_part_again() {
        let mut runs = Runs::default();
        for n in [1, 3, 2, u128::MAX, 0] {
            assert!(runs.insert(n));
            assert!(!runs.insert(n));
        }
        assert_eq!(runs.last_by_first, BTreeMap::from([(0, 3), (u128::MAX, u128::MAX)]));
        assert_eq!(runs.first_missing(0, 10), Some(4));
        assert_eq!(runs.first_missing(u128::MAX, u128::MAX), None);
        assert!(runs.remove(1) && !runs.remove(1));
        assert_eq!(runs.first_missing(0, 10), Some(1));
        assert_eq!(runs.count(0, u128::MAX), 4);
    }

    proptest! {
        #[test]
        fn runs_hold_what_a_plain_set_holds(
            steps in prop::collection::vec((any::<bool>(), 0u128..40), 0..120),
            first in 0u128..40,
            length in 0u128..40,
        ) {
            let (mut runs, mut plain) = (Runs::default(), BTreeSet::new());
            for (insert, n) in steps {
                if insert {
                    prop_assert_eq!(runs.insert(n), plain.insert(n));
                } else {
                    prop_assert_eq!(runs.remove(n), plain.remove(&n));
                }
            }
            let last = first + length;
            let held = plain.range(first..=last).count() as u128;
            prop_assert_eq!(runs.count(first, last), held);
            prop_assert_eq!(runs.first_missing(first, last), (first..=last).find(|n| !plain.contains(n)));
            let touching = runs.last_by_first.values().filter(|last| plain.contains(&(**last + 1)));
            prop_assert_eq!(touching.count(), 0);
        }
    }
}
