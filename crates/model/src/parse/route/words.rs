//! Spelling: host names, header names, paths, and the sentence for the form that the seed gave up.

use super::at::{At, Problems, quoted};
use crate::name::Name;
use crate::route::Hostname;

/// Seed 004, "Surprising behavior of top level `default`".
pub(super) const DEFAULT_BELONGS_INTO_RULES: &str = "`default` belongs into each rule, so that policies are \
    merged rule by rule: instead of `default: {rules: [{matches: [...], backendRefs: [...]}]}` write \
    `rules: [{matches: [...], default: {backendRefs: [...]}}]`, with `filters` beside `backendRefs`";

/// A host name of a route or listener: `example.com`, `*.example.com` or `*`.
pub(super) fn hostname(at: &At, problems: &mut Problems) -> Option<Hostname> {
    let text = at.needed(problems)?;
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text != "*" && !is_host(name) {
        let text = quoted(text);
        problems.add(
            at,
            format!(
                "{text} is not a host name: lower case, no port and no address, as example.com or *.example.com"
            ),
        );
        return None;
    }
    Some(Hostname::parse(text))
}

/// The host of a redirect or rewrite: one, in lower case (RFC 1123).
pub(super) fn exact_host(at: &At, problems: &mut Problems) -> Option<Name> {
    let text = at.text(problems)?;
    if !is_host(text) {
        let text = quoted(text);
        problems.add(
            at,
            format!("{text} is not a host name: lower case, no port and no address, as web.example.com"),
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

/// The name of a header (RFC 9110), as it was written.
pub(super) fn header_name(at: &At, problems: &mut Problems) -> Option<Name> {
    let text = at.needed(problems)?;
    if text.len() > 256 || !text.bytes().all(is_token) {
        problems.add(at, format!("{} is not the name of a header", quoted(text)));
        return None;
    }
    Some(Name::new(text))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The value of a header that is written: line breaks would smuggle another header in.
pub(super) fn header_value(at: &At, problems: &mut Problems) -> Option<Name> {
    let text = at.text(problems)?;
    let is_plain = |b: u8| b == b'\t' || (b >= 0x20 && b != 0x7f);
    if text.len() > 4096 || !text.bytes().all(is_plain) {
        problems.add(at, "the value of a header has at most 4096 bytes and no control characters");
        return None;
    }
    Some(Name::new(text))
}

/// A path that somebody can ask for: absolute, without query and fragment, in visible characters.
pub(super) fn absolute_path(at: &At, what: &str, problems: &mut Problems) -> Option<Name> {
    let text = at.needed(problems)?;
    let visible = text.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if !text.starts_with('/') {
        problems.add(at, format!("{what} must be absolute: write {}", quoted(&format!("/{text}"))));
        return None;
    }
    if !visible || text.contains(['?', '#']) || text.len() > 1024 {
        problems.add(at, format!("{what} has at most 1024 bytes and no blanks, '?' or '#'"));
        return None;
    }
    Some(Name::new(text))
}
