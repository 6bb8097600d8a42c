//! How names, label keys and label values are spelled.
//!
//! Each rule returns nothing for a good text, and for a bad one the reason with an example of the right form.

use super::field::quoted;

/// Says why a text is badly spelled, or nothing.
pub(super) type Rule = fn(&str) -> Option<String>;

const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;
const MAX_PORT_NAME: usize = 15;

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether every byte is fit for the middle, and the first and the last are also fit for the ends.
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

/// The parts of a subdomain may be longer than a label; only the whole is limited.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_lower_word)
}

/// RFC 1123: the name of a namespace, a port, a host.
pub(super) fn dns_label(text: &str) -> Option<String> {
    (!is_dns_label(text)).then(|| {
        format!(
            "{} is not a DNS label: up to 63 characters out of a-z, 0-9 and '-', a letter or digit first and \
             last, as my-name or 8-ball",
            quoted(text)
        )
    })
}

/// DNS labels with dots between them; the name of most objects.
pub(super) fn dns_subdomain(text: &str) -> Option<String> {
    (!is_dns_subdomain(text)).then(|| {
        format!(
            "{} is not a DNS name: up to 253 characters, parts out of a-z, 0-9 and '-' with dots between \
             them, each part with a letter or digit first and last, as web.example.com",
            quoted(text)
        )
    })
}

/// A DNS name of at least two labels, with or without the final dot.
pub(super) fn fully_qualified_domain(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let good = is_dns_subdomain(name) && name.contains('.') && name.split('.').all(is_dns_label);
    (!good).then(|| {
        format!("{} is not a full domain name: at least two DNS labels, as web.example.com", quoted(text))
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
            "{} is not a qualified name: up to 63 characters out of letters, digits, '-', '_' and '.', a \
             letter or digit first and last, with or without a DNS name and a slash before it, as my.name or \
             example.com/my-name",
            quoted(text)
        )
    })
}

/// Whether the text is `domain/name`.
pub(super) fn is_domain_prefixed(text: &str) -> bool {
    text.contains('/') && is_qualified_name(text)
}

/// The value of a label; empty is one.
pub(super) fn label_value(text: &str) -> Option<String> {
    (!text.is_empty() && !is_name_part(text)).then(|| {
        format!(
            "{} is not a label value: empty, or up to 63 characters out of letters, digits, '-', '_' and '.' \
             with a letter or digit first and last, as my_value.1",
            quoted(text)
        )
    })
}

/// The name of a container's port (RFC 6335).
pub(super) fn port_name(text: &str) -> Option<String> {
    let good = text.len() <= MAX_PORT_NAME
        && is_lower_word(text)
        && !text.contains("--")
        && text.bytes().any(|b| b.is_ascii_lowercase());
    (!good).then(|| {
        format!(
            "{} is not the name of a port: up to 15 characters out of a-z, 0-9 and single '-', at least one \
             letter, no '-' first or last, as http-metrics (a number is written without quotes)",
            quoted(text)
        )
    })
}

/// One step of a path on the API server.
pub(super) fn path_segment(text: &str) -> Option<String> {
    let bad = text.is_empty() || matches!(text, "." | "..") || text.contains(['/', '%']);
    bad.then(|| format!("{} cannot stand in a path: not empty, not '.' or '..', no '/' or '%'", quoted(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: Rule, good: &[&str], bad: &[&str]) {
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
    fn a_very_long_text_is_cut_in_the_reason() {
        let reason = dns_label(&"x".repeat(100_000)).unwrap();
        assert!(reason.len() < 400, "{}", reason.len());
    }
}
