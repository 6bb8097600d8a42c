//! Durations in the format of Go and Kubernetes: `30s`, `1m30s`, `1h0m0s`, `250ms`, `1.5s`. Negative durations and
//! numbers without a unit, except 0, are invalid.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in the format of Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

/// Parses a duration, for flags of type `Duration`.
pub fn parse(text: &str) -> Result<Duration, String> {
    text.parse().map(|GoDuration(duration)| duration)
}

/// Parses a duration or a number of seconds, for flags that used to be in seconds.
pub fn parse_or_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse(text),
    }
}

const SECOND: u128 = 1_000_000_000;
/// Nanoseconds by unit; `ms` comes before `m`. Both micro signs are in use.
const UNITS: &[(&str, u128)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("h", 3_600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
];
/// Go's duration is a signed 64-bit number of nanoseconds.
const MAX_NANOS: u128 = i64::MAX as u128;
/// Further digits of a fraction are below a nanosecond in every unit.
const MAX_FRACTION_DIGITS: usize = 15;

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a duration, e.g. 500ms, 30s or 1m30s");
        if text == "0" {
            return Ok(Self::default());
        }
        let (mut rest, mut nanos) = (text, 0u128);
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let (number, behind) = rest.split_at(digits);
            let (unit, size) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit)).ok_or_else(wrong)?;
            nanos += scaled(number, *size).ok_or_else(wrong)?;
            rest = &behind[unit.len()..];
        }
        if nanos > MAX_NANOS {
            return Err(format!("{text:?} is too long: at most 2562047h (292 years)"));
        }
        Ok(Self(Duration::new((nanos / SECOND) as u64, (nanos % SECOND) as u32)))
    }
}

/// A decimal number of a unit in nanoseconds.
fn scaled(number: &str, size: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(MAX_FRACTION_DIGITS)];
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some(u128::from(whole) * size + part * size / 10u128.pow(fraction.len() as u32))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            0 => return f.write_str("0s"),
            1..1_000 => return write!(f, "{nanos}ns"),
            1_000..1_000_000 => return write!(f, "{}\u{b5}s", decimal(nanos, 1_000)),
            1_000_000..SECOND => return write!(f, "{}ms", decimal(nanos, 1_000_000)),
            _ => {}
        }
        let (hours, minutes) = (nanos / (3_600 * SECOND), nanos / (60 * SECOND) % 60);
        let seconds = decimal(nanos % (60 * SECOND), SECOND);
        match (hours, minutes) {
            (0, 0) => write!(f, "{seconds}s"),
            (0, minutes) => write!(f, "{minutes}m{seconds}s"),
            (hours, minutes) => write!(f, "{hours}h{minutes}m{seconds}s"),
        }
    }
}

/// Nanoseconds as a decimal number of a unit.
fn decimal(nanos: u128, unit: u128) -> String {
    let (whole, rest) = (nanos / unit, nanos % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let fraction = format!("{rest:0width$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with a unit, e.g. \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, nanos, written) in [
            ("30s", 30 * SECOND, "30s"),
            ("1h0m0s", 3600 * SECOND, "1h0m0s"),
            ("1m30s", 90 * SECOND, "1m30s"),
            ("250ms", SECOND / 4, "250ms"),
            ("1.5s", SECOND * 3 / 2, "1.5s"),
            (".5s", SECOND / 2, "500ms"),
            ("1.s", SECOND, "1s"),
            ("1.5ms", 1_500_000, "1.5ms"),
            ("10us", 10_000, "10µs"),
            ("3μs", 3_000, "3µs"),
            ("7ns", 7, "7ns"),
            ("0.1s", SECOND / 10, "100ms"),
            ("0s", 0, "0s"),
            ("0", 0, "0s"),
            ("24h", 86_400 * SECOND, "24h0m0s"),
            ("90m", 5_400 * SECOND, "1h30m0s"),
            ("1s1s", 2 * SECOND, "2s"),
        ] {
            let read: GoDuration = text.parse().unwrap();
            assert_eq!(read.0.as_nanos(), nanos, "{text}");
            assert_eq!(read.to_string(), written);
        }
        for bad in
            ["", "30", "s", "-1s", "1x", "1e4h", "half an hour", "1..5s", ".s", " 1s", "1d", "3000000h"]
        {
            assert!(bad.parse::<GoDuration>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_number_of_seconds_is_taken_only_where_it_always_was() {
        assert_eq!(parse_or_seconds("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_or_seconds("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("90"), Err("\"90\" is not a duration, e.g. 500ms, 30s or 1m30s".to_owned()));
    }

    #[test]
    fn a_number_in_a_file_is_refused_with_what_to_write() {
        let error = serde_json::from_str::<GoDuration>("30").unwrap_err().to_string();
        assert!(error.contains("expected a duration with a unit, e.g. \"30s\""), "{error}");
        let read: GoDuration = serde_json::from_str("\"1h\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"1h0m0s\"");
    }
}
