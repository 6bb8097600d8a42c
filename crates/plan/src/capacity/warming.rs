//! Slow start by the annotation of a Service: a new endpoint begins with a tenth of its share and takes all of it after eight
//! steps, for all data planes. Where it is on, proxies add no slow start of their own (`model::route::SlowStart`, from a
//! MeshLoadBalancing or a flag of the proxy).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use model::Timestamp;
use model::duration::GoDuration;

use super::WHOLE;

/// The longest `zoneward.dev/slow-start`.
pub const MAX_SLOW_START: Duration = Duration::from_secs(3600);
const STEPS: u64 = 8;
/// The share at the start, in thousandths.
const FIRST: u64 = 100;

/// Reads `zoneward.dev/slow-start` of a Service: zero for none; `None` if it is not a duration from 1s to 1h.
pub fn parse_slow_start(text: &str) -> Option<Duration> {
    let duration = text.parse::<GoDuration>().ok()?.0;
    let is_known = duration.is_zero() || (Duration::from_secs(1)..=MAX_SLOW_START).contains(&duration);
    is_known.then_some(duration)
}

/// The annotation `zoneward.dev/warming`: `60s 10.0.0.1=1794923382,10.0.0.2=1794923390`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warming {
    /// From the start to the full share.
    pub seconds: u64,
    /// When each endpoint became ready, in seconds since the Unix epoch.
    pub since_by_address: BTreeMap<IpAddr, i64>,
}

impl Warming {
    /// `None` without a duration that can be read; addresses that cannot be read are left out.
    pub fn parse(text: &str) -> Option<Self> {
        let (duration, pairs) = text.split_once(' ')?;
        let seconds = duration.parse::<GoDuration>().ok()?.0.min(MAX_SLOW_START).as_secs();
        let pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
        let since_by_address =
            pairs.filter_map(|(ip, since)| Some((ip.parse().ok()?, since.parse().ok()?))).collect();
        (seconds > 0).then_some(Self { seconds, since_by_address })
    }

    pub fn format(&self) -> String {
        let pairs = self.since_by_address.iter().map(|(ip, since)| format!("{ip}={since}"));
        format!("{}s {}", self.seconds, pairs.collect::<Vec<_>>().join(","))
    }
}

/// The share of an endpoint that became ready at `since`, in thousandths, and when that changes. One whose time is in the
/// future has just become ready: clocks differ.
pub fn warmth(since: i64, seconds: u64, now: Timestamp) -> (u32, Option<Timestamp>) {
    let passed = now.unix_seconds().saturating_sub(since).max(0) as u64;
    let step = (passed * STEPS).checked_div(seconds).unwrap_or(STEPS);
    if step >= STEPS {
        return (WHOLE, None);
    }
    let share = FIRST + (u64::from(WHOLE) - FIRST) * step / STEPS;
    let next = since.saturating_add(((step + 1) * seconds).div_ceil(STEPS) as i64);
    (share as u32, Some(Timestamp::from_seconds(next.max(now.unix_seconds() + 1))))
}
