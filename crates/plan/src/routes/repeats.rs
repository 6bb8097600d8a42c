//! Rules of a policy that no request can hit: an earlier rule of the same list has their matches, or takes everything
//! before a pattern is asked. They are valid and do nothing, which is told rather than refused (semantics 1.4, 1.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use model::route::{Conditions, Match, PathMatch, Rule};
use model::{Name, Notice, Object, ObjectRef, Snapshot};

/// The word for it.
const NEVER_MATCHES: &str = "RuleNeverMatches";

/// Everything in a route policy that no request can hit, with the rule that goes before it.
pub fn never_matching(object: &Object) -> Vec<Notice> {
    match object {
        Object::HttpRoute(route) => {
            let lists = route.to.iter().enumerate();
            let lists = lists.map(|(i, to)| (format!("spec.to[{i}].rules"), &to.rules));
            lists.flat_map(|(field, rules)| in_list(&route.object(), &field, rules)).collect()
        }
        Object::GatewayHttpRoute(route) => in_list(&route.object(), "spec.rules", &route.rules),
        _ => Vec::new(),
    }
}

/// The same for all policies of a namespace.
pub fn never_matching_within(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices = Vec::new();
    for route in snapshot.http_routes(namespace) {
        for (i, to) in route.to.iter().enumerate() {
            notices.extend(in_list(&route.object(), &format!("spec.to[{i}].rules"), &to.rules));
        }
    }
    for route in snapshot.gateway_http_routes(namespace) {
        notices.extend(in_list(&route.object(), "spec.rules", &route.rules));
    }
    notices
}

// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
fn in_list(policy: &ObjectRef, field: &str, rules: &[Arc<Rule>]) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut tell = |message: String| notices.push(Notice::new(policy.clone(), NEVER_MATCHES, message));
    let mut rule_by_matches: BTreeMap<&[Match], usize> = BTreeMap::new();
    let mut place_by_match: BTreeMap<Match, (usize, usize)> = BTreeMap::new();
    for (i, rule) in rules.iter().enumerate() {
        let first = *rule_by_matches.entry(&rule.matches).or_insert(i);
        if first != i {
            tell(same_matches(field, rules, first, i));
            continue;
        }
        for (j, on) in rule.matches.iter().enumerate() {
            let (first, other) = *place_by_match.entry(normal(on)).or_insert((i, j));
            if (first, other) != (i, j) {
                tell(format!(
                    "{field}[{i}].matches[{j}] is the same as {field}[{first}].matches[{other}], which goes first, so no request hits it; delete it, or change one of the two"
                ));
            }
        }
    }
    let everything = place_by_match.iter().find(|(on, _)| on.is_everything()).map(|(_, place)| *place);
    if let Some((first, other)) = everything {
        for (on, (i, j)) in &place_by_match {
            if matches!(on.path, Some(PathMatch::Regex(_))) {
                tell(format!(
                    "{field}[{i}].matches[{j}] is a pattern, and patterns are asked after prefixes: {field}[{first}].matches[{other}] is the prefix / and takes every request first; write that one as the pattern /.*, or delete it"
                ));
            }
        }
    }
    notices
}

fn same_matches(field: &str, rules: &[Arc<Rule>], first: usize, second: usize) -> String {
    let part = |part: fn(&Rule) -> bool| {
        let is_said = rules[..second].iter().any(|r| r.matches == rules[second].matches && part(r));
        part(&rules[second]) && !is_said
    };
    let filters = part(|rule| rule.filters.is_some());
    let backends = part(|rule| rule.backends.is_some());
    let effect = match (filters, backends) {
        (true, true) => "both are one rule",
        (true, false) => "only its filters count",
        (false, true) => "only its backendRefs count",
        (false, false) => "it does nothing",
    };
    format!(
        "{field}[{second}] has the same matches as {field}[{first}], which goes first, so {effect}; join the two, delete one, or change its matches"
    )
}

/// A match as what it asks: without the header matches that do not count, and in no order.
fn normal(on: &Match) -> Match {
    let mut headers: Vec<_> = Vec::new();
    for header in &on.conditions.headers {
        if !headers.iter().any(|known: &model::route::HeaderMatch| known.name == header.name) {
            headers.push(header.clone());
        }
    }
    headers.sort();
    let mut query = on.conditions.query.to_vec();
    query.sort();
    let method = on.conditions.method.clone();
    Match {
        path: Some(on.full_path()),
        conditions: Conditions { method, headers: headers.into(), query: query.into() },
    }
}
