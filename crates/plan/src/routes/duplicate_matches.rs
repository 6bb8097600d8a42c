//! Rules of a policy that never match: another rule with the same matches has precedence, or a prefix `/` matches every
//! request before a pattern is tested. They are valid, so they become Notices (semantics 1.4, 1.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use model::route::{MatchConditions, MeshHttpRoute, MeshTcpRoute, PathMatch, RouteMatch, RouteRule};
use model::{Name, Notice, Object, ObjectRef, ServiceKey, Snapshot};

const NEVER_MATCHES: &str = "RuleNeverMatches";

/// A Notice for every rule and match of a policy that never matches.
pub fn never_matching(object: &Object) -> Vec<Notice> {
    match object {
        Object::MeshHttpRoute(route) => of_http(route),
        Object::MeshGatewayHttpRoute(route) => in_list(&route.object(), &places("spec.rules", &route.rules)),
        Object::MeshTcpRoute(route) => of_tcp(route),
        _ => Vec::new(),
    }
}

/// The same for all policies of a namespace.
pub fn never_matching_within(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices: Vec<Notice> = snapshot.mesh_http_routes(namespace).flat_map(of_http).collect();
    let gateways = snapshot.mesh_gateway_http_routes(namespace);
    notices.extend(gateways.flat_map(|r| in_list(&r.object(), &places("spec.rules", &r.rules))));
    notices.extend(snapshot.mesh_tcp_routes(namespace).flat_map(of_tcp));
    notices
}

/// A rule with its field.
type Placed<'r> = (String, &'r RouteRule);

fn places<'r>(field: &str, rules: &'r [Arc<RouteRule>]) -> Vec<Placed<'r>> {
    rules.iter().enumerate().map(|(i, rule)| (format!("{field}[{i}]"), &**rule)).collect()
}

fn of_http(route: &MeshHttpRoute) -> Vec<Notice> {
    let mut rules_by_service: BTreeMap<&ServiceKey, Vec<Placed<'_>>> = BTreeMap::new();
    // Semantics 1.3: within one policy, lower entries override upper ones.
    for (i, to) in route.to.iter().enumerate().rev() {
        let list = rules_by_service.entry(&to.service).or_default();
        list.extend(places(&format!("spec.to[{i}].rules"), &to.rules));
    }
    rules_by_service.values().flat_map(|rules| in_list(&route.object(), rules)).collect()
}

/// Of entries for one Service, and of those behind a gateway, the last one counts.
fn of_tcp(route: &MeshTcpRoute) -> Vec<Notice> {
    let mut last_by_service: BTreeMap<Option<&ServiceKey>, usize> = BTreeMap::new();
    let mut notices = Vec::new();
    for (i, to) in route.to.iter().enumerate().rev() {
        let last = *last_by_service.entry(to.service.as_ref()).or_insert(i);
        if last != i {
            let message = format!(
                "spec.to[{i}] has the same destination as spec.to[{last}], which has precedence, so it has no effect; delete one of the two"
            );
            notices.push(Notice::new(route.object(), NEVER_MATCHES, message));
        }
    }
    notices
}

/// `rules` are in order of precedence.
// Patterns are compared by their text; the caches inside their engines are not part of the key.
#[allow(clippy::mutable_key_type)]
fn in_list(policy: &ObjectRef, rules: &[Placed<'_>]) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut report = |message: String| notices.push(Notice::new(policy.clone(), NEVER_MATCHES, message));
    let mut rule_by_matches: BTreeMap<&[RouteMatch], usize> = BTreeMap::new();
    let mut place_by_match: BTreeMap<RouteMatch, (usize, usize)> = BTreeMap::new();
    let place = |(i, j): (usize, usize)| format!("{}.matches[{j}]", rules[i].0);
    for (i, (_, rule)) in rules.iter().enumerate() {
        let first = *rule_by_matches.entry(&rule.matches).or_insert(i);
        if first != i {
            report(same_matches(rules, first, i));
            continue;
        }
        for (j, on) in rule.matches.iter().enumerate() {
            let first = *place_by_match.entry(normal(on)).or_insert((i, j));
            if first != (i, j) {
                let (own, first) = (place((i, j)), place(first));
                report(format!(
                    "{own} is the same as {first}, which has precedence, so no request matches it; delete it, or change one of the two"
                ));
            }
        }
    }
    let everything = place_by_match.iter().find(|(on, _)| on.is_everything()).map(|(_, at)| place(*at));
    if let Some(first) = everything {
        for (on, at) in &place_by_match {
            if matches!(on.path, Some(PathMatch::Regex(_))) {
                let own = place(*at);
                report(format!(
                    "{own} is a pattern, and prefixes have precedence over patterns: {first} is the prefix / and matches every request; replace that one by the pattern /.*, or delete it"
                ));
            }
        }
    }
    notices
}

fn same_matches(rules: &[Placed<'_>], first: usize, second: usize) -> String {
    let (own, rule) = &rules[second];
    let part = |part: fn(&RouteRule) -> bool| {
        let is_said = rules[..second].iter().any(|(_, r)| r.matches == rule.matches && part(r));
        part(rule) && !is_said
    };
    let filters = part(|rule| rule.filters.is_some());
    let backends = part(|rule| rule.backends.is_some());
    let effect = match (filters, backends) {
        (true, true) => "the two are merged into one rule",
        (true, false) => "only its filters are used",
        (false, true) => "only its backendRefs are used",
        (false, false) => "it has no effect",
    };
    let first = &rules[first].0;
    format!(
        "{own} has the same matches as {first}, which has precedence, so {effect}; merge the two, delete one, or change its matches"
    )
}

/// A match in normal form: sorted, without the header matches that are ignored.
fn normal(on: &RouteMatch) -> RouteMatch {
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
    RouteMatch {
        path: Some(on.full_path()),
        conditions: MatchConditions { method, headers: headers.into(), query: query.into() },
    }
}
