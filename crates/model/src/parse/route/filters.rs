//! `filters`: each with its type, or by the one member that it has.

use std::collections::BTreeSet;

use base64::Engine;

use super::at::{At, Problems, quoted};
use super::target::backend;
use super::words::{absolute_path, exact_host, header_name, header_value};
use crate::name::Name;
use crate::route::{
    DirectResponseBody, HeaderModifier, PathChange, Percentage, RedirectFilter, RewriteFilter, RouteFilter,
    Scheme,
};

/// Each type with its member, and with the shorter name that the seed's examples use.
const TYPES: [(&str, &str, &str); 6] = [
    ("RequestHeaderModifier", "requestHeaderModifier", "requestHeader"),
    ("ResponseHeaderModifier", "responseHeaderModifier", "responseHeader"),
    ("RequestMirror", "requestMirror", ""),
    ("RequestRedirect", "requestRedirect", ""),
    ("URLRewrite", "urlRewrite", ""),
    ("DirectResponse", "directResponse", ""),
];

/// As many changes as one list of a header modifier may have (semantics 1.2).
const MANY_HEADERS: usize = 16;
const MANY_FILTERS: usize = 16;
const LARGEST_BODY: usize = 65_536;

pub(super) fn filters(at: &At, problems: &mut Problems) -> Box<[RouteFilter]> {
    let items = at.items(problems);
    if items.len() > MANY_FILTERS {
        problems.add(at, format!("at most {MANY_FILTERS} can be given"));
    }
    items.iter().filter_map(|item| one(item, problems)).collect()
}

fn one(at: &At, problems: &mut Problems) -> Option<RouteFilter> {
    let members = TYPES.iter().flat_map(|(_, member, short)| [*member, *short]);
    let known: Vec<&str> = std::iter::once("type").chain(members.filter(|name| !name.is_empty())).collect();
    at.only(&known, problems);
    let (kind, member) = member_of(at, problems)?;
    match kind {
        "RequestHeaderModifier" => modifier(&member, problems).map(RouteFilter::RequestHeaders),
        "ResponseHeaderModifier" => modifier(&member, problems).map(RouteFilter::ResponseHeaders),
        "RequestMirror" => mirror(&member, problems),
        "RequestRedirect" => Some(RouteFilter::Redirect(redirect(&member, problems))),
        "URLRewrite" => Some(RouteFilter::Rewrite(rewrite(&member, problems))),
        _ => respond(&member, problems),
    }
}

/// The type and its member. Without a type, the only member says it.
fn member_of<'a>(at: &At<'a>, problems: &mut Problems) -> Option<(&'static str, At<'a>)> {
    let named = |(kind, member, short): &(&'static str, &'static str, &'static str)| {
        let names = [*member, *short].into_iter().filter(|name| !name.is_empty());
        names.map(|name| at.child(name)).filter(At::is_set).map(|found| (*kind, found)).collect::<Vec<_>>()
    };
    let given: Vec<(&'static str, At)> = TYPES.iter().flat_map(named).collect();
    let field = at.child("type");
    if !field.is_set() {
        if given.len() != 1 {
            problems.add(at, "a filter is one thing: give it a type, or exactly one of the members");
        }
        return given.into_iter().next();
    }
    let kinds = TYPES.map(|(kind, _, _)| kind);
    let word = field.word(&kinds, problems)?;
    let (kind, member, _) = TYPES.iter().find(|(kind, _, _)| *kind == word)?;
    for (_, other) in given.iter().filter(|(other, _)| other != kind) {
        problems.add(other, format!("a filter of type {kind} takes only {member}"));
    }
    let own = given.into_iter().find(|(found, _)| found == kind);
    if own.is_none() {
        problems.add(&at.child(member), format!("it is missing: the type is {kind}"));
    }
    own
}

fn modifier(at: &At, problems: &mut Problems) -> Option<HeaderModifier> {
    at.only(&["set", "add", "remove"], problems);
    let mut seen = BTreeSet::new();
    let (set, add, gone) = (at.child("set"), at.child("add"), at.child("remove"));
    let modifier = HeaderModifier {
        set: header_pairs(&set, &mut seen, problems),
        add: header_pairs(&add, &mut seen, problems),
        remove: removals(&gone, &mut seen, problems),
    };
    let is_empty = [&set, &add, &gone].iter().all(|list| !list.is_set() || list.items(problems).is_empty());
    if is_empty && at.is_map() {
        problems.add(at, "it changes nothing: give set, add or remove");
        return None;
    }
    Some(modifier)
}

fn header_pairs(at: &At, seen: &mut BTreeSet<String>, problems: &mut Problems) -> Box<[(Name, Name)]> {
    let items = at.items(problems);
    limit_headers(at, items.len(), problems);
    let mut pairs = Vec::new();
    for item in items {
        item.only(&["name", "value"], problems);
        let field = item.child("name");
        let name = header_name(&field, problems);
        // `value:` with nothing behind it, as in one of the seed's examples, is an empty value.
        let value = item.child("value");
        if !value.is_set() && !item.names("value") && item.is_map() {
            problems.add(&value, "it is missing; an empty one is written \"\"");
        }
        let value = if value.is_set() { header_value(&value, problems) } else { Some(Name::default()) };
        let (Some(name), Some(value)) = (name, value) else { continue };
        once(&name, &field, seen, problems);
        pairs.push((name, value));
    }
    pairs.into()
}

fn removals(at: &At, seen: &mut BTreeSet<String>, problems: &mut Problems) -> Box<[Name]> {
    let items = at.items(problems);
    limit_headers(at, items.len(), problems);
    let mut names = Vec::new();
    for item in items {
        let Some(name) = header_name(&item, problems) else { continue };
        once(&name, &item, seen, problems);
        names.push(name);
    }
    names.into()
}

/// Semantics 1.9: one name stands once in a modifier, whatever its case.
fn once(name: &Name, at: &At, seen: &mut BTreeSet<String>, problems: &mut Problems) {
    if !seen.insert(name.to_ascii_lowercase()) {
        problems.add(at, format!("{name} is changed twice by one filter"));
    }
}

fn limit_headers(at: &At, count: usize, problems: &mut Problems) {
    if count > MANY_HEADERS {
        problems.add(at, format!("at most {MANY_HEADERS} can be given"));
    }
}

fn mirror(at: &At, problems: &mut Problems) -> Option<RouteFilter> {
    at.only(&["backendRef", "percentage"], problems);
    let field = at.child("backendRef");
    if !field.is_set() {
        problems.add(&field, "it is missing: name the Service that gets the copies");
    }
    let percentage = percentage(&at.child("percentage"), problems);
    let backend = field.is_set().then(|| backend(&field, false, problems)).flatten()?;
    Some(RouteFilter::Mirror { backend, percentage })
}

/// A whole number, or a decimal one in quotes.
fn percentage(at: &At, problems: &mut Problems) -> Option<Percentage> {
    if !at.is_set() {
        return None;
    }
    let is_decimal = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = at.number().or_else(|| at.peek().filter(is_decimal)?.parse().ok());
    match number.filter(|number| (0.0..=100.0).contains(number)) {
        Some(number) => Some(Percentage((number * 10_000.0).round() as u32)),
        None => {
            problems.add(at, "it is not a percentage from 0 to 100, as 5 or \"0.5\"");
            None
        }
    }
}

fn redirect(at: &At, problems: &mut Problems) -> RedirectFilter {
    at.only(&["scheme", "hostname", "path", "port", "statusCode"], problems);
    let scheme = at.child("scheme").word(&["http", "https"], problems);
    let status = at.child("statusCode");
    let code = status.whole(problems).and_then(|code| u16::try_from(code).ok());
    if status.number().is_some() && !matches!(code, Some(301 | 302 | 303 | 307 | 308)) {
        problems.add(&status, "a redirect has the status 301, 302, 303, 307 or 308");
    }
    RedirectFilter {
        scheme: scheme.map(|scheme| if scheme == "https" { Scheme::Https } else { Scheme::Http }),
        hostname: exact_host(&at.child("hostname"), problems),
        path: path_change(&at.child("path"), problems),
        port: at.child("port").port(problems),
        status: code,
    }
}

fn rewrite(at: &At, problems: &mut Problems) -> RewriteFilter {
    at.only(&["hostname", "path"], problems);
    if at.is_map() && !at.child("hostname").is_set() && !at.child("path").is_set() {
        problems.add(at, "it changes nothing: give hostname or path");
    }
    RewriteFilter {
        hostname: exact_host(&at.child("hostname"), problems),
        path: path_change(&at.child("path"), problems),
    }
}

fn path_change(at: &At, problems: &mut Problems) -> Option<PathChange> {
    if !at.is_set() {
        return None;
    }
    at.only(&["replaceFullPath", "replacePrefixMatch"], problems);
    let (full, prefix) = (at.child("replaceFullPath"), at.child("replacePrefixMatch"));
    if full.is_set() == prefix.is_set() && at.is_map() {
        problems.add(at, "give one of replaceFullPath and replacePrefixMatch");
        return None;
    }
    match full.is_set() {
        true => absolute_path(&full, "a path", problems).map(PathChange::Full),
        false if prefix.is_set() => absolute_path(&prefix, "a replacement", problems).map(PathChange::Prefix),
        false => None,
    }
}

fn respond(at: &At, problems: &mut Problems) -> Option<RouteFilter> {
    at.only(&["status", "body"], problems);
    let field = at.child("status");
    if at.is_map() && !field.is_set() {
        problems.add(&field, "it is missing: a response has a status");
    }
    let status = field.within(200, 599, problems).and_then(|status| u16::try_from(status).ok());
    let body = at.child("body");
    if body.is_set() && matches!(status, Some(204 | 205 | 304)) {
        problems.add(&body, "a response of this status has no body");
    }
    let body = if body.is_set() { read_body(&body, problems) } else { None };
    Some(RouteFilter::Respond { status: status?, body })
}

fn read_body(at: &At, problems: &mut Problems) -> Option<DirectResponseBody> {
    let sources = ["inlineString", "inlineBytes", "filename", "environmentVariable"];
    at.only(&sources, problems);
    let given: Vec<&str> = sources.into_iter().filter(|name| at.child(name).is_set()).collect();
    let [source] = given[..] else {
        if at.is_map() {
            problems.add(at, format!("give one of {}", sources.join(", ")));
        }
        return None;
    };
    let field = at.child(source);
    let text = field.text(problems)?;
    if text.len() > LARGEST_BODY {
        problems.add(&field, format!("a body in a policy has at most {LARGEST_BODY} bytes"));
    }
    match source {
        "inlineString" => Some(DirectResponseBody::Text(Name::new(text))),
        "inlineBytes" => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Some(DirectResponseBody::Bytes(bytes.into())),
            Err(error) => {
                problems.add(&field, format!("it is not base64: {error}"));
                None
            }
        },
        "filename" => {
            let steps = text.split('/').any(|step| step == "..");
            if !text.starts_with('/') || steps || text.contains('\0') {
                problems.add(&field, "a file is named by its absolute path, without ..");
            }
            Some(DirectResponseBody::File(Name::new(text)))
        }
        _ => {
            let is_good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if text.is_empty() || !text.bytes().all(is_good) || text.starts_with(|c: char| c.is_ascii_digit())
            {
                problems.add(&field, format!("{} is not the name of a variable", quoted(text)));
            }
            Some(DirectResponseBody::Environment(Name::new(text)))
        }
    }
}
