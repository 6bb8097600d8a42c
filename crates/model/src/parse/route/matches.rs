//! `matches`: path, method, headers, query parameters.

use std::collections::BTreeSet;

use super::syntax::{absolute_path, header_name};
use crate::field::{Field, FieldErrors};
use crate::name::Name;
use crate::route::{HeaderMatch, MatchConditions, PathMatch, Pattern, QueryMatch, RouteMatch, ValueTest};

const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// The most conditions of one match on headers, and on query parameters.
const MAX_CONDITIONS: usize = 16;
const MAX_PARAMETER_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 4096;

/// A list of matches, or a single match without the list.
pub(super) fn matches(at: &Field, max: usize, errors: &mut FieldErrors) -> Box<[RouteMatch]> {
    if at.is_map() {
        return [one(at, errors)].into();
    }
    at.limit(max, "matches", errors);
    at.required_items("matches", errors).iter().map(|item| one(item, errors)).collect()
}

fn one(at: &Field, errors: &mut FieldErrors) -> RouteMatch {
    at.only(&["path", "method", "headers", "queryParams"], errors);
    let method = at.child("method").keyword(&METHODS, errors).map(Name::new);
    let path = at.child("path");
    let conditions = MatchConditions {
        method,
        headers: headers(&at.child("headers"), errors),
        query: query(&at.child("queryParams"), errors),
    };
    RouteMatch { path: if path.is_set() { path_match(&path, errors) } else { None }, conditions }
}

/// `{type, value}`, or the short form `{prefix: /v1}`.
fn path_match(at: &Field, errors: &mut FieldErrors) -> Option<PathMatch> {
    let short = [("prefix", "Prefix"), ("exact", "Exact"), ("regex", "RegularExpression")];
    let given: Vec<_> = short.iter().filter(|(name, _)| at.child(name).is_set()).collect();
    if let [(name, kind)] = given[..] {
        at.only(&[name], errors);
        return path_of(kind, &at.child(name), errors);
    }
    at.only(&["type", "value"], errors);
    let kind = at.child("type");
    if at.is_map() && !kind.is_set() {
        errors.invalid(&kind, "is missing: use Prefix, Exact or RegularExpression");
    }
    path_of(kind.keyword(&["Prefix", "Exact", "RegularExpression"], errors)?, &at.child("value"), errors)
}

fn path_of(kind: &str, value: &Field, errors: &mut FieldErrors) -> Option<PathMatch> {
    match kind {
        "Exact" => absolute_path(value, "an exact path", errors).map(PathMatch::Exact),
        "Prefix" => {
            let prefix = absolute_path(value, "a prefix", errors)?;
            if prefix.len() > 1 && prefix.ends_with('/') {
                let right = prefix.trim_end_matches('/');
                errors.invalid(
                    value,
                    format!("a prefix matches whole segments and must not end with a slash: use {right:?}"),
                );
            }
            Some(PathMatch::Prefix(prefix))
        }
        _ => pattern(value, errors).map(PathMatch::Regex),
    }
}

fn pattern(value: &Field, errors: &mut FieldErrors) -> Option<Pattern> {
    let text = value.required_string(errors)?;
    Pattern::new(text).map_err(|reason| errors.invalid(value, reason)).ok()
}

fn headers(at: &Field, errors: &mut FieldErrors) -> Box<[HeaderMatch]> {
    let items = at.items(errors);
    at.limit(MAX_CONDITIONS, "conditions", errors);
    let mut names = BTreeSet::new();
    let mut headers = Vec::new();
    for item in items {
        item.only(&["type", "name", "value"], errors);
        let name = header_name(&item.child("name"), errors);
        let name = name.map(|name| Name::new(&name.to_ascii_lowercase()));
        let words = ["Exact", "Prefix", "RegularExpression", "Present", "Absent"];
        let test = test(&item, &words, errors);
        let (Some(name), Some(test)) = (name, test) else { continue };
        if !names.insert(name.clone()) {
            errors.ignore(&item, format!("another condition is for {name}; only the first is used"));
        }
        headers.push(HeaderMatch { name, test });
    }
    headers.into()
}

fn query(at: &Field, errors: &mut FieldErrors) -> Box<[QueryMatch]> {
    let items = at.items(errors);
    at.limit(MAX_CONDITIONS, "conditions", errors);
    let mut names = BTreeSet::new();
    let mut query = Vec::new();
    for item in items {
        item.only(&["type", "name", "value"], errors);
        item.child("name").limit_bytes(MAX_PARAMETER_BYTES, errors);
        let name = item.child("name").required_string(errors);
        let test = test(&item, &["Exact", "RegularExpression"], errors);
        let (Some(name), Some(test)) = (name, test) else { continue };
        if !names.insert(name) {
            errors.invalid(&item.child("name"), format!("another condition is for {name:?}"));
        }
        query.push(QueryMatch { name: Name::new(name), test });
    }
    query.into()
}

/// The default type is Exact.
fn test(at: &Field, words: &[&str], errors: &mut FieldErrors) -> Option<ValueTest> {
    let kind = at.child("type");
    let kind = if kind.is_set() { kind.keyword(words, errors)? } else { "Exact" };
    let value = at.child("value");
    match kind {
        "Present" | "Absent" => {
            if value.is_set() {
                errors.invalid(&value, format!("{kind} takes no value"));
            }
            Some(if kind == "Present" { ValueTest::Present } else { ValueTest::Absent })
        }
        "RegularExpression" => pattern(&value, errors).map(ValueTest::Regex),
        // Semantics 1.6: an empty prefix is equivalent to Present.
        "Prefix" => required_value(&value, errors).map(ValueTest::Prefix),
        _ => required_value(&value, errors).map(ValueTest::Exact),
    }
}

/// A string that must be set; it may be empty.
fn required_value(value: &Field, errors: &mut FieldErrors) -> Option<Name> {
    if !value.is_set() {
        errors.invalid(value, "is missing");
    }
    value.limit_bytes(MAX_VALUE_BYTES, errors);
    value.string(errors).map(Name::new)
}
