//! Regular expressions of policies: compiled once, bounded in size, anchored at both ends.
//!
//! The engine matches in linear time, so a hostile request cannot slow it down.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use crate::name::Name;

/// A pattern that a path, a header or a query parameter has to match from its first to its last byte.
///
/// Two patterns are equal if their texts are.
#[derive(Clone)]
pub struct Pattern {
    text: Name,
    regex: Arc<Regex>,
}

impl Pattern {
    /// The longest text of a pattern, in bytes.
    pub const LONGEST: usize = 4096;
    /// The largest program that a pattern may become, in bytes.
    pub(super) const LARGEST: usize = 1 << 20;

    /// Compiles a pattern. The error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > Self::LONGEST {
            return Err(format!("a pattern has at most {} bytes, this one {}", Self::LONGEST, text.len()));
        }
        // Unanchored first: `a)|(b` would be valid between the brackets that anchor it.
        compiled(text)?;
        let regex = compiled(&whole(text))?;
        Ok(Self { text: Name::new(text), regex: Arc::new(regex) })
    }

    /// As written in the policy.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.regex.is_match(text)
    }
}

/// The anchored pattern: a full match (semantics 1.6).
pub(super) fn whole(text: &str) -> String {
    format!(r"\A(?:{text})\z")
}

fn compiled(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(Pattern::LARGEST).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("the pattern becomes larger than {limit} bytes: use fewer or smaller repetitions")
        }
        // The first lines show the pattern with an arrow; the last one has the cause.
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default().trim();
            format!("not a regular expression: {}", last.strip_prefix("error: ").unwrap_or(last))
        }
    })
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl PartialOrd for Pattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}
