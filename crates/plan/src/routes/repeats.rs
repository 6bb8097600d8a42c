//! Rules of a policy that no request can hit: an earlier rule of the same list has their matches, or takes everything
//! before a pattern is asked. They are valid and do nothing, which is told rather than refused (semantics 1.4, 1.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use model::route::{Conditions, HttpRoute, Match, PathMatch, Rule, TcpRoute};
use model::{Name, Notice, Object, ObjectRef, ServiceKey, Snapshot};

/// The word for it.
const NEVER_MATCHES: &str = "RuleNeverMatches";

/// Everything in a route policy that no request can hit, with the rule that goes before it.
pub fn never_matching(object: &Object) -> Vec<Notice> {
    match object {
        Object::HttpRoute(route) => of_http(route),
        Object::GatewayHttpRoute(route) => in_list(&route.object(), &places("spec.rules", &route.rules)),
        Object::TcpRoute(route) => of_tcp(route),
        _ => Vec::new(),
    }
}

/// The same for all policies of a namespace.
pub fn never_matching_within(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices: Vec<Notice> = snapshot.http_routes(namespace).flat_map(of_http).collect();
    let gateways = snapshot.gateway_http_routes(namespace);
    notices.extend(gateways.flat_map(|r| in_list(&r.object(), &places("spec.rules", &r.rules))));
    notices.extend(snapshot.tcp_routes(namespace).flat_map(of_tcp));
    notices
}

/// A rule with the field where it stands.
type Placed<'r> = (String, &'r Rule);

fn places<'r>(field: &str, rules: &'r [Arc<Rule>]) -> Vec<Placed<'r>> {
    rules.iter().enumerate().map(|(i, rule)| (format!("{field}[{i}]"), &**rule)).collect()
}

fn of_http(route: &HttpRoute) -> Vec<Notice> {
    let mut rules_by_service: BTreeMap<&ServiceKey, Vec<Placed<'_>>> = BTreeMap::new();
    // Semantics 1.3: within one policy, lower entries override upper ones.
    for (i, to) in route.to.iter().enumerate().rev() {
        let list = rules_by_service.entry(&to.service).or_default();
        list.extend(places(&format!("spec.to[{i}].rules"), &to.rules));
    }
    rules_by_service.values().flat_map(|rules| in_list(&route.object(), rules)).collect()
}

/// Of entries for one Service, and of those behind a gateway, the last one counts.
fn of_tcp(route: &TcpRoute) -> Vec<Notice> {
    let mut last_by_service: BTreeMap<Option<&ServiceKey>, usize> = BTreeMap::new();
    let mut notices = Vec::new();
    for (i, to) in route.to.iter().enumerate().rev() {
        let last = *last_by_service.entry(to.service.as_ref()).or_insert(i);
        if last != i {
            let message = format!(
                "spec.to[{i}] is for the same destination as spec.to[{last}], which goes first, so it does nothing; delete one of the two"
            );
            notices.push(Notice::new(route.object(), NEVER_MATCHES, message));
        }
    }
    notices
}

/// `rules` has those that go first in front.
// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
fn in_list(policy: &ObjectRef, rules: &[Placed<'_>]) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut tell = |message: String| notices.push(Notice::new(policy.clone(), NEVER_MATCHES, message));
    let mut rule_by_matches: BTreeMap<&[Match], usize> = BTreeMap::new();
    let mut place_by_match: BTreeMap<Match, (usize, usize)> = BTreeMap::new();
    let place = |(i, j): (usize, usize)| format!("{}.matches[{j}]", rules[i].0);
    for (i, (_, rule)) in rules.iter().enumerate() {
        let first = *rule_by_matches.entry(&rule.matches).or_insert(i);
        if first != i {
            tell(same_matches(rules, first, i));
            continue;
        }
        for (j, on) in rule.matches.iter().enumerate() {
            let first = *place_by_match.entry(normal(on)).or_insert((i, j));
            if first != (i, j) {
                let (own, first) = (place((i, j)), place(first));
                tell(format!(
                    "{own} is the same as {first}, which goes first, so no request hits it; delete it, or change one of the two"
                ));
            }
        }
    }
    let everything = place_by_match.iter().find(|(on, _)| on.is_everything()).map(|(_, at)| place(*at));
    if let Some(first) = everything {
        for (on, at) in &place_by_match {
            if matches!(on.path, Some(PathMatch::Regex(_))) {
                let own = place(*at);
                tell(format!(
                    "{own} is a pattern, and patterns are asked after prefixes: {first} is the prefix / and takes every request first; write that one as the pattern /.*, or delete it"
                ));
            }
        }
    }
    notices
}

fn same_matches(rules: &[Placed<'_>], first: usize, second: usize) -> String {
    let (own, rule) = &rules[second];
    let part = |part: fn(&Rule) -> bool| {
        let is_said = rules[..second].iter().any(|(_, r)| r.matches == rule.matches && part(r));
        part(rule) && !is_said
    };
    let filters = part(|rule| rule.filters.is_some());
    let backends = part(|rule| rule.backends.is_some());
    let effect = match (filters, backends) {
        (true, true) => "both are one rule",
        (true, false) => "only its filters count",
        (false, true) => "only its backendRefs count",
        (false, false) => "it does nothing",
    };
    let first = &rules[first].0;
    format!(
        "{own} has the same matches as {first}, which goes first, so {effect}; join the two, delete one, or change its matches"
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
