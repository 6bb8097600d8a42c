//! Rules of several policies -> one list (seed 004, "Merging behavior").
//!
//! Rules with the same matches are one rule. Of each of its parts, filters and backends, the policy of highest
//! precedence that has it decides: absent keeps what a lower one says, an empty list clears it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::ObjectRef;
use model::route::{Match, Rule, RuleOrigin};

/// One list of rules with its place.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The policy.
    pub policy: ObjectRef,
    /// Where the list stands in it, as `spec.to[0].rules`.
    pub field: String,
    /// The rules.
    pub rules: &'a [Arc<Rule>],
}

/// The effective rules, with where each part comes from. `sources` has the highest precedence first; so has the
/// result: all rules of the first source in their own order, then what is left of the next.
// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
pub fn merge(sources: &[Source<'_>]) -> Vec<(Arc<Rule>, RuleOrigin)> {
    let mut merged: Vec<(Arc<Rule>, RuleOrigin)> = Vec::new();
    let mut place_by_matches: BTreeMap<&[Match], usize> = BTreeMap::new();
    for source in sources {
        for (i, rule) in source.rules.iter().enumerate() {
            let place = *place_by_matches.entry(&rule.matches).or_insert(merged.len());
            let own = RuleOrigin {
                filters: rule.filters.as_ref().map(|_| source.policy.clone()),
                backends: rule.backends.as_ref().map(|_| source.policy.clone()),
                ..RuleOrigin::default()
            };
            if let Some((whole, origin)) = merged.get_mut(place) {
                fill(whole, origin, rule, &own);
                continue;
            }
            let (policy, field) = (Some(source.policy.clone()), format!("{}[{i}]", source.field));
            merged.push((rule.clone(), RuleOrigin { policy, field, place: i, ..own }));
        }
    }
    merged
}

/// Gives a rule those parts of one of lower precedence that it has not.
pub(super) fn fill(rule: &mut Arc<Rule>, origin: &mut RuleOrigin, lower: &Rule, from: &RuleOrigin) {
    if rule.filters.is_none() && lower.filters.is_some() {
        Arc::make_mut(rule).filters = lower.filters.clone();
        origin.filters = from.filters.clone();
    }
    if rule.backends.is_none() && lower.backends.is_some() {
        Arc::make_mut(rule).backends = lower.backends.clone();
        origin.backends = from.backends.clone();
    }
}
