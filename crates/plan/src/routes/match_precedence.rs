//! The precedence of matches (semantics 1.5): a request takes the first that matches.

use std::cmp::Reverse;
use std::sync::Arc;

use model::route::{HttpRule, MatchEntry, PathMatch};

/// Every match of every rule in order of precedence: exact paths, then prefixes, then patterns, longer ones first; then
/// those with a method, with more headers, with more query parameters; equals in merge order. The catch-all rule comes
/// last, after patterns.
pub(crate) fn entries(rules: &[Arc<HttpRule>]) -> Vec<MatchEntry> {
    let mut entries: Vec<MatchEntry> = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let alternatives = rule.rule.matches.iter().enumerate();
        entries.extend(alternatives.map(|(j, on)| rule.entry(i, j, on)));
    }
    entries.sort_by_cached_key(|entry| {
        let rule = rules.get(entry.rule);
        // A method of any service is more specific than every method.
        let is_grpc =
            rule.and_then(|rule| rule.origin.policy.as_ref()).is_some_and(|o| o.kind == "GRPCRoute");
        let (kind, length) = match &entry.path {
            PathMatch::Prefix(value) if is_grpc && value == "/" => (3, 0),
            PathMatch::Exact(_) => (0, 0),
            PathMatch::Prefix(value) => (1, value.len()),
            PathMatch::Regex(pattern) => (2, pattern.as_str().len()),
        };
        let conditions = &entry.conditions;
        let (headers, query) = (conditions.headers.len(), conditions.query.len());
        let is_implied = rule.is_some_and(|rule| rule.is_implied());
        (
            is_implied,
            !is_grpc,
            kind,
            Reverse(length),
            conditions.method.is_none(),
            Reverse(headers),
            Reverse(query),
        )
    });
    entries
}
