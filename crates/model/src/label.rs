//! Labels and selectors: sorted pairs, shared between objects with equal ones.

use std::fmt;
use std::sync::Arc;

use crate::name::Name;

/// A set of key-value pairs, sorted by key: labels, a selector, or the annotations that we read.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Labels(Option<Arc<Pairs>>);

/// Boxed once more, so that `Labels` has eight bytes.
type Pairs = Box<[(Name, Name)]>;

impl Labels {
    pub const EMPTY: Self = Self(None);

    /// Of two pairs with the same key, the later one wins.
    pub fn from_pairs(mut pairs: Vec<(Name, Name)>) -> Self {
        if pairs.is_empty() {
            return Self::EMPTY;
        }
        pairs.reverse();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|a, b| a.0 == b.0);
        Self(Some(Arc::new(pairs.into())))
    }

    /// Sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = &(Name, Name)> {
        self.as_slice().iter()
    }

    /// Sorted by key.
    pub fn as_slice(&self) -> &[(Name, Name)] {
        self.0.as_deref().map_or(&[], |pairs| pairs)
    }

    pub fn value(&self, key: &str) -> Option<&Name> {
        // Label sets are short: a scan is faster than a binary search.
        self.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// As a selector: whether `labels` contains every pair.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.iter().all(|(k, v)| labels.value(k) == Some(v))
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|pairs| Arc::strong_count(pairs) > 1)
    }
}

impl Default for Labels {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Labels {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        Self::from_pairs(pairs.into_iter().map(|(k, v)| (Name::new(k), Name::new(v))).collect())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(k, v)| (k, v))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_selects_supersets_of_itself() {
        let pod: Labels = [("tier", "front"), ("app", "web")].into_iter().collect();
        let selector: Labels = [("app", "web")].into_iter().collect();
        assert!(selector.selects(&pod));
        assert!(!pod.selects(&selector));
        assert!(Labels::EMPTY.selects(&pod));
    }

    #[test]
    fn the_later_of_two_equal_keys_counts() {
        let labels: Labels = [("a", "1"), ("a", "2")].into_iter().collect();
        assert_eq!(labels.as_slice().len(), 1);
        assert_eq!(labels.value("a").map(Name::as_str), Some("2"));
    }
}
