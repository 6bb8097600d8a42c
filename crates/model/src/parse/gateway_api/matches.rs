//! Matches of HTTPRoute and GRPCRoute.

use std::collections::BTreeSet;

use super::route::Unsupported;
use crate::field::{Field, FieldErrors};
use crate::name::Name;
use crate::route::{HeaderMatch, MatchConditions, PathMatch, Pattern, QueryMatch, RouteMatch, ValueTest};

pub(super) fn http_match(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> RouteMatch {
    let path = at.child("path").map(errors);
    let value = path.child("value").string(errors).unwrap_or("/");
    let path = match path.child("type").string(errors) {
        None | Some("PathPrefix") => Some(PathMatch::Prefix(without_trailing_slash(value))),
        Some("Exact") => Some(PathMatch::Exact(Name::new(value))),
        Some("RegularExpression") => pattern(&path.child("value"), value, unsupported).map(PathMatch::Regex),
        Some(other) => {
            unsupported.add(&path.child("type"), other);
            None
        }
    };
    let query = at.child("queryParams").items(errors);
    let mut seen = BTreeSet::new();
    let query = query
        .iter()
        .filter_map(|entry| {
            let (name, test) = value_test(entry, unsupported, errors)?;
            // Of two with one name, the first counts.
            seen.insert(name.clone()).then_some(QueryMatch { name, test })
        })
        .collect();
    let method = at.child("method").string(errors).map(Name::new);
    let headers = headers(&at.child("headers"), unsupported, errors);
    RouteMatch { path, conditions: MatchConditions { method, headers, query } }
}

/// Service and method are the two segments of the path.
pub(super) fn grpc_match(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> RouteMatch {
    let method = at.child("method").map(errors);
    let (service, name) = (method.child("service"), method.child("method"));
    let (service, name) = (service.nonempty_string(errors), name.nonempty_string(errors));
    let is_pattern = match method.child("type").string(errors) {
        None | Some("Exact") => false,
        Some("RegularExpression") => true,
        Some(other) => {
            unsupported.add(&method.child("type"), other);
            false
        }
    };
    let part = |text: Option<&str>| match text {
        Some(text) if is_pattern => format!("(?:{text})"),
        Some(text) => regex::escape(text),
        None => "[^/]+".to_owned(),
    };
    let path = match (service, name) {
        (None, None) => Some(PathMatch::Prefix(Name::new("/"))),
        (Some(service), Some(name)) if !is_pattern => {
            Some(PathMatch::Exact(Name::new(&format!("/{service}/{name}"))))
        }
        (Some(service), None) if !is_pattern => Some(PathMatch::Prefix(Name::new(&format!("/{service}")))),
        _ => {
            let text = format!("/{}/{}", part(service), part(name));
            pattern(&method, &text, unsupported).map(PathMatch::Regex)
        }
    };
    let headers = headers(&at.child("headers"), unsupported, errors);
    RouteMatch { path, conditions: MatchConditions { headers, ..MatchConditions::default() } }
}

/// A trailing slash of a prefix is ignored.
pub(super) fn without_trailing_slash(path: &str) -> Name {
    let bare = path.trim_end_matches('/');
    Name::new(if bare.is_empty() { "/" } else { bare })
}

fn headers(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> Box<[HeaderMatch]> {
    let items = at.items(errors);
    let read = items.iter().filter_map(|entry| {
        let (name, test) = value_test(entry, unsupported, errors)?;
        Some(HeaderMatch { name: Name::new(&name.to_ascii_lowercase()), test })
    });
    read.collect()
}

fn value_test(
    at: &Field,
    unsupported: &mut Unsupported,
    errors: &mut FieldErrors,
) -> Option<(Name, ValueTest)> {
    let value = at.child("value").string(errors).unwrap_or_default();
    let test = match at.child("type").string(errors) {
        None | Some("Exact") => ValueTest::Exact(Name::new(value)),
        Some("RegularExpression") => ValueTest::Regex(pattern(&at.child("value"), value, unsupported)?),
        Some(other) => {
            unsupported.add(&at.child("type"), other);
            return None;
        }
    };
    Some((super::name(&at.child("name"), errors), test))
}

fn pattern(at: &Field, text: &str, unsupported: &mut Unsupported) -> Option<Pattern> {
    Pattern::new(text).map_err(|reason| unsupported.add(at, &reason)).ok()
}
