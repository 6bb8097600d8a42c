//! Paths of requests: normalised before matching, rewritten afterwards.

use std::borrow::Cow;

/// Splits a request target into path and query.
pub fn split(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// What of a path is changed before it is matched. Backends differ in how they read `//`, `%2f`, `\` and `;`: what they
/// could read as another path than the one that was matched is normalised or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathNormalization {
    /// `//` becomes `/`.
    pub merge_slashes: bool,
    pub escaped_slashes: EscapedSlashes,
    pub path_parameters: PathParameters,
}

/// Handling of paths with `%2f` or `%5c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapedSlashes {
    Keep,
    /// 400.
    Reject,
    /// Unescaped, and the client is redirected to the result.
    Redirect,
    /// Unescaped, matched and forwarded.
    Unescape,
}

/// Handling of paths with parameters, as in `/a;v=1/b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathParameters {
    /// Part of their segment (RFC 3986, 3.3).
    Keep,
    /// 400, for backends that remove them.
    Reject,
}

/// The values of Envoy's guide for the edge.
impl Default for PathNormalization {
    fn default() -> Self {
        Self {
            merge_slashes: true,
            escaped_slashes: EscapedSlashes::Redirect,
            path_parameters: PathParameters::Keep,
        }
    }
}

/// The decision about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NormalizedPath<'p> {
    /// Matched and forwarded.
    Matched(Cow<'p, str>),
    /// The client is redirected to this path, with its query.
    Redirect(String),
    /// 400, with the reason.
    Rejected(&'static str),
}

impl PathNormalization {
    /// Normalises a path without its query: escaped slashes as configured, `\` is `/`, escaped unreserved characters such
    /// as `%62` are decoded, `.` and `..` are resolved, also as `..;`, and slashes are merged (semantics 1.6). A path of
    /// nothing but slashes is refused where they are merged.
    pub fn normalize<'p>(&self, path: &'p str) -> NormalizedPath<'p> {
        if !path.starts_with('/') || !needs_work(path) {
            return NormalizedPath::Matched(Cow::Borrowed(path));
        }
        let keeps = self.escaped_slashes == EscapedSlashes::Keep;
        let unescaped =
            if keeps { Cow::Borrowed(path) } else { decoded(path, |byte| matches!(byte, b'/' | b'\\')) };
        let had_escaped_slash = matches!(unescaped, Cow::Owned(_));
        if had_escaped_slash && self.escaped_slashes == EscapedSlashes::Reject {
            return NormalizedPath::Rejected("the path contains an escaped slash");
        }
        let segments: Vec<&str> = unescaped.split(['/', '\\']).map(without_dot_parameter).collect();
        let mut normal = without_dots(&decoded(&segments.join("/"), is_unreserved));
        let redirects = had_escaped_slash && self.escaped_slashes == EscapedSlashes::Redirect;
        if self.merge_slashes {
            // Envoy's `merge_slashes` makes `//` of it, which no rule on `/` would match.
            if !redirects && normal.len() > 1 && normal.bytes().all(|byte| byte == b'/') {
                return NormalizedPath::Rejected("the path consists of slashes");
            }
            normal = merged(&normal);
        }
        if let Some(why) = self.ambiguity(&normal) {
            return NormalizedPath::Rejected(why);
        }
        if !redirects {
            return NormalizedPath::Matched(Cow::Owned(normal));
        }
        match normal.starts_with("//") {
            // As a Location, it would name another host.
            true => NormalizedPath::Rejected("the path contains an escaped slash"),
            false => NormalizedPath::Redirect(normal),
        }
    }

    /// What a backend could still read as another path.
    fn ambiguity(&self, normal: &str) -> Option<&'static str> {
        let lower = normal.to_ascii_lowercase();
        let has_escaped = |escaped: &str| lower.contains(escaped);
        let is_dot_with_parameter = |segment: &str| {
            let rest = segment.strip_prefix("..").or_else(|| segment.strip_prefix('.'));
            rest.is_some_and(|rest| rest.starts_with(';') || rest.starts_with("%3b"))
        };
        // Escapes are resolved once: what looks like one now was escaped twice, or in pieces such as `%%32f`.
        if has_escaped("%00") || has_escaped("%2e") {
            Some("the path contains an escaped zero byte or a doubly escaped dot")
        } else if self.escaped_slashes != EscapedSlashes::Keep && (has_escaped("%2f") || has_escaped("%5c")) {
            Some("the path contains a doubly escaped slash")
        } else if lower.split('/').any(is_dot_with_parameter) {
            Some("the path contains an escaped dot segment with a parameter")
        } else if self.path_parameters == PathParameters::Reject
            && (lower.contains(';') || has_escaped("%3b"))
        {
            Some("the path contains a parameter")
        } else {
            None
        }
    }
}

/// `..;a=b` is `..` for backends that remove parameters first.
fn without_dot_parameter(segment: &str) -> &str {
    match segment.split_once(';') {
        Some((dots @ ("." | ".."), _)) => dots,
        _ => segment,
    }
}

/// Most paths are normal already.
fn needs_work(path: &str) -> bool {
    let mut after_slash = false;
    path.bytes().any(|byte| {
        let found = matches!(byte, b'%' | b'\\' | b';') || (after_slash && matches!(byte, b'/' | b'.'));
        after_slash = byte == b'/';
        found
    })
}

fn merged(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for letter in path.chars() {
        if letter != '/' || !text.ends_with('/') {
            text.push(letter);
        }
    }
    text
}

/// Decodes the escaped characters that are wanted, all of them ASCII. RFC 3986, 6.2.2.2: an escaped unreserved character
/// is the same as the character.
fn decoded(path: &str, is_wanted: fn(u8) -> bool) -> Cow<'_, str> {
    let mut text = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = path.get(at..).and_then(|rest| rest.find('%')) {
        at += found;
        match path
            .as_bytes()
            .get(at + 1..at + 3)
            .and_then(hex)
            .filter(|byte| byte.is_ascii() && is_wanted(*byte))
        {
            Some(byte) => {
                text.push_str(&path[copied..at]);
                text.push(char::from(byte));
                at += 3;
                copied = at;
            }
            None => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(path);
    }
    text.push_str(&path[copied..]);
    Cow::Owned(text)
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
