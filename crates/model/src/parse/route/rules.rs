//! Rules of HTTP and TCP routes, and conflicts between the fields of a rule.

use std::sync::Arc;

use super::filters::filters;
use super::matches::matches;
use super::target_ref::{BackendRole, backend};
use crate::field::{Field, FieldErrors};
use crate::route::{BackendRef, PathChange, PathMatch, RouteFilter, RouteMatch, RouteRule, RuleOverrides};

/// Where rules apply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleScope {
    /// Between Services: without backends a request goes to its original destination.
    Mesh,
    /// At a gateway: a rule needs backends or a response of its own.
    Gateway,
}

impl RuleScope {
    /// The most rules of a list: an API server bounds the cost of CEL rules by the lengths of lists.
    fn max_rules(self) -> usize {
        match self {
            Self::Mesh => 256,
            Self::Gateway => 1024,
        }
    }

    /// The most matches of a rule.
    fn max_matches(self) -> usize {
        match self {
            Self::Mesh => 16,
            Self::Gateway => 64,
        }
    }
}

const MAX_BACKENDS: usize = 64;

/// Parses a list of rules. Rules that are equal in the old object are skipped.
pub(super) fn rules(at: &Field, scope: RuleScope, errors: &mut FieldErrors) -> Box<[Arc<RouteRule>]> {
    let items = at.required_items("rules", errors);
    at.limit(scope.max_rules(), "rules", errors);
    // Rules do not depend on each other.
    let changed = items.iter().filter(|item| !item.is_unchanged());
    changed.map(|item| Arc::new(one(item, scope, errors))).collect()
}

fn one(at: &Field, scope: RuleScope, errors: &mut FieldErrors) -> RouteRule {
    at.only(&["matches", "default", "override", "merge"], errors);
    let matches = matches(&at.child("matches"), scope.max_matches(), errors);
    let default = at.child("default");
    let (filters, backends) = part(&matches, &default, errors);
    let over = at.child("override");
    let (over_filters, over_backends) = part(&matches, &over, errors);
    if over.is_map() && !over.is_nonempty() {
        errors.invalid(&over, "is empty: set filters or backendRefs, or remove it");
    }
    // Which of two values of one rule counts would be a guess.
    for name in ["filters", "backendRefs"] {
        if default.child(name).is_set() && over.child(name).is_set() {
            errors.invalid(
                &over.child(name),
                format!("excludes default.{name} of the same rule: write one of them"),
            );
        }
    }
    let overrides =
        over.is_set().then(|| Box::new(RuleOverrides { filters: over_filters, backends: over_backends }));
    let merge = merged(&at.child("merge"), errors);
    let rule = RouteRule { matches, filters, backends, overrides, merge, ..RouteRule::default() };
    let has_filters = rule.effective_filters().is_some_and(|filters| !filters.is_empty());
    let refs = default.child("backendRefs");
    // Another policy may have the backends of a rule that has only filters.
    if scope == RuleScope::Gateway
        && !has_response(&rule)
        && rule.effective_backends().is_none_or(<[_]>::is_empty)
        && (refs.is_set() || !has_filters)
    {
        errors.invalid(&refs, "at a gateway, a rule needs a backend, a redirect or a direct response");
    }
    rule
}

type RulePart = (Option<Box<[RouteFilter]>>, Option<Box<[BackendRef]>>);

/// `default` or `override`.
fn part(matches: &[RouteMatch], at: &Field, errors: &mut FieldErrors) -> RulePart {
    at.only(&["filters", "backendRefs"], errors);
    let (list, refs) = (at.child("filters"), at.child("backendRefs"));
    let filters = list.is_set().then(|| filters(&list, errors));
    let backends = refs.is_set().then(|| backends(&refs, errors));
    let rule = RouteRule { matches: matches.into(), filters, backends, ..RouteRule::default() };
    check_conflicts(&rule, &list, &refs, errors);
    (rule.filters, rule.backends)
}

/// `merge`: filters that can be added to any others.
fn merged(at: &Field, errors: &mut FieldErrors) -> Box<[RouteFilter]> {
    if !at.is_set() {
        return Box::default();
    }
    at.only(&["filters"], errors);
    let list = at.child("filters");
    let filters = filters(&list, errors);
    let is_additive = |filter: &RouteFilter| {
        matches!(
            filter,
            RouteFilter::RequestHeaders(_) | RouteFilter::ResponseHeaders(_) | RouteFilter::Mirror { .. }
        )
    };
    if list.item_count() == 0 {
        errors.invalid(&list, "needs at least one filter");
    }
    if !filters.iter().all(is_additive) {
        errors.invalid(
            &list,
            "only requestHeaderModifier, responseHeaderModifier and requestMirror can be added to other filters; use default or override",
        );
    }
    filters
}

fn backends(at: &Field, errors: &mut FieldErrors) -> Box<[BackendRef]> {
    let role = BackendRole::OfRequests;
    at.limit(MAX_BACKENDS, "backends", errors);
    at.items(errors).iter().filter_map(|entry| backend(entry, role, errors)).collect()
}

fn has_response(rule: &RouteRule) -> bool {
    rule.effective_filters().is_some_and(|filters| filters.iter().any(RouteFilter::is_response))
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
    check_prefix_changes(rule, list, refs, errors);
}

/// Semantics 1.9: replacePrefixMatch requires a Prefix path in every match.
fn check_prefix_changes(rule: &RouteRule, list: &Field, refs: &Field, errors: &mut FieldErrors) {
    let is_prefix = |on: &RouteMatch| matches!(on.path, Some(PathMatch::Prefix(_)));
    if rule.matches.iter().all(is_prefix) {
        return;
    }
    for backend in refs.items(&mut FieldErrors::default()) {
        for item in backend.child("filters").as_items() {
            let field = item.child("urlRewrite").child("path").child("replacePrefixMatch");
            if field.is_set() {
                errors.invalid(&field, "requires a path of type Prefix in every match of the rule");
            }
        }
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
    let role = BackendRole::OfConnections;
    refs.limit(MAX_BACKENDS, "backends", errors);
    let backends: Box<[BackendRef]> =
        refs.items(errors).iter().filter_map(|entry| backend(entry, role, errors)).collect();
    if backends.is_empty() && (refs.is_list() || !refs.is_set()) {
        errors.invalid(&refs, "a TCP route needs at least one backend");
    }
    backends
}
