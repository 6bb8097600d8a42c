//! Query strings and form bodies.

/// Longer values are cut: they name nothing.
const MAX_VALUE: usize = 253;
/// More pairs are ignored.
const MAX_PAIRS: usize = 32;

/// Decoded pairs of a query or of a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryPairs(Vec<(String, String)>);

impl QueryPairs {
    pub fn parse(text: &str) -> Self {
        Self::parse_up_to(text, MAX_VALUE)
    }

    /// With longer values, for the token of a form.
    pub fn parse_up_to(text: &str, longest: usize) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(MAX_PAIRS);
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key, MAX_VALUE), decoded(value, longest))
        };
        Self(pairs.map(pair).collect())
    }

    /// The first value of a key; `None` if it is missing or empty.
    pub fn value(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }
}

fn decoded(text: &str, longest: usize) -> String {
    let mut bytes = Vec::with_capacity(text.len().min(longest));
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if bytes.len() >= longest {
            break;
        }
        let hex = |byte: u8| char::from(byte).to_digit(16);
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut ahead = rest.clone();
                match (ahead.next().and_then(hex), ahead.next().and_then(hex)) {
                    (Some(high), Some(low)) => {
                        bytes.push((high * 16 + low) as u8);
                        rest = ahead;
                    }
                    _ => bytes.push(b'%'),
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Percent-encoding of a value.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// A path with its parameters; those without a value are left out.
pub(crate) fn link(path: &str, pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = given.map(|(key, value)| format!("{key}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_their_encoding_and_malformed_ones_do_no_harm() {
        for value in ["cart", "a b&c=d%", "zone-a/ü<>\"'", "100%"] {
            let pairs = QueryPairs::parse(&format!("q={}", encoded(value)));
            assert_eq!(pairs.value("q"), Some(value));
        }
        for (text, value) in
            [("q=%", "%"), ("q=%zz", "%zz"), ("q=%4", "%4"), ("q=a+b", "a b"), ("q=%ff", "\u{fffd}")]
        {
            assert_eq!(QueryPairs::parse(text).value("q"), Some(value), "{text}");
        }
        assert_eq!(QueryPairs::parse("q=&&=&x").value("q"), None);
        assert_eq!(
            QueryPairs::parse(&format!("q={}", "a".repeat(9_999))).value("q").map(str::len),
            Some(MAX_VALUE)
        );
        assert_eq!(link("/services", &[("q", "a b"), ("sort", "")]), "/services?q=a%20b");
    }
}
