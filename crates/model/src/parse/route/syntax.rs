//! Syntax of host names, header names, header values and paths.

use crate::field::{Field, FieldErrors, quoted};
use crate::name::Name;
use crate::route::Hostname;

/// Seed 004, "Surprising behavior of top level `default`".
pub(super) const DEFAULT_BELONGS_IN_RULES: &str = "`default` belongs in each rule, so that policies are \
    merged rule by rule: instead of `default: {rules: [{matches: [...], backendRefs: [...]}]}` write \
    `rules: [{matches: [...], default: {backendRefs: [...]}}]`, with `filters` beside `backendRefs`";

/// The host name of a route or listener: `example.com`, `*.example.com` or `*`.
pub(super) fn hostname(at: &Field, errors: &mut FieldErrors) -> Option<Hostname> {
    let text = at.required_string(errors)?;
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text != "*" && !is_host(name) {
        let text = quoted(text);
        errors.invalid(
            at,
            format!(
                "{text} is not a host name: lower case, without port, not an address, e.g. example.com or *.example.com"
            ),
        );
        return None;
    }
    Some(Hostname::parse(text))
}

/// The host of a redirect or rewrite (RFC 1123, lower case).
pub(super) fn exact_host(at: &Field, errors: &mut FieldErrors) -> Option<Name> {
    let text = at.string(errors)?;
    if !is_host(text) {
        let text = quoted(text);
        errors.invalid(
            at,
            format!(
                "{text} is not a host name: lower case, without port, not an address, e.g. web.example.com"
            ),
        );
        return None;
    }
    Some(Name::new(text))
}

fn is_host(text: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.len() <= 63
            && bytes.first().is_some_and(|b| is_letter(*b))
            && bytes.last().is_some_and(|b| is_letter(*b))
            && bytes.iter().all(|b| is_letter(*b) || *b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label) && text.parse::<std::net::IpAddr>().is_err()
}

/// A header name (RFC 9110), in its original case.
pub(super) fn header_name(at: &Field, errors: &mut FieldErrors) -> Option<Name> {
    let text = at.required_string(errors)?;
    if text.len() > 256 || !text.bytes().all(is_token) {
        errors.invalid(at, format!("{} is not a header name", quoted(text)));
        return None;
    }
    Some(Name::new(text))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A header value. Line breaks are refused, because they would inject another header.
pub(super) fn header_value(at: &Field, errors: &mut FieldErrors) -> Option<Name> {
    let text = at.string(errors)?;
    let is_plain = |b: u8| b == b'\t' || (b >= 0x20 && b != 0x7f);
    if text.len() > 4096 || !text.bytes().all(is_plain) {
        errors.invalid(at, "a header value has at most 4096 bytes and no control characters");
        return None;
    }
    Some(Name::new(text))
}

/// A request path: absolute, without query and fragment, in printable characters.
pub(super) fn absolute_path(at: &Field, what: &str, errors: &mut FieldErrors) -> Option<Name> {
    let text = at.required_string(errors)?;
    let visible = text.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if !text.starts_with('/') {
        errors.invalid(at, format!("{what} must be absolute: write {}", quoted(&format!("/{text}"))));
        return None;
    }
    if !visible || text.contains(['?', '#']) || text.len() > 1024 {
        errors.invalid(at, format!("{what} has at most 1024 bytes and no spaces, '?' or '#'"));
        return None;
    }
    Some(Name::new(text))
}
