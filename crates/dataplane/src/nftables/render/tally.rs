//! How many elements and which classes the Services of a node need, without making any of them: sizes are declared
//! before the first element is.

use std::collections::BTreeMap;

use model::Family;
use model::forward::{EndpointSet, Frontend};

use super::class::Class;
use super::elements::{Fragment, Gatherer, SetOf, gather};
use super::slots::slot_count;
use crate::nftables::ir::{Element, Key};

/// What was counted.
#[derive(Default)]
pub(super) struct Tally {
    /// Elements that nobody else needs, of all Services so far. A list: there are few sets, and the same ones again and
    /// again.
    pub(super) counts: Vec<(SetOf, usize)>,
    /// By how many Services each class is used.
    pub(super) class_users: BTreeMap<(Family, Class), usize>,
    /// The classes of the Service at hand, each once.
    classes: Vec<(Family, Class)>,
    /// What may come more than once, of the Service at hand.
    others: Fragment,
}

impl Tally {
    /// Counts a Service. What others may need, too, comes back in full, each element once.
    pub(super) fn add(&mut self, frontends: &[Frontend]) -> Fragment {
        gather(self, frontends);
        for class in self.classes.drain(..) {
            *self.class_users.entry(class).or_default() += 1;
        }
        let mut others = std::mem::take(&mut self.others);
        others.tidy();
        others
    }

    fn count(&mut self, set: SetOf, how_many: usize) {
        match self.counts.iter_mut().find(|(known, _)| *known == set) {
            Some((_, count)) => *count += how_many,
            None => self.counts.push((set, how_many)),
        }
    }
}

impl Gatherer for Tally {
    fn class(&mut self, family: Family, class: Class) {
        if !self.classes.contains(&(family, class)) {
            self.classes.push((family, class));
        }
    }

    fn own(&mut self, set: SetOf, _: &Key, _: &Key, _: &[&str]) {
        self.count(set, 1);
    }

    fn endpoints(&mut self, set: SetOf, _: Key, endpoints: &EndpointSet) {
        self.count(set, slot_count(endpoints));
    }

    fn other(&mut self, set: SetOf, element: Element) {
        self.others.other(set, element);
    }
}
