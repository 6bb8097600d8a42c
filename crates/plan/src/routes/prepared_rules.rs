//! The rules of one policy, prepared independently of other policies, so that a change elsewhere does not repeat the work.
//!
//! ```text
//! policy -> PreparedRules: its rules as if it were the only policy -> merge_lists: rules with equal matches become one
//! ```
//!
//! Most rules have matches that no other policy has. Tables share them by pointer, so that a proxy recognises rules that
//! it has compiled before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use model::Notice;
use model::route::{HttpRule, RouteMatch, RouteRule, RuleOrigin};

use super::merge::{RuleSource, fill, merge};
use super::rule_action::RouteContext;

/// The rules of one list; no two have the same matches.
#[derive(Debug, Default)]
pub(super) struct PreparedRules {
    pub(super) rules: Vec<Arc<HttpRule>>,
    notices_by_rule: BTreeMap<usize, Vec<Notice>>,
}

impl PreparedRules {
    /// Rules that did not change are shared with `before`.
    pub(super) fn new(source: &RuleSource<'_>, context: &RouteContext<'_>, before: Option<&Self>) -> Self {
        let mut prepared = Self::default();
        for (rule, origin) in merge(std::slice::from_ref(source)) {
            let mut notices = Vec::new();
            let known = before.and_then(|before| before.at(origin.index));
            let rule = context.rule(rule, origin, &mut notices);
            if !notices.is_empty() {
                prepared.notices_by_rule.insert(prepared.rules.len(), notices);
            }
            prepared.rules.push(same_or_new(known, rule));
        }
        prepared
    }

    /// The rule with this index in the policy.
    fn at(&self, index: usize) -> Option<&Arc<HttpRule>> {
        let found = self.rules.binary_search_by_key(&index, |rule| rule.origin.index);
        found.ok().and_then(|at| self.rules.get(at))
    }
}

/// The parts of two lists between their common start and common end, compared by pointer.
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

/// The known rule if it is equal, so that it stays shared.
pub(super) fn same_or_new(known: Option<&Arc<HttpRule>>, rule: HttpRule) -> Arc<HttpRule> {
    known.filter(|known| ***known == rule).cloned().unwrap_or_else(|| Arc::new(rule))
}

/// A rule of a merged list: as prepared, or with parts of other policies.
struct MergedRule<'d> {
    rule: &'d Arc<HttpRule>,
    notices: &'d [Notice],
    merged: Option<(Arc<RouteRule>, RuleOrigin)>,
}

/// Merges lists, highest precedence first: the result of [`merge`] on their sources. `is_shared` tells whether several
/// lists may have the matches of a rule; `before` is the previous result.
pub(super) fn merge_lists<'d>(
    lists: impl Iterator<Item = &'d PreparedRules>,
    is_shared: impl Fn(&Arc<HttpRule>) -> bool,
    context: &RouteContext<'_>,
    before: &[Arc<HttpRule>],
) -> (Vec<Arc<HttpRule>>, Vec<Notice>) {
    let (mut rules, mut notices) = (Vec::new(), Vec::new());
    for (at, MergedRule { rule, notices: own, merged }) in merged(lists, is_shared).into_iter().enumerate() {
        let Some((rule, origin)) = merged else {
            notices.extend_from_slice(own);
            rules.push(rule.clone());
            continue;
        };
        rules.push(same_or_new(before.get(at), context.rule(rule, origin, &mut notices)));
    }
    (rules, notices)
}

// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
fn merged<'d>(
    lists: impl Iterator<Item = &'d PreparedRules>,
    is_shared: impl Fn(&Arc<HttpRule>) -> bool,
) -> Vec<MergedRule<'d>> {
    let mut merged: Vec<MergedRule<'d>> = Vec::new();
    let mut index_by_matches: BTreeMap<&[RouteMatch], usize> = BTreeMap::new();
    for list in lists {
        for (at, rule) in list.rules.iter().enumerate() {
            if is_shared(rule) {
                match index_by_matches.entry(&rule.rule.matches) {
                    Entry::Vacant(index) => drop(index.insert(merged.len())),
                    Entry::Occupied(index) => {
                        merged[*index.get()].inherit(rule);
                        continue;
                    }
                }
            }
            let notices = list.notices_by_rule.get(&at).map(Vec::as_slice).unwrap_or_default();
            merged.push(MergedRule { rule, notices, merged: None });
        }
    }
    merged
}

impl MergedRule<'_> {
    /// Inherits absent parts from a rule of lower precedence.
    fn inherit(&mut self, lower: &HttpRule) {
        let own = self.merged.as_ref().map_or(&self.rule.rule, |(rule, _)| rule);
        let lacks_filters = own.filters.is_none() && lower.rule.filters.is_some();
        let lacks_backends = own.backends.is_none() && lower.rule.backends.is_some();
        let is_changed = lower.rule.overrides.is_some() || !lower.rule.merge.is_empty();
        if lacks_filters || lacks_backends || is_changed {
            let HttpRule { rule, origin, .. } = &**self.rule;
            let (rule, origin) = self.merged.get_or_insert_with(|| (rule.clone(), origin.clone()));
            fill(rule, origin, &lower.rule, &lower.origin);
        }
    }
}

#[cfg(test)]
mod tests;
