//! Removes secrets from text: values that are known to be secret, and what looks like one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{LazyLock, OnceLock};

use cluster::Connection;
use regex::{Captures, Regex, RegexBuilder};
use serde_json::Value;

const REMOVED: &str = "(removed)";
/// Shorter values are words that occur elsewhere.
const SHORTEST: usize = 6;
/// Bound of the known values.
const MOST: usize = 20_000;
/// Bytes of their pattern in memory.
const LARGEST_PATTERN: usize = 4 << 30;

/// Secrets that are known by their value.
#[derive(Default)]
pub(super) struct Redactor {
    values: BTreeSet<String>,
    /// One pattern for all values: a search for each would take minutes with the Secrets of a large cluster.
    pattern: OnceLock<Option<Regex>>,
}

impl Redactor {
    /// Remembers a secret, and its form in base64 and in other escapes.
    pub(super) fn learn(&mut self, value: &str) {
        let value = value.trim();
        if value.len() < SHORTEST || self.values.len() >= MOST {
            return;
        }
        self.pattern = OnceLock::new();
        self.values.insert(value.to_owned());
        // Keys of several lines are also found line by line.
        for line in value.lines().map(str::trim).filter(|line| line.len() >= 16 && !line.starts_with("-----"))
        {
            self.values.insert(line.to_owned());
        }
        let escaped = Value::from(value).to_string();
        let escaped = escaped.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(value);
        if escaped != value {
            self.values.insert(escaped.to_owned());
        }
    }

    /// Remembers a value of a Secret or kubeconfig, which is base64.
    pub(super) fn learn_base64(&mut self, encoded: &str) {
        self.learn(encoded);
        if let Some(decoded) = decode(encoded).and_then(|bytes| String::from_utf8(bytes).ok()) {
            self.learn(&decoded);
        }
    }

    /// The text without secrets, and how many were removed.
    pub(super) fn redact(&self, text: &str) -> (String, usize) {
        let mut count = 0;
        let mut text = text.to_owned();
        if let Some(pattern) = self.pattern.get_or_init(|| any_of(&self.values)) {
            let replaced = pattern.replace_all(&text, |_: &Captures<'_>| {
                count += 1;
                REMOVED
            });
            text = replaced.into_owned();
        }
        for (pattern, kept) in PATTERNS.iter() {
            let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
                count += 1;
                let before = if *kept { found.get(1).map_or("", |part| part.as_str()) } else { "" };
                format!("{before}{REMOVED}")
            });
            text = replaced.into_owned();
        }
        (text, count)
    }

    pub(super) fn text(&self, text: &str) -> String {
        self.redact(text).0
    }
}

/// Matches each of the values, the longest first: one may contain another.
fn any_of(values: &BTreeSet<String>) -> Option<Regex> {
    let mut values: Vec<&String> = values.iter().collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    let literals: Vec<String> = values.iter().map(|value| regex::escape(value)).collect();
    if literals.is_empty() {
        return None;
    }
    let built = RegexBuilder::new(&literals.join("|")).size_limit(LARGEST_PATTERN).build();
    Some(built.expect("escaped literals within the bound of values"))
}

/// Patterns of secrets; with `true`, the first group stays.
static PATTERNS: LazyLock<Vec<(Regex, bool)>> = LazyLock::new(|| {
    let words = "token|password|passwd|secret|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|client-key-data|client-certificate-data|certificate-authority-data|cookie";
    let patterns = [
        // Keys and certificates, also within JSON strings.
        (r"(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)".to_owned(), false),
        // The rest of one whose beginning is not in the log.
        (r"(?m)(?:^[A-Za-z0-9+/=]{16,}\r?\n)+-----END [A-Z0-9 ]+-----".to_owned(), false),
        // JSON Web Tokens, and tokens of bootstrap.
        (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?".to_owned(), false),
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b".to_owned(), false),
        (r#"(?i)(authorization"?\s*[:=]\s*"?)[^\r\n"]+"#.to_owned(), true),
        (r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}".to_owned(), true),
        // Users and passwords in URLs.
        (r"([a-z][a-z0-9+.-]*://)[^/\s@:]+:[^/\s@]+@".to_owned(), true),
        // Flags and fields: --token=x, --token x, "token": "x", password: x. The names of files are no secrets.
        (format!(r#"(?i)(--[a-z0-9-]*(?:{words})(?:=|[ \x00]+))(?:"[^"]*"|[^\s\x00"/-][^\s\x00]*)"#), true),
        (
            format!(
                r#"(?i)("?\b[a-z0-9_.-]*(?:{words})"?\s*[:=]\s*)(?:"(?:[^"\\]|\\.){{4,}}"|[^\s"'{{}}\[\],/]{{6,}})"#
            ),
            true,
        ),
    ];
    let compiled = patterns.into_iter().map(|(pattern, kept)| (Regex::new(&pattern), kept));
    compiled.map(|(regex, kept)| (regex.expect("a constant"), kept)).collect()
});

fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()
}

/// Learns the credentials of this process: those of the kubeconfig and of a pod's service account.
pub(super) fn learn_credentials(connection: &Connection, redactor: &mut Redactor) {
    let mut files: Vec<PathBuf> = connection.kubeconfig.iter().cloned().collect();
    if let Some(variable) = std::env::var_os("KUBECONFIG") {
        files.extend(std::env::split_paths(&variable));
    }
    files.extend(std::env::home_dir().map(|home| home.join(".kube/config")));
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Ok(value) = serde_saphyr::from_str::<Value>(&text) {
            learn_kubeconfig(&value, redactor);
        }
    }
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    redactor.learn(&std::fs::read_to_string(token).unwrap_or_default());
}

fn learn_kubeconfig(kubeconfig: &Value, redactor: &mut Redactor) {
    for user in kubeconfig["users"].as_array().into_iter().flatten() {
        let user = &user["user"];
        for field in ["token", "password"] {
            redactor.learn(user[field].as_str().unwrap_or_default());
        }
        for field in ["client-key-data", "client-certificate-data"] {
            redactor.learn_base64(user[field].as_str().unwrap_or_default());
        }
        if let Some(file) = user["tokenFile"].as_str() {
            redactor.learn(&std::fs::read_to_string(file).unwrap_or_default());
        }
        for variable in user["exec"]["env"].as_array().into_iter().flatten() {
            redactor.learn(variable["value"].as_str().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_goes_and_the_rest_stays() {
        let jwt = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbmF0dXJl";
        let redactor = Redactor::default();
        for (text, expected) in [
            (format!("sent {jwt} now"), "sent (removed) now"),
            ("Authorization: Bearer abcdef123456".to_owned(), "Authorization: (removed)"),
            ("with bearer abcdef123456 in it".to_owned(), "with bearer (removed) in it"),
            ("https://user:pass@host/x".to_owned(), "https://(removed)host/x"),
            (
                "zoneward up --token=s3cret-value --zone a".to_owned(),
                "zoneward up --token=(removed) --zone a",
            ),
            (
                "zoneward up --token s3cret-value --zone a".to_owned(),
                "zoneward up --token (removed) --zone a",
            ),
            (
                r#"{"password": "hunter22", "zone": "a"}"#.to_owned(),
                r#"{"password": (removed), "zone": "a"}"#,
            ),
            ("db_password=hunter22".to_owned(), "db_password=(removed)"),
            (
                "x -----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY----- y".to_owned(),
                "x (removed) y",
            ),
            ("MHcCAQEEIIGxhbnRlZGtl\n-----END EC PRIVATE KEY-----\nrest".to_owned(), "(removed)\nrest"),
            ("--tls-private-key-file /etc/tls.key".to_owned(), "--tls-private-key-file /etc/tls.key"),
            ("tokens are checked by the API".to_owned(), "tokens are checked by the API"),
        ] {
            assert_eq!(redactor.text(&text), expected, "{text}");
        }
    }

    #[test]
    fn known_values_go_wherever_they_are() {
        let mut redactor = Redactor::default();
        redactor.learn_base64("cGxhaW4gdmFsdWUgd2l0aCAicXVvdGVzIg==");
        let (text, count) =
            redactor.redact(r#"a plain value with "quotes" b cGxhaW4gdmFsdWUgd2l0aCAicXVvdGVzIg== c plain value with \"quotes\" d"#);
        assert_eq!((text.as_str(), count), ("a (removed) b (removed) c (removed) d", 3));
        for number in 0..4_000 {
            redactor.learn(&format!("value-{number:06}"));
        }
        assert_eq!(redactor.text("value-003999 value-000000 value-x"), "(removed) (removed) value-x");
        redactor.learn("short");
        assert_eq!(redactor.text("short words stay"), "short words stay");
    }
}
