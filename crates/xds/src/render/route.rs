//! One match of a rule as an Envoy route: its conditions and its action.

use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, QueryParameterMatcher, Route, RouteMatch};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    RegexMatcher, StringMatcher, string_matcher::MatchPattern,
};
use model::Notice;
use model::route::{MatchEntry, MatchedRoute, PathMatch, Pattern, ValueTest};

use super::{RouteContext, regex, route_action};

/// `None`: Envoy does not support the match, and a Notice says so.
pub(super) fn render(
    hit: &MatchedRoute<'_>,
    context: &RouteContext<'_>,
    notices: &mut Vec<Notice>,
) -> Option<Route> {
    let mut notify = |problem: String| {
        let policy = hit.rule.origin.policy.clone().unwrap_or_else(|| context.object.clone());
        let field = &hit.rule.origin.field;
        let message = format!("{field}.matches[{}]: {problem}", hit.entry.alternative);
        notices.push(Notice::new(policy, "NotForEnvoy", message));
    };
    let matched = match route_match(hit.entry) {
        Ok(matched) => matched,
        Err(problem) => {
            notify(format!("{problem}; Envoys ignore this match, so rewrite the regular expression"));
            return None;
        }
    };
    let mut route = Route { name: name(hit), r#match: Some(matched), ..Route::default() };
    route_action::fill(&mut route, &hit.rule.action, &hit.entry.path, context).into_iter().for_each(notify);
    notices.extend(context.retries.notice(hit.rule));
    Some(route)
}

/// 421 for hosts of another listener's certificate.
pub(super) fn misdirected() -> Route {
    let everything =
        RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".to_owned())), ..RouteMatch::default() };
    Route {
        name: "a host of another listener".to_owned(),
        r#match: Some(everything),
        action: Some(Action::DirectResponse(route_action::error(421))),
        ..Route::default()
    }
}

/// For access logs.
fn name(hit: &MatchedRoute<'_>) -> String {
    let origin = &hit.rule.origin;
    match &origin.policy {
        Some(policy) => format!("{policy} {}", origin.field),
        None => "original destination".to_owned(),
    }
}

fn route_match(entry: &MatchEntry) -> Result<RouteMatch, String> {
    let conditions = &entry.conditions;
    let mut headers = Vec::new();
    if let Some(method) = &conditions.method {
        headers.push(header(":method", &ValueTest::Exact(method.clone()))?);
    }
    for on in &conditions.headers {
        headers.push(header(&on.name, &on.test)?);
    }
    let mut query_parameters = Vec::new();
    for on in &conditions.query {
        let specifier = match value(&on.test)? {
            Some(value) => QueryParameterMatchSpecifier::StringMatch(value),
            None => QueryParameterMatchSpecifier::PresentMatch(true),
        };
        query_parameters.push(QueryParameterMatcher {
            name: on.name.to_string(),
            query_parameter_match_specifier: Some(specifier),
        });
    }
    let path = path(&entry.path)?;
    Ok(RouteMatch { path_specifier: Some(path), headers, query_parameters, ..RouteMatch::default() })
}

/// Semantics 1.6: prefixes go by segments, which Envoy knows by itself.
fn path(path: &PathMatch) -> Result<PathSpecifier, String> {
    Ok(match path {
        PathMatch::Exact(value) => PathSpecifier::Path(value.to_string()),
        PathMatch::Prefix(value) if value == "/" => PathSpecifier::Prefix(value.to_string()),
        PathMatch::Prefix(value) => PathSpecifier::PathSeparatedPrefix(value.to_string()),
        PathMatch::Regex(pattern) => PathSpecifier::SafeRegex(regex(pattern)?),
    })
}

fn header(name: &str, test: &ValueTest) -> Result<HeaderMatcher, String> {
    let specifier = match value(test)? {
        Some(value) => HeaderMatchSpecifier::StringMatch(value),
        None => HeaderMatchSpecifier::PresentMatch(*test != ValueTest::Absent),
    };
    Ok(HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    })
}

/// The test of a value; `None` where only its presence counts.
fn value(test: &ValueTest) -> Result<Option<StringMatcher>, String> {
    let pattern = match test {
        ValueTest::Exact(value) => MatchPattern::Exact(value.to_string()),
        // Semantics 1.6: Envoy refuses an empty prefix, and everything begins with it.
        ValueTest::Prefix(value) if value.is_empty() => return Ok(None),
        ValueTest::Prefix(value) => MatchPattern::Prefix(value.to_string()),
        ValueTest::Regex(pattern) => MatchPattern::SafeRegex(regex(pattern)?),
        ValueTest::Present | ValueTest::Absent => return Ok(None),
    };
    Ok(Some(StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() }))
}

fn regex(of: &Pattern) -> Result<RegexMatcher, String> {
    let regex = regex::render(of.as_str())?;
    Ok(RegexMatcher { regex, ..RegexMatcher::default() })
}
