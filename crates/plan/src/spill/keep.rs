//! The keep factor: the annotation `zoneward.dev/keep`.

use std::fmt;
use std::str::FromStr;

use model::Name;

use super::{DemandError, ZoneCapacity};
use crate::capacity::format_thousandths;

/// Factors are in thousandths.
pub(super) const SCALE: u64 = 1_000;
/// A zone with a hundredth of the endpoints may keep all traffic: more changes nothing.
const MAX_FACTOR: u64 = 100 * SCALE;

/// How much more than the fair share an endpoint may get: `1.42/24` is 1.42 times the fair share of 24 endpoints.
///
/// With fewer endpoints the fair share is larger and the load that they have proved is not, so the factor shrinks, down to
/// 1; consumers need no new annotation for that. `1.42/24 spread=zb,zc` lists zones whose demand is not known: their
/// traffic is spread over all endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillKeep {
    thousandths: u64,
    endpoints: ZoneCapacity,
    /// Sorted.
    spread: Vec<Name>,
}

impl SpillKeep {
    /// A factor for this number of endpoints; factors below 1 count as 1.
    pub fn new(factor: f64, endpoints: impl Into<ZoneCapacity>) -> Self {
        let endpoints = Some(endpoints.into()).filter(|count| count.thousandths() > 0);
        let endpoints = endpoints.unwrap_or(ZoneCapacity::from(1));
        // Rounded down, so that rounding never adds load.
        let thousandths =
            if factor.is_nan() { 0 } else { (factor.min(MAX_FACTOR as f64) * 100.0 + 1e-6) as u64 * 10 };
        let thousandths = thousandths.clamp(SCALE, MAX_FACTOR);
        Self { thousandths, endpoints, spread: Vec::new() }
    }

    /// With zones whose demand is not known.
    pub fn with_spread(mut self, mut zones: Vec<Name>) -> Self {
        zones.sort_unstable();
        zones.dedup();
        self.spread = zones;
        self
    }

    pub fn factor(&self) -> f64 {
        self.thousandths as f64 / SCALE as f64
    }

    /// The number of endpoints that the factor is for.
    pub fn endpoints(&self) -> ZoneCapacity {
        self.endpoints
    }

    /// Zones whose demand is not known, sorted.
    pub fn spread(&self) -> &[Name] {
        &self.spread
    }

    pub(super) fn spreads(&self, zone: &Name) -> bool {
        self.spread.binary_search(zone).is_ok()
    }

    /// The factor for another number of endpoints, which is in thousandths, as the factor is.
    pub(super) fn factor_for(&self, endpoints: u64) -> u64 {
        let factor =
            u128::from(self.thousandths) * u128::from(endpoints) / u128::from(self.endpoints.thousandths());
        u64::try_from(factor).unwrap_or(MAX_FACTOR).clamp(SCALE, MAX_FACTOR)
    }

    /// The one that keeps less, for slices that differ while they are written.
    pub fn lower(self, other: Self) -> Self {
        let per_endpoint =
            |keep: &Self| u128::from(keep.thousandths) * u128::from(u64::MAX / keep.endpoints.thousandths());
        if per_endpoint(&other) < per_endpoint(&self) { other } else { self }
    }

    pub fn parse(text: &str) -> Result<Self, DemandError> {
        text.parse()
    }
}

impl fmt::Display for SpillKeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.thousandths / SCALE, self.thousandths % SCALE);
        // At least two places, as factors are written.
        f.write_str(text.strip_suffix('0').unwrap_or(&text))?;
        write!(f, "/{}", format_thousandths(self.endpoints.thousandths()))?;
        for (at, zone) in self.spread.iter().enumerate() {
            write!(f, "{}{zone}", if at == 0 { " spread=" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for SpillKeep {
    type Err = DemandError;

    fn from_str(text: &str) -> Result<Self, DemandError> {
        let malformed =
            || DemandError::new(format!("{text:?}: write it as FACTOR/ENDPOINTS, such as 1.42/24"));
        let (factor, spread) = match text.split_once(" spread=") {
            Some((factor, zones)) => (factor, zones.split(',').map(Name::new).collect()),
            None => (text, Vec::new()),
        };
        if spread.iter().any(|zone: &Name| zone.is_empty()) {
            return Err(malformed());
        }
        let (factor, endpoints) = factor.split_once('/').ok_or_else(malformed)?;
        let factor = thousandths(factor).ok_or_else(malformed)?;
        let endpoints =
            thousandths(endpoints).and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        let endpoints = ZoneCapacity::of_endpoint(endpoints.ok_or_else(malformed)?);
        let thousandths = factor.clamp(SCALE, MAX_FACTOR);
        Ok(Self { thousandths, endpoints, spread: Vec::new() }.with_spread(spread))
    }
}

/// A decimal number with up to three places; no exponents, signs or names.
pub(crate) fn thousandths(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(places) || places.len() > 3 {
        return None;
    }
    let places: u64 = format!("{places:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(SCALE)?.checked_add(places)
}
