//! The drain of a zone in the annotation `zoneward.dev/drain`: `zone-a=100%@1794923382+300..1794926982` moves all traffic
//! away from zone-a in ten steps of 30 seconds, until the last time, when it returns.

use std::fmt;
use std::str::FromStr;

use model::{Name, Timestamp};

use super::WHOLE;

const STEPS: u64 = 10;

/// When and how much of a zone's traffic is moved away. Times are seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainWindow {
    /// What is moved at the end of the steps.
    pub percent: u32,
    pub start: i64,
    /// Length of all steps.
    pub over_seconds: u64,
    pub until: i64,
}

impl DrainWindow {
    /// The share that is moved away at a time, in thousandths, and when that changes.
    pub fn share_at(&self, now: Timestamp) -> (u32, Option<Timestamp>) {
        let now = now.unix_seconds();
        if now >= self.until {
            return (0, None);
        }
        let at = |time: i64| Some(Timestamp::from_seconds(time.min(self.until).max(now + 1)));
        if now < self.start {
            return (0, at(self.start));
        }
        let passed = (now - self.start) as u64;
        let step =
            (passed * STEPS).checked_div(self.over_seconds).map_or(STEPS, |step| (step + 1).min(STEPS));
        let share = u64::from(self.percent.min(100)) * u64::from(WHOLE) / 100 * step / STEPS;
        let next = match step {
            STEPS => self.until,
            step => self.start + (step * self.over_seconds).div_ceil(STEPS) as i64,
        };
        (share as u32, at(next))
    }
}

impl fmt::Display for DrainWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%@{}+{}..{}", self.percent, self.start, self.over_seconds, self.until)
    }
}

impl FromStr for DrainWindow {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let read = || {
            let (percent, rest) = text.split_once("%@")?;
            let (start, rest) = rest.split_once('+')?;
            let (over, until) = rest.split_once("..")?;
            Some(Self {
                percent: percent.parse().ok().filter(|percent| *percent <= 100)?,
                start: start.parse().ok()?,
                over_seconds: over.parse().ok().filter(|over| *over <= 86_400)?,
                until: until.parse().ok()?,
            })
        };
        read().ok_or(())
    }
}

/// The zones of an annotation; what cannot be read is left out.
pub fn drains(text: &str) -> impl Iterator<Item = (Name, DrainWindow)> {
    let pairs = text.split(',').filter_map(|pair| pair.rsplit_once('='));
    pairs.filter_map(|(zone, window)| Some((Name::new(zone), window.parse().ok()?)))
}

/// The annotation for these zones.
pub fn format_drains(zones: &[(Name, DrainWindow)]) -> String {
    zones.iter().map(|(zone, window)| format!("{zone}={window}")).collect::<Vec<_>>().join(",")
}
