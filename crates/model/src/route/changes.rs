//! Header changes of a rule, all filters together.
//!
//! Every removal goes first, then everything that is set or added in the order of the filters: so does Envoy
//! (semantics 1.7), and one policy must mean the same whoever carries the request.

use crate::name::Name;
use crate::route::rule::HeaderModifier;

/// What is removed, then what is put in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Names that go, in lower case.
    pub remove: Box<[Name]>,
    /// What is put in, in order.
    pub put: Box<[HeaderChange]>,
}

/// One header that is put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChange {
    /// The name, as the policy spells it.
    pub name: Name,
    /// The value.
    pub value: Name,
    /// Whether what is there stays.
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

    /// Makes the changes on a list of headers.
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
