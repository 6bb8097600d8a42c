//! Timestamps of objects, in eight bytes.

use std::fmt;
use std::num::NonZeroI64;

/// Nanoseconds since the Unix epoch. Never zero (the epoch itself is stored as one nanosecond), so that
/// `Option<Timestamp>` has the same size.
#[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Timestamp(NonZeroI64);

impl Timestamp {
    /// Saturates outside of the years 1678 to 2262.
    pub fn from_seconds(seconds: i64) -> Self {
        Self::from_nanos(seconds.saturating_mul(1_000_000_000))
    }

    fn from_nanos(nanos: i64) -> Self {
        const ONE: NonZeroI64 = NonZeroI64::new(1).expect("one is not zero");
        Self(NonZeroI64::new(nanos).unwrap_or(ONE))
    }

    /// Parses RFC 3339, e.g. `2026-11-15T10:00:00Z`.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(Self::from)
    }

    /// Whole seconds since the Unix epoch.
    pub fn unix_seconds(self) -> i64 {
        self.0.get().div_euclid(1_000_000_000)
    }

    /// Negative if `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self.0.get() as f64 - earlier.0.get() as f64) / 1e9
    }
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Self {
        let nanos = time.as_nanosecond();
        Self::from_nanos(nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0.get())) {
            Ok(time) => time.fmt(f),
            Err(_) => write!(f, "{} ns after 1970", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_they_were_read() {
        for text in ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20.123456789Z"] {
            assert_eq!(Timestamp::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Timestamp::parse("<now>"), None);
    }

    #[test]
    fn the_distance_of_two_times_has_a_sign() {
        let early = Timestamp::from_seconds(100);
        let late = Timestamp::from_seconds(160);
        assert_eq!(late.seconds_since(early), 60.0);
        assert_eq!(early.seconds_since(late), -60.0);
    }
}
