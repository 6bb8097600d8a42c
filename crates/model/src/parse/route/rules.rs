//! Rules of HTTP and TCP routes, and conflicts between the fields of a rule.

use std::sync::Arc;

use super::filters::filters;
use super::matches::matches;
use super::target_ref::backend;
use crate::field::{Field, FieldErrors};
use crate::route::{BackendRef, PathChange, PathMatch, RouteFilter, RouteMatch, RouteRule};

/// Where rules apply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleScope {
    /// Between Services: without backends a request goes to its original destination.
    Mesh,
    /// At a gateway: a rule needs backends or a response of its own.
    Gateway,
}

/// Parses a list of rules. Rules that are equal in the old object are skipped.
pub(super) fn rules(at: &Field, scope: RuleScope, errors: &mut FieldErrors) -> Box<[Arc<RouteRule>]> {
    let items = at.required_items("rules", errors);
    // Rules do not depend on each other.
    let changed = items.iter().filter(|item| !item.is_unchanged());
    changed.map(|item| Arc::new(one(item, scope, errors))).collect()
}

fn one(at: &Field, scope: RuleScope, errors: &mut FieldErrors) -> RouteRule {
    at.only(&["matches", "default"], errors);
    let matches = matches(&at.child("matches"), errors);
    let default = at.child("default");
    default.only(&["filters", "backendRefs"], errors);
    let (list, refs) = (default.child("filters"), default.child("backendRefs"));
    let read = list.is_set().then(|| filters(&list, errors));
    let backends = refs.is_set().then(|| backends(&refs, errors));
    let rule = RouteRule { matches, filters: read, backends };
    check_conflicts(&rule, &list, &refs, errors);
    if scope == RuleScope::Gateway
        && !has_response(&rule)
        && rule.backends.as_deref().is_none_or(<[_]>::is_empty)
    {
        errors.invalid(&refs, "at a gateway, a rule needs a backend, a redirect or a direct response");
    }
    rule
}

fn backends(at: &Field, errors: &mut FieldErrors) -> Box<[BackendRef]> {
    at.items(errors).iter().filter_map(|entry| backend(entry, true, errors)).collect()
}

fn is_response(filter: &RouteFilter) -> bool {
    matches!(filter, RouteFilter::Redirect(_) | RouteFilter::Respond { .. })
}

fn has_response(rule: &RouteRule) -> bool {
    rule.filters.iter().flatten().any(is_response)
}

/// Seed 004, "Routing": a response by the proxy itself excludes backends, and a redirect excludes a rewrite.
fn check_conflicts(rule: &RouteRule, list: &Field, refs: &Field, errors: &mut FieldErrors) {
    let filters = rule.filters.as_deref().unwrap_or_default();
    let count = |is: fn(&RouteFilter) -> bool| filters.iter().filter(|filter| is(filter)).count();
    let redirects = count(|f| matches!(f, RouteFilter::Redirect(_)));
    let responses = count(|f| matches!(f, RouteFilter::Respond { .. }));
    let rewrites = count(|f| matches!(f, RouteFilter::Rewrite(_)));
    let mirrors = count(|f| matches!(f, RouteFilter::Mirror { .. }));
    if redirects > 0 && rewrites > 0 {
        errors.invalid(
            list,
            "requestRedirect and urlRewrite exclude each other: a redirected request is not forwarded",
        );
    }
    if redirects + responses > 1 || rewrites > 1 {
        errors.invalid(list, "at most one requestRedirect or directResponse, and one urlRewrite, is allowed");
    }
    if responses > 0 && rewrites > 0 {
        errors
            .invalid(list, "directResponse and urlRewrite exclude each other: the request is not forwarded");
    }
    if redirects + responses > 0 && mirrors > 0 {
        errors.invalid(list, "requestMirror needs a backend: with a redirect or a direct response the request is not forwarded");
    }
    if redirects + responses > 0 && rule.backends.as_deref().is_some_and(|refs| !refs.is_empty()) {
        let filter = if redirects > 0 { "requestRedirect" } else { "directResponse" };
        errors.invalid(refs, format!("{filter} and backendRefs exclude each other: remove one of them"));
    }
    check_prefix_changes(rule, list, errors);
}

/// Semantics 1.9: replacePrefixMatch requires a Prefix path in every match.
fn check_prefix_changes(rule: &RouteRule, list: &Field, errors: &mut FieldErrors) {
    let is_prefix = |on: &RouteMatch| matches!(on.path, Some(PathMatch::Prefix(_)));
    if rule.matches.iter().all(is_prefix) {
        return;
    }
    // Invalid filters are not in the rule: indexes are those of the list in the object.
    for item in list.items(&mut FieldErrors::default()) {
        for filter in ["requestRedirect", "urlRewrite"] {
            let field = item.child(filter).child("path").child("replacePrefixMatch");
            let counts = |f: &RouteFilter| match f {
                RouteFilter::Redirect(redirect) => matches!(redirect.path, Some(PathChange::Prefix(_))),
                RouteFilter::Rewrite(rewrite) => matches!(rewrite.path, Some(PathChange::Prefix(_))),
                _ => false,
            };
            if field.is_set() && rule.filters.iter().flatten().any(counts) {
                errors.invalid(&field, "requires a path of type Prefix in every match of the rule");
            }
        }
    }
}

/// A TCP route has one rule with backends and no matches.
pub(super) fn tcp_rules(at: &Field, errors: &mut FieldErrors) -> Box<[BackendRef]> {
    let rules = at.required_items("rules", errors);
    if rules.len() > 1 {
        errors.invalid(at, "a TCP route has exactly one rule");
    }
    let Some(rule) = rules.first() else { return Box::default() };
    rule.only(&["default"], errors);
    let default = rule.child("default");
    default.only(&["backendRefs"], errors);
    let refs = default.child("backendRefs");
    let backends = backends(&refs, errors);
    if backends.is_empty() && (refs.is_list() || !refs.is_set()) {
        errors.invalid(&refs, "a TCP route needs at least one backend");
    }
    backends
}
