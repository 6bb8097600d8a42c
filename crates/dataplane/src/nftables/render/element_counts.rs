//! Counts elements and classes without creating them: set sizes are declared before the first element.

use std::collections::BTreeMap;

use model::Family;
use model::forward::{EndpointSet, Frontend};

use super::chain_class::ChainClass;
use super::elements::{ElementSink, RenderedElements, SetOf, render_service};
use super::weighted_slots::slot_count;
use crate::nftables::ir::{Element, KeyBuilder};

/// Counts the elements and classes of Services.
#[derive(Default)]
pub(super) struct ElementCounter {
    /// Exclusive elements by set. A list: there are few sets.
    pub(super) counts: Vec<(SetOf, usize)>,
    /// Services per class.
    pub(super) class_users: BTreeMap<(Family, ChainClass), usize>,
    /// The classes of the current Service, each once.
    classes: Vec<(Family, ChainClass)>,
    /// The shared elements of the current Service.
    shared: RenderedElements,
}

impl ElementCounter {
    /// Counts a Service and returns its shared elements, each once.
    pub(super) fn add(&mut self, frontends: &[Frontend]) -> RenderedElements {
        render_service(self, frontends);
        for class in self.classes.drain(..) {
            *self.class_users.entry(class).or_default() += 1;
        }
        let mut shared = std::mem::take(&mut self.shared);
        shared.sort();
        shared
    }

    fn count(&mut self, set: SetOf, how_many: usize) {
        match self.counts.iter_mut().find(|(known, _)| *known == set) {
            Some((_, count)) => *count += how_many,
            None => self.counts.push((set, how_many)),
        }
    }
}

impl ElementSink for ElementCounter {
    fn class(&mut self, family: Family, class: ChainClass) {
        if !self.classes.contains(&(family, class)) {
            self.classes.push((family, class));
        }
    }

    fn exclusive(&mut self, set: SetOf, _: &KeyBuilder, _: &KeyBuilder, _: &[&str]) {
        self.count(set, 1);
    }

    fn endpoints(&mut self, set: SetOf, _: KeyBuilder, endpoints: &EndpointSet) {
        self.count(set, slot_count(endpoints));
    }

    fn shared(&mut self, set: SetOf, element: Element) {
        self.shared.shared(set, element);
    }
}
