//! `filters`: each with a `type`, or with exactly one member.

use std::collections::BTreeSet;

use base64::Engine;

use super::syntax::{absolute_path, exact_host, header_name, header_value};
use super::target_ref::{BackendRole, backend};
use crate::field::{Field, FieldErrors, quoted};
use crate::name::Name;
use crate::route::{
    DirectResponseBody, HeaderModifier, PathChange, Percentage, RedirectFilter, RewriteFilter, RouteFilter,
    Scheme,
};

/// Type, member, and the short name of the member.
const TYPES: [(&str, &str, &str); 6] = [
    ("RequestHeaderModifier", "requestHeaderModifier", "requestHeader"),
    ("ResponseHeaderModifier", "responseHeaderModifier", "responseHeader"),
    ("RequestMirror", "requestMirror", ""),
    ("RequestRedirect", "requestRedirect", ""),
    ("URLRewrite", "urlRewrite", ""),
    ("DirectResponse", "directResponse", ""),
];

/// The most entries in one list of a header modifier (semantics 1.2).
const MAX_HEADERS: usize = 16;
const MAX_FILTERS: usize = 16;
const MAX_BODY_BYTES: usize = 65_536;
const MAX_PATH_BYTES: usize = 4096;
const MAX_VARIABLE_BYTES: usize = 256;

pub(super) fn filters(at: &Field, errors: &mut FieldErrors) -> Box<[RouteFilter]> {
    at.limit(MAX_FILTERS, "filters", errors);
    at.items(errors).iter().filter_map(|item| one(item, errors)).collect()
}

fn one(at: &Field, errors: &mut FieldErrors) -> Option<RouteFilter> {
    let members = TYPES.iter().flat_map(|(_, member, short)| [*member, *short]);
    let known: Vec<&str> = std::iter::once("type").chain(members.filter(|name| !name.is_empty())).collect();
    at.only(&known, errors);
    let (kind, member) = member_of(at, errors)?;
    match kind {
        "RequestHeaderModifier" => modifier(&member, errors).map(RouteFilter::RequestHeaders),
        "ResponseHeaderModifier" => modifier(&member, errors).map(RouteFilter::ResponseHeaders),
        "RequestMirror" => mirror(&member, errors),
        "RequestRedirect" => Some(RouteFilter::Redirect(redirect(&member, errors))),
        "URLRewrite" => Some(RouteFilter::Rewrite(rewrite(&member, errors))),
        _ => direct_response(&member, errors),
    }
}

/// The type and its member. Without a type, the only member implies it.
fn member_of<'a>(at: &Field<'a>, errors: &mut FieldErrors) -> Option<(&'static str, Field<'a>)> {
    let named = |(kind, member, short): &(&'static str, &'static str, &'static str)| {
        let names = [*member, *short].into_iter().filter(|name| !name.is_empty());
        names.map(|name| at.child(name)).filter(Field::is_set).map(|found| (*kind, found)).collect::<Vec<_>>()
    };
    let given: Vec<(&'static str, Field)> = TYPES.iter().flat_map(named).collect();
    let field = at.child("type");
    if !field.is_set() {
        if given.len() != 1 {
            errors.invalid(at, "a filter needs a type, or exactly one member");
        }
        return given.into_iter().next();
    }
    let kinds = TYPES.map(|(kind, _, _)| kind);
    let word = field.keyword(&kinds, errors)?;
    let (kind, member, _) = TYPES.iter().find(|(kind, _, _)| *kind == word)?;
    for (_, other) in given.iter().filter(|(other, _)| other != kind) {
        errors.invalid(other, format!("a filter of type {kind} takes only {member}"));
    }
    let mut own = given.into_iter().filter(|(found, _)| found == kind);
    let first = own.next();
    if first.is_none() {
        errors.invalid(&at.child(member), format!("is missing: the type is {kind}"));
    }
    if let Some((_, second)) = own.next() {
        errors.invalid(&second, format!("is short for {member}: write one of them"));
    }
    first
}

fn modifier(at: &Field, errors: &mut FieldErrors) -> Option<HeaderModifier> {
    at.only(&["set", "add", "remove"], errors);
    let mut seen = BTreeSet::new();
    let (set, add, gone) = (at.child("set"), at.child("add"), at.child("remove"));
    let modifier = HeaderModifier {
        set: header_pairs(&set, &mut seen, errors),
        add: header_pairs(&add, &mut seen, errors),
        remove: removals(&gone, &mut seen, errors),
    };
    let is_empty = [&set, &add, &gone].iter().all(|list| !list.is_set() || list.items(errors).is_empty());
    if is_empty && at.is_map() {
        errors.invalid(at, "has no effect: set at least one of set, add and remove");
        return None;
    }
    Some(modifier)
}

fn header_pairs(at: &Field, seen: &mut BTreeSet<String>, errors: &mut FieldErrors) -> Box<[(Name, Name)]> {
    let items = at.items(errors);
    at.limit(MAX_HEADERS, "headers", errors);
    let mut pairs = Vec::new();
    for item in items {
        item.only(&["name", "value"], errors);
        let field = item.child("name");
        let name = header_name(&field, errors);
        // `value:` without anything after it (null) is an empty value.
        let value = item.child("value");
        if !value.is_set() && !item.has_member("value") && item.is_map() {
            errors.invalid(&value, "is missing; write \"\" for an empty value");
        }
        let value = if value.is_set() { header_value(&value, errors) } else { Some(Name::default()) };
        let (Some(name), Some(value)) = (name, value) else { continue };
        check_unique(&name, &field, seen, errors);
        pairs.push((name, value));
    }
    pairs.into()
}

fn removals(at: &Field, seen: &mut BTreeSet<String>, errors: &mut FieldErrors) -> Box<[Name]> {
    let items = at.items(errors);
    at.limit(MAX_HEADERS, "headers", errors);
    let mut names = Vec::new();
    for item in items {
        let Some(name) = header_name(&item, errors) else { continue };
        check_unique(&name, &item, seen, errors);
        names.push(name);
    }
    names.into()
}

/// Semantics 1.9: a header occurs once in a modifier, regardless of case.
fn check_unique(name: &Name, at: &Field, seen: &mut BTreeSet<String>, errors: &mut FieldErrors) {
    if !seen.insert(name.to_ascii_lowercase()) {
        errors.invalid(at, format!("{name} occurs twice in one filter"));
    }
}

fn mirror(at: &Field, errors: &mut FieldErrors) -> Option<RouteFilter> {
    at.only(&["backendRef", "percentage"], errors);
    let field = at.child("backendRef");
    if !field.is_set() {
        errors.invalid(&field, "is missing: name the Service that receives the copies");
    }
    let percentage = percentage(&at.child("percentage"), errors);
    let backend = field.is_set().then(|| backend(&field, BackendRole::Mirror, errors)).flatten()?;
    Some(RouteFilter::Mirror { backend, percentage })
}

/// A number, or a decimal number in quotes.
pub(super) fn percentage(at: &Field, errors: &mut FieldErrors) -> Option<Percentage> {
    if !at.is_set() {
        return None;
    }
    let is_decimal = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = at.as_whole().or_else(|| at.as_str().filter(is_decimal)?.parse().ok());
    match number.filter(|number| (0.0..=100.0).contains(number)) {
        Some(number) => Some(Percentage((number * 10_000.0).round() as u32)),
        None => {
            errors.invalid(at, "expected a percentage from 0 to 100, e.g. 5 or \"0.5\"");
            None
        }
    }
}

fn redirect(at: &Field, errors: &mut FieldErrors) -> RedirectFilter {
    at.only(&["scheme", "hostname", "path", "port", "statusCode"], errors);
    let scheme = at.child("scheme").keyword(&["http", "https"], errors);
    let status = at.child("statusCode");
    let code = status.integer(errors).and_then(|code| u16::try_from(code).ok());
    if status.as_f64().is_some() && !matches!(code, Some(301 | 302 | 303 | 307 | 308)) {
        errors.invalid(&status, "the status of a redirect is 301, 302, 303, 307 or 308");
    }
    RedirectFilter {
        scheme: scheme.map(|scheme| if scheme == "https" { Scheme::Https } else { Scheme::Http }),
        hostname: exact_host(&at.child("hostname"), errors),
        path: path_change(&at.child("path"), errors),
        port: at.child("port").port(errors),
        status: code,
    }
}

fn rewrite(at: &Field, errors: &mut FieldErrors) -> RewriteFilter {
    at.only(&["hostname", "path"], errors);
    if at.is_map() && !at.child("hostname").is_set() && !at.child("path").is_set() {
        errors.invalid(at, "has no effect: set hostname or path");
    }
    RewriteFilter {
        hostname: exact_host(&at.child("hostname"), errors),
        path: path_change(&at.child("path"), errors),
    }
}

fn path_change(at: &Field, errors: &mut FieldErrors) -> Option<PathChange> {
    if !at.is_set() {
        return None;
    }
    at.only(&["replaceFullPath", "replacePrefixMatch"], errors);
    let (full, prefix) = (at.child("replaceFullPath"), at.child("replacePrefixMatch"));
    if full.is_set() == prefix.is_set() && at.is_map() {
        errors.invalid(at, "set exactly one of replaceFullPath and replacePrefixMatch");
        return None;
    }
    match full.is_set() {
        true => absolute_path(&full, "a path", errors).map(PathChange::Full),
        false if prefix.is_set() => absolute_path(&prefix, "a replacement", errors).map(PathChange::Prefix),
        false => None,
    }
}

pub(super) fn direct_response(at: &Field, errors: &mut FieldErrors) -> Option<RouteFilter> {
    at.only(&["status", "body"], errors);
    let field = at.child("status");
    if at.is_map() && !field.is_set() {
        errors.invalid(&field, "is missing");
    }
    let status = field.integer_within(200, 599, errors).and_then(|status| u16::try_from(status).ok());
    let body = at.child("body");
    if body.is_set() && matches!(status, Some(204 | 205 | 304)) {
        errors.invalid(&body, "a response with this status has no body");
    }
    let body = if body.is_set() { read_body(&body, errors) } else { None };
    Some(RouteFilter::Respond { status: status?, body })
}

fn read_body(at: &Field, errors: &mut FieldErrors) -> Option<DirectResponseBody> {
    let sources = ["inlineString", "inlineBytes", "filename", "environmentVariable"];
    at.only(&sources, errors);
    let given: Vec<&str> = sources.into_iter().filter(|name| at.child(name).is_set()).collect();
    let [source] = given[..] else {
        if at.is_map() {
            errors.invalid(at, format!("set exactly one of {}", sources.join(", ")));
        }
        return None;
    };
    let field = at.child(source);
    let text = field.string(errors)?;
    let max = match source {
        "filename" => MAX_PATH_BYTES,
        "environmentVariable" => MAX_VARIABLE_BYTES,
        _ => MAX_BODY_BYTES,
    };
    field.limit_bytes(max, errors);
    match source {
        "inlineString" => Some(DirectResponseBody::Text(Name::new(text))),
        "inlineBytes" => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Some(DirectResponseBody::Bytes(bytes.into())),
            Err(error) => {
                errors.invalid(&field, format!("is not base64: {error}"));
                None
            }
        },
        "filename" => {
            let steps = text.split('/').any(|step| step == "..");
            if !text.starts_with('/') || steps || text.contains('\0') {
                errors.invalid(&field, "expected an absolute path without \"..\"");
            }
            Some(DirectResponseBody::File(Name::new(text)))
        }
        _ => {
            let is_good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if text.is_empty() || !text.bytes().all(is_good) || text.starts_with(|c: char| c.is_ascii_digit())
            {
                errors
                    .invalid(&field, format!("{} is not the name of an environment variable", quoted(text)));
            }
            Some(DirectResponseBody::Environment(Name::new(text)))
        }
    }
}
