//! The header changes of a rule, from all its filters.
//!
//! Removals come first, then headers that are set or added, in the order of the filters. This is Envoy's order
//! (semantics 1.7), so that a policy means the same in both proxies.

use crate::name::Name;
use crate::route::rule::HeaderModifier;

/// Headers to remove, then headers to set or add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// In lower case.
    pub remove: Box<[Name]>,
    /// In order.
    pub put: Box<[HeaderChange]>,
}

/// A header to set or add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChange {
    /// As the policy spells it.
    pub name: Name,
    pub value: Name,
    /// Whether existing values stay.
    pub append: bool,
}

impl HeaderChanges {
    /// The changes of several filters.
    pub fn new<'m>(modifiers: impl IntoIterator<Item = &'m HeaderModifier>) -> Self {
        let (mut remove, mut put) = (Vec::new(), Vec::new());
        for modifier in modifiers {
            remove.extend(modifier.remove.iter().map(|name| Name::new(&name.to_ascii_lowercase())));
            let change = |append| {
                move |(name, value): &(Name, Name)| HeaderChange {
                    name: name.clone(),
                    value: value.clone(),
                    append,
                }
            };
            put.extend(modifier.set.iter().map(change(false)));
            put.extend(modifier.add.iter().map(change(true)));
        }
        Self { remove: remove.into(), put: put.into() }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.put.is_empty()
    }

    /// Applies the changes to a list of headers.
    pub fn apply(&self, headers: &mut Vec<(Name, Name)>) {
        headers.retain(|(name, _)| !self.remove.iter().any(|gone| name.eq_ignore_ascii_case(gone)));
        for change in &self.put {
            if !change.append {
                headers.retain(|(name, _)| !name.eq_ignore_ascii_case(&change.name));
            }
            headers.push((change.name.clone(), change.value.clone()));
        }
    }
}
