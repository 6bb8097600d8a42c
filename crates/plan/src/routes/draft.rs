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

/// The rules of one list.
#[derive(Debug, Default)]
pub(super) struct Draft {
    rules: Vec<Drafted>,
}

/// One rule, and what there is to say about it.
#[derive(Debug)]
struct Drafted {
    rule: Arc<HttpRule>,
    notices: Vec<Notice>,
}

impl Draft {
    /// The rules of a list. Those that are as they were `before` are the same values.
    pub(super) fn new(source: &Source<'_>, setting: &Setting<'_>, before: Option<&Self>) -> Self {
        let ready = |(rule, origin): (Rule, RuleOrigin)| {
            let mut notices = Vec::new();
            let known = before.and_then(|before| before.at(origin.place));
            let rule = setting.rule(rule, origin, &mut notices);
            Drafted { rule: same_or_new(known, rule), notices }
        };
        Self { rules: merge(std::slice::from_ref(source)).into_iter().map(ready).collect() }
    }

    /// Its rules; no two have the same matches.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Arc<HttpRule>> {
        self.rules.iter().map(|drafted| &drafted.rule)
    }

    /// The rule that stood at a place of the list.
    fn at(&self, place: usize) -> Option<&Arc<HttpRule>> {
        let found = self.rules.binary_search_by_key(&place, |drafted| drafted.rule.origin.place);
        found.ok().and_then(|at| self.rules.get(at)).map(|drafted| &drafted.rule)
    }
}

/// What is known already, if it is the same.
pub(super) fn same_or_new(known: Option<&Arc<HttpRule>>, rule: HttpRule) -> Arc<HttpRule> {
    known.filter(|known| ***known == rule).cloned().unwrap_or_else(|| Arc::new(rule))
}

/// A rule on its way into a list: as drafted, or with parts of other policies.
struct Joined<'d> {
    drafted: &'d Drafted,
    merged: Option<(Rule, RuleOrigin)>,
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
    for (at, Joined { drafted, merged }) in joined(drafts, may_meet).into_iter().enumerate() {
        let Some((rule, origin)) = merged else {
            notices.extend(drafted.notices.iter().cloned());
            rules.push(drafted.rule.clone());
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
    for drafted in drafts.flat_map(|draft| &draft.rules) {
        if may_meet(&drafted.rule) {
            match place_by_matches.entry(&drafted.rule.rule.matches) {
                Entry::Vacant(place) => drop(place.insert(joined.len())),
                Entry::Occupied(place) => {
                    joined[*place.get()].take(&drafted.rule);
                    continue;
                }
            }
        }
        joined.push(Joined { drafted, merged: None });
    }
    joined
}

impl Joined<'_> {
    /// Takes over what it has not itself from a rule of lower precedence.
    fn take(&mut self, lower: &HttpRule) {
        let own = self.merged.as_ref().map_or(&self.drafted.rule.rule, |(rule, _)| rule);
        let lacks_filters = own.filters.is_none() && lower.rule.filters.is_some();
        let lacks_backends = own.backends.is_none() && lower.rule.backends.is_some();
        if lacks_filters || lacks_backends {
            let HttpRule { rule, origin, .. } = &*self.drafted.rule;
            let (rule, origin) = self.merged.get_or_insert_with(|| (rule.clone(), origin.clone()));
            fill(rule, origin, &lower.rule, &lower.origin);
        }
    }
}

#[cfg(test)]
mod tests;
