//! The rules of a host whose matches occur in several policies: they are merged.
//!
//! Few are. Tracking them saves a lookup for each of ten thousand rules when one changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::HttpRule;

use super::super::prepared_rules::differing;

#[derive(Debug, Default)]
pub(super) struct SharedMatches {
    count_by_matches: BTreeMap<ByMatches, usize>,
    /// Those with a count above one.
    shared: BTreeSet<ByMatches>,
}

/// A rule, compared by its matches.
#[derive(Clone, Debug)]
struct ByMatches(Arc<HttpRule>);

impl Ord for ByMatches {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.rule.matches.cmp(&other.0.rule.matches)
    }
}

impl PartialOrd for ByMatches {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByMatches {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByMatches {}

impl SharedMatches {
    pub(super) fn replace(&mut self, old: &[Arc<HttpRule>], new: &[Arc<HttpRule>]) {
        let (old, new) = differing(old, new);
        old.iter().for_each(|rule| self.remove(rule));
        new.iter().for_each(|rule| self.add(rule));
    }

    fn add(&mut self, rule: &Arc<HttpRule>) {
        let key = ByMatches(rule.clone());
        let count = self.count_by_matches.entry(key.clone()).or_default();
        *count += 1;
        if *count == 2 {
            self.shared.insert(key);
        }
    }

    fn remove(&mut self, rule: &Arc<HttpRule>) {
        let key = ByMatches(rule.clone());
        let Some(count) = self.count_by_matches.get_mut(&key) else { return };
        *count -= 1;
        match *count {
            0 => drop(self.count_by_matches.remove(&key)),
            1 => drop(self.shared.remove(&key)),
            _ => {}
        }
    }

    /// Whether another rule has the same matches.
    pub(super) fn has(&self, rule: &Arc<HttpRule>) -> bool {
        !self.shared.is_empty() && self.shared.contains(&ByMatches(rule.clone()))
    }
}
