//! The order in which matches are asked (semantics 1.5): the first that holds wins.

use std::cmp::Reverse;
use std::sync::Arc;

use model::route::{Entry, HttpRule, PathMatch};

/// Every alternative of every rule, in order: exact paths, then prefixes and then patterns with longer ones first,
/// then those with a method, with more headers, with more query parameters, and among equals as merged. The rule that
/// no policy wrote is behind all of them, patterns included: it is for what no rule takes.
pub(super) fn entries(rules: &[Arc<HttpRule>]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let alternatives = rule.rule.matches.iter().enumerate();
        entries.extend(alternatives.map(|(j, on)| rule.entry(i, j, on)));
    }
    entries.sort_by_cached_key(|entry| {
        let (kind, length) = match &entry.path {
            PathMatch::Exact(_) => (0, 0),
            PathMatch::Prefix(value) => (1, value.len()),
            PathMatch::Regex(pattern) => (2, pattern.as_str().len()),
        };
        let conditions = &entry.conditions;
        let (headers, query) = (conditions.headers.len(), conditions.query.len());
        let is_implied = rules.get(entry.rule).is_some_and(|rule| rule.is_implied());
        (is_implied, kind, Reverse(length), conditions.method.is_none(), Reverse(headers), Reverse(query))
    });
    entries
}
