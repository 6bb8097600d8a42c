//! Paths of requests: normalised before matching, rewritten afterwards.

use std::borrow::Cow;

/// Splits a request target into path and query.
pub fn split(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// The path that is matched and forwarded: `.` and `..` are resolved, escaped unreserved characters such as `%62` are
/// decoded, `//` stays (semantics 1.6). Otherwise `/a/../admin` would match a rule for `/a`.
pub fn normalize(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || !needs_work(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(without_dots(&decoded(path)))
}

fn needs_work(path: &str) -> bool {
    path.contains('%') || path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// RFC 3986, 6.2.2.2: an escaped unreserved character is the same as the character.
fn decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut text = String::with_capacity(path.len());
    let mut at = 0;
    while let Some(rest) = path.get(at..).filter(|rest| !rest.is_empty()) {
        let escaped = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(hex);
        match escaped {
            Some(byte) if is_unreserved(byte) => {
                text.push(char::from(byte));
                at += 3;
            }
            _ => {
                let letter = rest.chars().next().unwrap_or_default();
                text.push(letter);
                at += letter.len_utf8();
            }
        }
    }
    text
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(*digits.first()?)? * 16 + digit(*digits.get(1)?)?;
    u8::try_from(value).ok()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// RFC 3986, 5.2.4.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let last = segments.len().saturating_sub(1);
    for (i, segment) in segments.into_iter().enumerate() {
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if i == last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Replaces the prefix of a path below it (semantics 1.7): `/p` -> `/n`, `/p/x` -> `/n/x`, without doubled slashes. For
/// the prefix `/`, the path `/` becomes `/n`.
pub fn replace_prefix(path: &str, prefix: &str, replacement: &str) -> String {
    let rest = match prefix {
        "/" if path == "/" => "",
        "/" => path,
        prefix => path.strip_prefix(prefix).unwrap_or(path),
    };
    let start = replacement.strip_suffix('/').unwrap_or(replacement);
    match (start, rest) {
        ("", "") => "/".to_owned(),
        _ => format!("{start}{rest}"),
    }
}

/// Joins path and query.
pub fn join(path: &str, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}
