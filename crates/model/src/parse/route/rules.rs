//! Rules of HTTP and TCP routes, and what may not stand together in one.

use std::sync::Arc;

use super::at::{At, Problems};
use super::filters::filters;
use super::matches::matches;
use super::target::backend;
use crate::route::{BackendRef, PathChange, PathMatch, RouteFilter, RouteMatch, RouteRule};

/// Where rules act.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Between Services: what no backend is named for goes where it was going.
    Mesh,
    /// At a gateway: there is nowhere else to go.
    Gateway,
}

/// The rules of a list. Those that are `known` are not read again; what is as it was before is passed over.
pub(super) fn rules(
    at: &At,
    place: Place,
    known: &[Option<Arc<RouteRule>>],
    problems: &mut Problems,
) -> Box<[Arc<RouteRule>]> {
    let items = at.items_or_one(problems, "rules");
    let mut rules = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        match known.get(i).and_then(Option::as_ref) {
            Some(rule) => rules.push(rule.clone()),
            // Nothing about a rule depends on the others.
            None if item.is_as_before() => {}
            None => rules.push(Arc::new(one(item, place, problems))),
        }
    }
    rules.into()
}

fn one(at: &At, place: Place, problems: &mut Problems) -> RouteRule {
    at.only(&["matches", "default"], problems);
    let matches = matches(&at.child("matches"), problems);
    let default = at.child("default");
    default.only(&["filters", "backendRefs"], problems);
    let (list, refs) = (default.child("filters"), default.child("backendRefs"));
    let read = list.is_set().then(|| filters(&list, problems));
    let backends = refs.is_set().then(|| backends(&refs, problems));
    let rule = RouteRule { matches, filters: read, backends };
    check_together(&rule, &list, &refs, problems);
    if place == Place::Gateway && !rule_ends(&rule) && rule.backends.as_deref().is_none_or(<[_]>::is_empty) {
        problems.add(&refs, "at a gateway a rule needs a backend, a redirect or a direct response");
    }
    rule
}

fn backends(at: &At, problems: &mut Problems) -> Box<[BackendRef]> {
    at.items(problems).iter().filter_map(|entry| backend(entry, true, problems)).collect()
}

fn is_end(filter: &RouteFilter) -> bool {
    matches!(filter, RouteFilter::Redirect(_) | RouteFilter::Respond { .. })
}

fn rule_ends(rule: &RouteRule) -> bool {
    rule.filters.iter().flatten().any(is_end)
}

/// Seed 004, "Routing": an answer of the proxy's own excludes backends, and a redirect excludes a rewrite.
fn check_together(rule: &RouteRule, list: &At, refs: &At, problems: &mut Problems) {
    let filters = rule.filters.as_deref().unwrap_or_default();
    let count = |is: fn(&RouteFilter) -> bool| filters.iter().filter(|filter| is(filter)).count();
    let redirects = count(|f| matches!(f, RouteFilter::Redirect(_)));
    let responses = count(|f| matches!(f, RouteFilter::Respond { .. }));
    let rewrites = count(|f| matches!(f, RouteFilter::Rewrite(_)));
    let mirrors = count(|f| matches!(f, RouteFilter::Mirror { .. }));
    if redirects > 0 && rewrites > 0 {
        problems.add(
            list,
            "requestRedirect and urlRewrite exclude each other: a redirected request goes nowhere",
        );
    }
    if redirects + responses > 1 || rewrites > 1 {
        problems
            .add(list, "only one of requestRedirect and directResponse, and one urlRewrite, can take effect");
    }
    if responses > 0 && rewrites > 0 {
        problems
            .add(list, "directResponse and urlRewrite exclude each other: there is no request to rewrite");
    }
    if redirects + responses > 0 && mirrors > 0 {
        problems.add(list, "requestMirror copies what is sent to a backend: here nothing is sent");
    }
    if redirects + responses > 0 && rule.backends.as_deref().is_some_and(|refs| !refs.is_empty()) {
        let filter = if redirects > 0 { "requestRedirect" } else { "directResponse" };
        problems.add(refs, format!("{filter} and backendRefs exclude each other: remove one of them"));
    }
    check_prefix_changes(rule, list, problems);
}

/// Semantics 1.9: what replaces the prefix needs a prefix in every match.
fn check_prefix_changes(rule: &RouteRule, list: &At, problems: &mut Problems) {
    let is_prefix = |on: &RouteMatch| matches!(on.path, Some(PathMatch::Prefix(_)));
    if rule.matches.iter().all(is_prefix) {
        return;
    }
    // Filters that could not be read are not in the rule: places are those of the list as written.
    for item in list.items(&mut Problems::default()) {
        for filter in ["requestRedirect", "urlRewrite"] {
            let field = item.child(filter).child("path").child("replacePrefixMatch");
            let counts = |f: &RouteFilter| match f {
                RouteFilter::Redirect(redirect) => matches!(redirect.path, Some(PathChange::Prefix(_))),
                RouteFilter::Rewrite(rewrite) => matches!(rewrite.path, Some(PathChange::Prefix(_))),
                _ => false,
            };
            if field.is_set() && rule.filters.iter().flatten().any(counts) {
                problems.add(&field, "every match of the rule needs a path of type Prefix for this");
            }
        }
    }
}

/// The rules of a TCP route: one, without matches, with backends.
pub(super) fn tcp_rules(at: &At, problems: &mut Problems) -> Box<[BackendRef]> {
    let rules = at.items_or_one(problems, "rules");
    if rules.len() > 1 {
        problems.add(at, "a TCP route has one rule: connections have nothing to match on");
    }
    let Some(rule) = rules.first() else { return Box::default() };
    rule.only(&["default"], problems);
    let default = rule.child("default");
    default.only(&["backendRefs"], problems);
    let refs = default.child("backendRefs");
    let backends = backends(&refs, problems);
    if backends.is_empty() && (refs.is_list() || !refs.is_set()) {
        problems.add(&refs, "a TCP route needs at least one backend");
    }
    backends
}
