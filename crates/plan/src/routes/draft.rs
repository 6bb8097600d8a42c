//! The rules of one list made ready by themselves, so that a change elsewhere does not make them again.
//!
//! ```text
//! policy -> Draft: its rules as if there were no other policy -> join: those of a host, merged where matches meet
//! ```
//!
//! Most rules meet no other. Those go into every table as the very values that the draft holds, so whoever made
//! something of a rule sees by the pointer that it is the same.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use model::Notice;
use model::route::{HttpRule, Match, Rule, RuleOrigin};

use super::act::Setting;
use super::merge::{Source, fill, merge};

/// The rules of one list; no two have the same matches.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) rules: Vec<Arc<HttpRule>>,
    /// What there is to say about some of them.
    notices_by_place: BTreeMap<usize, Vec<Notice>>,
}

impl Draft {
    /// The rules of a list. Those that are as they were `before` are the same values.
    pub(super) fn new(source: &Source<'_>, setting: &Setting<'_>, before: Option<&Self>) -> Self {
        let mut draft = Self::default();
        for (rule, origin) in merge(std::slice::from_ref(source)) {
            let mut notices = Vec::new();
            let known = before.and_then(|before| before.at(origin.place));
            let rule = setting.rule(rule, origin, &mut notices);
            if !notices.is_empty() {
                draft.notices_by_place.insert(draft.rules.len(), notices);
            }
            draft.rules.push(same_or_new(known, rule));
        }
        draft
    }

    /// The rule that stood at a place of the list.
    fn at(&self, place: usize) -> Option<&Arc<HttpRule>> {
        let found = self.rules.binary_search_by_key(&place, |rule| rule.origin.place);
        found.ok().and_then(|at| self.rules.get(at))
    }
}

/// What differs in two lists: all but what both have at their ends, as the same values.
pub(super) fn differing<'r>(
    old: &'r [Arc<HttpRule>],
    new: &'r [Arc<HttpRule>],
) -> (&'r [Arc<HttpRule>], &'r [Arc<HttpRule>]) {
    let same = |(a, b): &(&Arc<HttpRule>, &Arc<HttpRule>)| Arc::ptr_eq(a, b);
    let first = old.iter().zip(new).take_while(same).count();
    let (old, new) = (&old[first..], &new[first..]);
    let last = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    (&old[..old.len() - last], &new[..new.len() - last])
}

/// What is known already, if it is the same.
pub(super) fn same_or_new(known: Option<&Arc<HttpRule>>, rule: HttpRule) -> Arc<HttpRule> {
    known.filter(|known| ***known == rule).cloned().unwrap_or_else(|| Arc::new(rule))
}

/// A rule on its way into a list: as drafted, or with parts of other policies.
struct Joined<'d> {
    rule: &'d Arc<HttpRule>,
    notices: &'d [Notice],
    merged: Option<(Arc<Rule>, RuleOrigin)>,
}

/// One list of several, that of highest precedence first: what [`merge`] of their sources would give. `may_meet` says
/// whether several may have a rule's matches; `before` is the list in whose place it comes.
pub(super) fn join<'d>(
    drafts: impl Iterator<Item = &'d Draft>,
    may_meet: impl Fn(&Arc<HttpRule>) -> bool,
    setting: &Setting<'_>,
    before: &[Arc<HttpRule>],
) -> (Vec<Arc<HttpRule>>, Vec<Notice>) {
    let (mut rules, mut notices) = (Vec::new(), Vec::new());
    for (at, Joined { rule, notices: told, merged }) in joined(drafts, may_meet).into_iter().enumerate() {
        let Some((rule, origin)) = merged else {
            notices.extend_from_slice(told);
            rules.push(rule.clone());
            continue;
        };
        rules.push(same_or_new(before.get(at), setting.rule(rule, origin, &mut notices)));
    }
    (rules, notices)
}

// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
fn joined<'d>(
    drafts: impl Iterator<Item = &'d Draft>,
    may_meet: impl Fn(&Arc<HttpRule>) -> bool,
) -> Vec<Joined<'d>> {
    let mut joined: Vec<Joined<'d>> = Vec::new();
    let mut place_by_matches: BTreeMap<&[Match], usize> = BTreeMap::new();
    for draft in drafts {
        for (at, rule) in draft.rules.iter().enumerate() {
            if may_meet(rule) {
                match place_by_matches.entry(&rule.rule.matches) {
                    Entry::Vacant(place) => drop(place.insert(joined.len())),
                    Entry::Occupied(place) => {
                        joined[*place.get()].take(rule);
                        continue;
                    }
                }
            }
            let notices = draft.notices_by_place.get(&at).map(Vec::as_slice).unwrap_or_default();
            joined.push(Joined { rule, notices, merged: None });
        }
    }
    joined
}

impl Joined<'_> {
    /// Takes over what it has not itself from a rule of lower precedence.
    fn take(&mut self, lower: &HttpRule) {
        let own = self.merged.as_ref().map_or(&self.rule.rule, |(rule, _)| rule);
        let lacks_filters = own.filters.is_none() && lower.rule.filters.is_some();
        let lacks_backends = own.backends.is_none() && lower.rule.backends.is_some();
        if lacks_filters || lacks_backends {
            let HttpRule { rule, origin, .. } = &**self.rule;
            let (rule, origin) = self.merged.get_or_insert_with(|| (rule.clone(), origin.clone()));
            fill(rule, origin, &lower.rule, &lower.origin);
        }
    }
}

#[cfg(test)]
mod tests;
