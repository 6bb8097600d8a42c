//! Merges the rules of several policies into one list (seed 004, "Merging behavior").
//!
//! Rules with the same matches become one rule. Its filters and its backends each come from the policy of highest precedence
//! that has them: an absent list inherits, an empty list clears. `override` reverses that: the policy of lowest precedence
//! that has one decides. Filters of `merge` are added, those of policies of lower precedence first.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::ObjectRef;
use model::route::{RouteMatch, RouteRule, RuleOrigin};

/// One list of rules and where it comes from.
#[derive(Clone, Debug)]
pub struct RuleSource<'a> {
    pub policy: ObjectRef,
    /// The field of the list, e.g. `spec.to[0].rules`.
    pub field: String,
    pub rules: &'a [Arc<RouteRule>],
}

/// The effective rules with the origin of each part. `sources` are in order of precedence, highest first, and so is the
/// result: all rules of the first source in their order, then the remaining ones of the next.
// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
pub fn merge(sources: &[RuleSource<'_>]) -> Vec<(Arc<RouteRule>, RuleOrigin)> {
    let mut merged: Vec<(Arc<RouteRule>, RuleOrigin)> = Vec::new();
    let mut place_by_matches: BTreeMap<&[RouteMatch], usize> = BTreeMap::new();
    for source in sources {
        for (i, rule) in source.rules.iter().enumerate() {
            let place = *place_by_matches.entry(&rule.matches).or_insert(merged.len());
            let overrides = rule.overrides.as_deref();
            let own = RuleOrigin {
                filters: rule.filters.as_ref().map(|_| source.policy.clone()),
                backends: rule.backends.as_ref().map(|_| source.policy.clone()),
                filters_override: overrides
                    .and_then(|part| part.filters.as_ref())
                    .map(|_| source.policy.clone()),
                backends_override: overrides
                    .and_then(|part| part.backends.as_ref())
                    .map(|_| source.policy.clone()),
                merged: rule.merge.iter().map(|_| source.policy.clone()).collect(),
                ..RuleOrigin::default()
            };
            if let Some((whole, origin)) = merged.get_mut(place) {
                fill(whole, origin, rule, &own);
                continue;
            }
            let (policy, field) = (Some(source.policy.clone()), format!("{}[{i}]", source.field));
            merged.push((rule.clone(), RuleOrigin { policy, field, index: i, ..own }));
        }
    }
    merged
}

/// Fills in absent parts from a rule of lower precedence.
pub(super) fn fill(rule: &mut Arc<RouteRule>, origin: &mut RuleOrigin, lower: &RouteRule, from: &RuleOrigin) {
    if rule.filters.is_none() && lower.filters.is_some() {
        Arc::make_mut(rule).filters = lower.filters.clone();
        origin.filters = from.filters.clone();
    }
    if rule.backends.is_none() && lower.backends.is_some() {
        Arc::make_mut(rule).backends = lower.backends.clone();
        origin.backends = from.backends.clone();
    }
    if let Some(lower) = &lower.overrides {
        let own = Arc::make_mut(rule).overrides.get_or_insert_default();
        if lower.filters.is_some() {
            own.filters.clone_from(&lower.filters);
            origin.filters_override.clone_from(&from.filters_override);
        }
        if lower.backends.is_some() {
            own.backends.clone_from(&lower.backends);
            origin.backends_override.clone_from(&from.backends_override);
        }
    }
    if !lower.merge.is_empty() {
        let own = Arc::make_mut(rule);
        own.merge = lower.merge.iter().chain(&own.merge).cloned().collect();
        origin.merged = from.merged.iter().chain(&origin.merged).cloned().collect();
    }
}
