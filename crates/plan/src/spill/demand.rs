//! The expected share of traffic from each zone: the annotation `zoneward.dev/demand`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use model::Name;

use super::{PARTS, SpillKeep};
use crate::hints::topology::{ClusterTopology, ZoneTopology, ZoneWeight};

/// With more zones measured shares are in [`FINE_PARTS`]: at 1/256, the share of a zone with 1 % is off by up to a fifth.
const COARSE_ZONES: usize = 16;
const FINE_PARTS: u64 = 65_536;

/// Shares per zone in 1/256, with sum 256: `za=103,zb=77,zc=76`; or in 1/65,536, with that sum.
///
/// In a cluster with several regions a zone is written `region/zone=103`, since a consumer reads only its own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillDemand {
    /// Sorted by zone name.
    zones: Vec<ZoneDemand>,
    /// The sum of the shares.
    parts: u64,
    /// How much more than its fair share an endpoint may get from its own zone: an annotation of its own.
    keep: Option<SpillKeep>,
}

/// The demand of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneDemand {
    /// Only if the cluster has several; zones without a region label share one without a name.
    pub region: Option<Name>,
    pub zone: Name,
    /// In parts of the demand; 0 for a zone without ready nodes.
    pub share: u32,
}

/// An invalid annotation of Spill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandError(String);

impl DemandError {
    pub(super) fn new(message: String) -> Self {
        Self(message)
    }
}

impl fmt::Display for DemandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DemandError {}

impl SpillDemand {
    /// By the CPU of ready nodes. `None` if there is no zone.
    pub fn from_topology(topology: &ClusterTopology) -> Option<Self> {
        topology.demand().cloned()
    }

    pub(crate) fn from_zones(zones: &[ZoneTopology]) -> Option<Self> {
        let weights: Vec<u64> = zones.iter().map(|z| z.weight(ZoneWeight::Cpu)).collect();
        let shares = shares(&weights, PARTS)?;
        let has_regions = zones.windows(2).any(|pair| pair[0].region != pair[1].region);
        let zone = |(z, share): (&ZoneTopology, u32)| ZoneDemand {
            region: z.region.clone().filter(|_| has_regions),
            zone: z.name.clone(),
            share,
        };
        Some(Self { zones: zones.iter().zip(shares).map(zone).collect(), parts: PARTS, keep: None })
    }

    /// The same zones with other weights, and without a keep factor. `None` if all weights are zero.
    pub fn with_weights(&self, weight_by_zone: &BTreeMap<Name, f64>) -> Option<Self> {
        let parts = if self.zones.len() > COARSE_ZONES { FINE_PARTS } else { PARTS };
        let weight = |z: &ZoneDemand| weight_by_zone.get(&z.zone).copied().unwrap_or_default().max(0.0);
        let total: f64 = self.zones.iter().map(weight).sum();
        // In 2^-40 of the total, so that rounding is that of integers.
        let scaled = |z: &ZoneDemand| (weight(z) / total * (1_u64 << 40) as f64) as u64;
        let weights: Vec<u64> = self.zones.iter().map(scaled).collect();
        let shares = shares(&weights, parts)?;
        let zones = self.zones.iter().zip(shares).map(|(z, share)| ZoneDemand { share, ..z.clone() });
        Some(Self { zones: zones.collect(), parts, keep: None })
    }

    /// With this keep factor; `None` for an equal load of all endpoints.
    pub fn with_keep(self, keep: Option<SpillKeep>) -> Self {
        Self { keep, ..self }
    }

    pub fn keep(&self) -> Option<&SpillKeep> {
        self.keep.as_ref()
    }

    /// The sum of the shares.
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// The share of a zone as a fraction; 0 if it is not listed.
    pub fn fraction(&self, zone: &str) -> f64 {
        let at = self.zones.binary_search_by(|z| z.zone.as_str().cmp(zone));
        at.map_or(0.0, |at| f64::from(self.zones[at].share) / self.parts as f64)
    }

    /// Sorted by name.
    pub fn zones(&self) -> &[ZoneDemand] {
        &self.zones
    }

    pub fn parse(text: &str) -> Result<Self, DemandError> {
        text.parse()
    }

    /// Whether `other` has the same zones and keep factor, and no share differs by more than `parts`.
    pub fn is_near(&self, other: &Self, parts: u32) -> bool {
        let near = |(a, b): (&ZoneDemand, &ZoneDemand)| {
            a.zone == b.zone && a.region == b.region && a.share.abs_diff(b.share) <= parts
        };
        let is_alike = self.parts == other.parts && self.keep == other.keep;
        is_alike && self.zones.len() == other.zones.len() && self.zones.iter().zip(&other.zones).all(near)
    }

    fn has_regions(&self) -> bool {
        self.zones.iter().any(|z| z.region.is_some())
    }
}

/// Rounds by largest remainders; ties by name.
fn shares(weights: &[u64], parts: u64) -> Option<Vec<u32>> {
    let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if total == 0 {
        return None;
    }
    let scaled = |w: &u64| u128::from(*w) * u128::from(parts);
    let mut shares: Vec<u128> = weights.iter().map(|w| scaled(w) / total).collect();
    let left = u128::from(parts) - shares.iter().sum::<u128>();
    let mut by_loss: Vec<usize> = (0..weights.len()).collect();
    by_loss.sort_by_key(|at| std::cmp::Reverse(scaled(&weights[*at]) % total));
    for at in by_loss.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        shares[at] += 1;
    }
    Some(shares.into_iter().map(|s| u32::try_from(s).unwrap_or(u32::MAX)).collect())
}

impl fmt::Display for SpillDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regional = self.has_regions();
        for (i, z) in self.zones.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            if regional {
                write!(f, "{}/", z.region.as_deref().unwrap_or_default())?;
            }
            write!(f, "{}={}", z.zone, z.share)?;
        }
        Ok(())
    }
}

impl FromStr for SpillDemand {
    type Err = DemandError;

    fn from_str(text: &str) -> Result<Self, DemandError> {
        let mut zones = text.split(',').map(zone_demand).collect::<Result<Vec<_>, _>>()?;
        zones.sort_by(|a, b| a.zone.cmp(&b.zone));
        if let Some(pair) = zones.windows(2).find(|pair| pair[0].zone == pair[1].zone) {
            return Err(DemandError(format!("zone {} is named twice", pair[0].zone)));
        }
        let sum: u64 = zones.iter().map(|z| u64::from(z.share)).sum();
        if sum != PARTS && sum != FINE_PARTS {
            return Err(DemandError(format!("the shares add up to {sum} instead of {PARTS}")));
        }
        Ok(Self { zones, parts: sum, keep: None })
    }
}

fn zone_demand(entry: &str) -> Result<ZoneDemand, DemandError> {
    let malformed = || DemandError(format!("{entry:?}: write it as zone=parts or region/zone=parts"));
    let (place, share) = entry.split_once('=').ok_or_else(malformed)?;
    let share = share.parse().map_err(|_| malformed())?;
    let (region, zone) = place.split_once('/').unwrap_or(("", place));
    if zone.is_empty() {
        return Err(malformed());
    }
    let region = Some(region).filter(|r| !r.is_empty()).map(Name::new);
    Ok(ZoneDemand { region, zone: Name::new(zone), share })
}
