//! Lengths of time as Kubernetes configuration writes them: `30s`, `1m30s`, `1h0m0s`, `250ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

/// Longest first, so that `ms` is not read as minutes.
const UNITS: &[(&str, f64)] =
    &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no length of time, as 30s or 1h30m would be");
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Self::default());
        }
        let mut seconds = 0.0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            let (unit, size) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(wrong)?;
            rest = &rest[unit.len()..];
            seconds += number * size;
        }
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| wrong())
    }
}

/// As Go writes it: `1h0m0s`, `30s`, `250ms`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.as_secs();
        if whole == 0 && !self.0.is_zero() {
            return write!(f, "{}ms", self.0.as_secs_f64() * 1e3);
        }
        let (hours, minutes) = (whole / 3600, whole / 60 % 60);
        let seconds = self.0.as_secs_f64() - (whole - whole % 60) as f64;
        match (hours, minutes) {
            (0, 0) => write!(f, "{seconds}s"),
            (0, minutes) => write!(f, "{minutes}m{seconds}s"),
            (hours, minutes) => write!(f, "{hours}h{minutes}m{seconds}s"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written_as_go_does() {
        for (text, seconds, written) in [
            ("30s", 30.0, "30s"),
            ("1h0m0s", 3600.0, "1h0m0s"),
            ("1m30s", 90.0, "1m30s"),
            ("250ms", 0.25, "250ms"),
            ("1.5s", 1.5, "1.5s"),
            ("0s", 0.0, "0s"),
            ("0", 0.0, "0s"),
            ("24h", 86_400.0, "24h0m0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0.as_secs_f64(), seconds, "{text}");
            assert_eq!(span.to_string(), written);
        }
        for bad in ["", "30", "s", "-1s", "1x", "1e400h", "half an hour"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
