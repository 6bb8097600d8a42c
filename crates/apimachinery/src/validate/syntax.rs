//! Formats of names, label keys and label values, each a `FormatRule` whose message has a valid example.

use model::field::{Field, FieldErrors, not_one_of, quoted};

/// One of a fixed set of strings; an absent or empty string is valid.
pub(super) fn one_of<'a>(field: &Field<'a>, keywords: &[&str], errors: &mut FieldErrors) -> Option<&'a str> {
    let text = field.nonempty_string(errors)?;
    if keywords.contains(&text) {
        return Some(text);
    }
    errors.not_supported(field, not_one_of(text, keywords));
    None
}

const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;
const MAX_PORT_NAME: usize = 15;

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_word(text: &str, end: fn(u8) -> bool, middle: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    end(*first) && end(*last) && bytes.iter().all(|b| end(*b) || middle(*b))
}

fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_lower_word(text)
}

fn is_lower_word(text: &str) -> bool {
    is_word(text, is_lower, |b| b == b'-')
}

/// Only the total length is limited: a part may be longer than a label.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_lower_word)
}

/// RFC 1123: the name of a namespace, a port, a host.
pub(super) fn dns_label(text: &str) -> Option<String> {
    (!is_dns_label(text)).then(|| {
        format!(
            "{} is not a DNS label: at most 63 characters of a-z, 0-9 and '-', starting and ending with a letter or \
             digit, e.g. my-name or 8-ball",
            quoted(text)
        )
    })
}

/// RFC 1123 subdomain, the format of most object names.
pub(super) fn dns_subdomain(text: &str) -> Option<String> {
    (!is_dns_subdomain(text)).then(|| {
        format!(
            "{} is not a DNS name: at most 253 characters, labels of a-z, 0-9 and '-' separated by dots, each starting \
             and ending with a letter or digit, e.g. web.example.com",
            quoted(text)
        )
    })
}

/// A DNS name of at least two labels, with or without the final dot.
pub(super) fn fully_qualified_domain(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let good = is_dns_subdomain(name) && name.contains('.') && name.split('.').all(is_dns_label);
    (!good).then(|| {
        format!(
            "{} is not a fully qualified domain name: at least two DNS labels, e.g. web.example.com",
            quoted(text)
        )
    })
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_name_part(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_word(text, is_alphanumeric, |b| matches!(b, b'-' | b'_' | b'.'))
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_dns_subdomain(domain) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// The key of a label or annotation, an appProtocol, the name of a finalizer: `name` or `domain/name`.
pub(super) fn qualified_name(text: &str) -> Option<String> {
    (!is_qualified_name(text)).then(|| {
        format!(
            "{} is not a qualified name: at most 63 characters of letters, digits, '-', '_' and '.', starting and \
             ending with a letter or digit, with an optional DNS name and slash before it, e.g. my.name or \
             example.com/my-name",
            quoted(text)
        )
    })
}

/// Whether it is `domain/name`.
pub(super) fn is_domain_prefixed(text: &str) -> bool {
    text.contains('/') && is_qualified_name(text)
}

/// A label value, which may be empty.
pub(super) fn label_value(text: &str) -> Option<String> {
    (!text.is_empty() && !is_name_part(text)).then(|| {
        format!(
            "{} is not a label value: empty, or at most 63 characters of letters, digits, '-', '_' and '.', starting \
             and ending with a letter or digit, e.g. my_value.1",
            quoted(text)
        )
    })
}

/// A container port name (RFC 6335).
pub(super) fn port_name(text: &str) -> Option<String> {
    let good = text.len() <= MAX_PORT_NAME
        && is_lower_word(text)
        && !text.contains("--")
        && text.bytes().any(|b| b.is_ascii_lowercase());
    (!good).then(|| {
        format!(
            "{} is not a port name: at most 15 characters of a-z, 0-9 and single '-', with at least one letter, not \
             starting or ending with '-', e.g. http-metrics (write a port number without quotes)",
            quoted(text)
        )
    })
}

/// One segment of a URL path of the API server.
pub(super) fn path_segment(text: &str) -> Option<String> {
    let bad = text.is_empty() || matches!(text, "." | "..") || text.contains(['/', '%']);
    bad.then(|| {
        format!(
            "{} is not a path segment: it must not be empty, '.' or '..', or contain '/' or '%'",
            quoted(text)
        )
    })
}

#[cfg(test)]
mod tests {
    use model::field::FormatRule;

    use super::*;

    fn check(rule: FormatRule, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), None, "{text:?}");
        }
        for text in bad {
            assert!(rule(text).is_some(), "{text:?}");
        }
    }

    #[test]
    fn names_are_spelled_as_kubernetes_spells_them() {
        let label = "a".repeat(63);
        let too_long = "a".repeat(64);
        let subdomain = format!("{too_long}.{}", "b".repeat(188));
        let too_long_subdomain = format!("{subdomain}c");
        check(dns_label, &["a", "1", "a-1", &label], &["", "-a", "a-", "A", "a.b", "a_b", "ä", &too_long]);
        check(
            dns_subdomain,
            &["a", "1", "a.b", "a-1.b", &subdomain],
            &["", ".", "a.", ".a", "a..b", "a.-b", "A.b", &too_long_subdomain],
        );
        check(
            fully_qualified_domain,
            &["a.b", "a.b.", "web.example.com"],
            &["", "a", "a..", "a.b..", "A.b", &format!("{too_long}.b")],
        );
    }

    #[test]
    fn label_keys_and_values_are_spelled_as_kubernetes_spells_them() {
        let name = "n".repeat(63);
        let too_long = "n".repeat(64);
        check(
            qualified_name,
            &["a", "A_b.c-1", "example.com/a", &name],
            &["", "/", "a/", "/a", "a/b/c", "-a", "a b", "Example.com/a", &too_long, "a\n"],
        );
        check(label_value, &["", "a", "A_b.c-1", &name], &["-", "a ", ".a", "a/b", &too_long]);
        assert!(is_domain_prefixed("zoneward.dev/Spill") && !is_domain_prefixed("Spill"));
    }

    #[test]
    fn port_names_and_path_steps_have_their_own_rules() {
        check(
            port_name,
            &["http", "a", "1a", "http-metrics", "a23456789012345"],
            &["", "80", "-a", "a-", "a--b", "Http", "a234567890123456", "a_b"],
        );
        check(path_segment, &["a", "A b", "..."], &["", ".", "..", "a/b", "a%b"]);
    }

    #[test]
    fn long_values_are_truncated_in_messages() {
        let reason = dns_label(&"x".repeat(100_000)).unwrap();
        assert!(reason.len() < 400, "{}", reason.len());
    }
}
