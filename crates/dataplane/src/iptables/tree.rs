//! A tree over keys in steps of 4 bits, so that a packet passes few rules however many Services there are.
//!
//! ```text
//! KUBE-SERVICES --10.96.0.0/16--> KUBE-SVC-IP-0A60 --10.96.1.0/24--> KUBE-SVC-IP-0A6001 --> rules of up to 16 entries
//! ```
//!
//! It is a function of the set of keys: a step in which all keys agree is left out, and a part of up to [`FAN_OUT`]
//! entries is a list. So one more key changes the chains on its own way and no others.

/// Entries of a list, and branches of a chain.
pub const FAN_OUT: usize = 16;

/// A part of the tree: the entries whose keys begin with some steps.
#[derive(Clone, Copy, Debug)]
pub struct Subtree<'e, K, V> {
    /// Sorted by key.
    entries: &'e [(K, V)],
    /// Steps that all keys have in common with the branch that leads here.
    steps: usize,
}

/// What a subtree consists of.
#[derive(Debug)]
pub enum Branches<'e, K, V> {
    /// Few entries, or one key.
    List(&'e [(K, V)]),
    Parts(Vec<Subtree<'e, K, V>>),
}

impl<'e, K: AsRef<[u8]>, V> Subtree<'e, K, V> {
    /// The whole tree over entries that are sorted by key. Keys have the same length.
    pub fn new(entries: &'e [(K, V)]) -> Self {
        debug_assert!(entries.is_sorted_by(|a, b| a.0.as_ref() <= b.0.as_ref()), "entries are sorted");
        Self { entries, steps: 0 }
    }

    pub fn entries(&self) -> &'e [(K, V)] {
        self.entries
    }

    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The steps that lead here as hexadecimal digits.
    pub fn path(&self) -> String {
        let key = self.entries.first().map_or(&[][..], |(key, _)| key.as_ref());
        (0..self.steps)
            .map(|at| char::from_digit(u32::from(step(key, at)), 16))
            .map(|c| c.unwrap_or('0'))
            .collect::<String>()
            .to_uppercase()
    }

    pub fn branches(&self) -> Branches<'e, K, V> {
        let (Some((first, _)), Some((last, _))) = (self.entries.first(), self.entries.last()) else {
            return Branches::List(self.entries);
        };
        let (first, last) = (first.as_ref(), last.as_ref());
        let all = 2 * first.len();
        // Sorted: what the first and the last key share, all keys share.
        let common = (self.steps..all).find(|at| step(first, *at) != step(last, *at));
        let (Some(common), true) = (common, self.entries.len() > FAN_OUT) else {
            return Branches::List(self.entries);
        };
        let parts = self.entries.chunk_by(|a, b| step(a.0.as_ref(), common) == step(b.0.as_ref(), common));
        Branches::Parts(parts.map(|entries| Subtree { entries, steps: common + 1 }).collect())
    }
}

/// The 4 bits of a key at a step.
fn step(key: &[u8], at: usize) -> u8 {
    let byte = key.get(at / 2).copied().unwrap_or_default();
    if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Chains = BTreeMap<String, Vec<String>>;

    fn chains(keys: &[[u8; 4]]) -> Chains {
        fn add(part: &Subtree<'_, [u8; 4], ()>, all: &mut Chains) {
            let lines = match part.branches() {
                Branches::List(entries) => entries.iter().map(|(key, ())| format!("{key:?}")).collect(),
                Branches::Parts(parts) => {
                    parts.iter().for_each(|part| add(part, all));
                    parts.iter().map(Subtree::path).collect()
                }
            };
            all.insert(part.path(), lines);
        }
        let entries: Vec<([u8; 4], ())> = keys.iter().map(|key| (*key, ())).collect();
        let mut all = Chains::new();
        add(&Subtree::new(&entries), &mut all);
        all
    }

    #[test]
    fn few_keys_are_a_list_and_steps_in_common_are_left_out() {
        let few: Vec<[u8; 4]> = (0..16).map(|i| [10, 96, 0, i]).collect();
        assert_eq!(chains(&few).len(), 1);
        let more: Vec<[u8; 4]> = (0..17).map(|i| [10, 96, 0, i]).collect();
        let paths: Vec<String> = chains(&more).into_keys().collect();
        assert_eq!(paths, ["", "0A60000", "0A60001"]);
    }

    #[test]
    fn one_key_with_many_entries_is_a_list() {
        assert_eq!(chains(&[[1, 2, 3, 4]; 40]).len(), 1);
    }

    proptest! {
        #[test]
        fn one_more_key_changes_few_chains(
            keys in proptest::collection::btree_set(any::<[u8; 4]>().prop_map(|[a, b, c, d]| [10, 96 + a % 2, b % 4, c ^ d]), 1..400),
            new in any::<u8>(),
        ) {
            let before: Vec<[u8; 4]> = keys.iter().copied().collect();
            let mut after = keys.clone();
            after.insert([10, 96, 9, new]);
            let after: Vec<[u8; 4]> = after.into_iter().collect();
            let (before, after) = (chains(&before), chains(&after));
            let changed = after.iter().filter(|(path, lines)| before.get(*path) != Some(lines)).count();
            prop_assert!(changed <= FAN_OUT + 4, "{changed}");
            prop_assert!(after.values().all(|lines| lines.len() <= FAN_OUT));
        }
    }
}
