//! `matches`: path, method, headers, query parameters.

use std::collections::BTreeSet;

use super::at::{At, Problems};
use super::words::{absolute_path, header_name};
use crate::name::Name;
use crate::route::{HeaderMatch, MatchConditions, PathMatch, Pattern, QueryMatch, RouteMatch, ValueTest};

const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// As many conditions as a match may have; the schema says the same.
const MANY: usize = 64;

/// A list of matches; one alone may stand without the list, as in one of the seed's examples.
pub(super) fn matches(at: &At, problems: &mut Problems) -> Box<[RouteMatch]> {
    if at.is_map() {
        return [one(at, problems)].into();
    }
    at.items_or_one(problems, "matches").iter().map(|item| one(item, problems)).collect()
}

fn one(at: &At, problems: &mut Problems) -> RouteMatch {
    at.only(&["path", "method", "headers", "queryParams"], problems);
    let method = at.child("method").word(&METHODS, problems).map(Name::new);
    let path = at.child("path");
    let conditions = MatchConditions {
        method,
        headers: headers(&at.child("headers"), problems),
        query: query(&at.child("queryParams"), problems),
    };
    RouteMatch { path: if path.is_set() { path_match(&path, problems) } else { None }, conditions }
}

/// `{type, value}`, or in short `{prefix: /v1}`.
fn path_match(at: &At, problems: &mut Problems) -> Option<PathMatch> {
    let short = [("prefix", "Prefix"), ("exact", "Exact"), ("regex", "RegularExpression")];
    let given: Vec<_> = short.iter().filter(|(name, _)| at.child(name).is_set()).collect();
    if let [(name, kind)] = given[..] {
        at.only(&[name], problems);
        return path_of(kind, &at.child(name), problems);
    }
    at.only(&["type", "value"], problems);
    let kind = at.child("type");
    if at.is_map() && !kind.is_set() {
        problems.add(&kind, "it is missing: write Prefix, Exact or RegularExpression");
    }
    path_of(kind.word(&["Prefix", "Exact", "RegularExpression"], problems)?, &at.child("value"), problems)
}

fn path_of(kind: &str, value: &At, problems: &mut Problems) -> Option<PathMatch> {
    match kind {
        "Exact" => absolute_path(value, "an exact path", problems).map(PathMatch::Exact),
        "Prefix" => {
            let prefix = absolute_path(value, "a prefix", problems)?;
            if prefix.len() > 1 && prefix.ends_with('/') {
                let right = prefix.trim_end_matches('/');
                problems.add(
                    value,
                    format!("a prefix goes by segments and has no slash at its end: write {right:?}"),
                );
            }
            Some(PathMatch::Prefix(prefix))
        }
        _ => pattern(value, problems).map(PathMatch::Regex),
    }
}

fn pattern(value: &At, problems: &mut Problems) -> Option<Pattern> {
    let text = value.needed(problems)?;
    Pattern::new(text).map_err(|reason| problems.add(value, reason)).ok()
}

fn headers(at: &At, problems: &mut Problems) -> Box<[HeaderMatch]> {
    let items = at.items(problems);
    limit(at, items.len(), problems);
    let mut names = BTreeSet::new();
    let mut headers = Vec::new();
    for item in items {
        item.only(&["type", "name", "value"], problems);
        let name = header_name(&item.child("name"), problems);
        let name = name.map(|name| Name::new(&name.to_ascii_lowercase()));
        let words = ["Exact", "Prefix", "RegularExpression", "Present", "Absent"];
        let test = test(&item, &words, problems);
        let (Some(name), Some(test)) = (name, test) else { continue };
        if !names.insert(name.clone()) {
            problems.ignore(&item, format!("{name} has been asked for already, and only the first counts"));
        }
        headers.push(HeaderMatch { name, test });
    }
    headers.into()
}

fn query(at: &At, problems: &mut Problems) -> Box<[QueryMatch]> {
    let items = at.items(problems);
    limit(at, items.len(), problems);
    let mut names = BTreeSet::new();
    let mut query = Vec::new();
    for item in items {
        item.only(&["type", "name", "value"], problems);
        let name = item.child("name").needed(problems);
        let test = test(&item, &["Exact", "RegularExpression"], problems);
        let (Some(name), Some(test)) = (name, test) else { continue };
        if !names.insert(name) {
            problems.add(&item.child("name"), format!("{name:?} is asked for twice: once is enough"));
        }
        query.push(QueryMatch { name: Name::new(name), test });
    }
    query.into()
}

/// The type is Exact where none is given.
fn test(at: &At, words: &[&str], problems: &mut Problems) -> Option<ValueTest> {
    let kind = at.child("type");
    let kind = if kind.is_set() { kind.word(words, problems)? } else { "Exact" };
    let value = at.child("value");
    match kind {
        "Present" | "Absent" => {
            if value.is_set() {
                problems.add(&value, format!("{kind} takes no value"));
            }
            Some(if kind == "Present" { ValueTest::Present } else { ValueTest::Absent })
        }
        "RegularExpression" => pattern(&value, problems).map(ValueTest::Regex),
        // Semantics 1.6: an empty prefix is a way to say Present.
        "Prefix" => text(&value, problems).map(ValueTest::Prefix),
        _ => text(&value, problems).map(ValueTest::Exact),
    }
}

/// A text that is there, be it empty.
fn text(value: &At, problems: &mut Problems) -> Option<Name> {
    if !value.is_set() {
        problems.add(value, "it is missing");
    }
    value.text(problems).map(Name::new)
}

fn limit(at: &At, count: usize, problems: &mut Problems) {
    if count > MANY {
        problems.add(at, format!("at most {MANY} can be given"));
    }
}
