//! The expected share of traffic from each zone: the annotation `zoneward.dev/demand`.

use std::fmt;
use std::str::FromStr;

use model::Name;

use super::PARTS;
use crate::hints::topology::{ClusterTopology, ZoneTopology, ZoneWeight};

/// Shares per zone in 1/256, with sum 256: `za=103,zb=77,zc=76`.
///
/// In a cluster with several regions a zone is written `region/zone=103`, since a consumer reads only its own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillDemand {
    /// Sorted by zone name.
    zones: Vec<ZoneDemand>,
}

/// The demand of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneDemand {
    /// Only if the cluster has several; zones without a region label share one without a name.
    pub region: Option<Name>,
    pub zone: Name,
    /// In 1/256; 0 for a zone without ready nodes.
    pub share: u16,
}

/// An invalid demand annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandError(String);

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
        let shares = shares(&weights)?;
        let has_regions = zones.windows(2).any(|pair| pair[0].region != pair[1].region);
        let zone = |(z, share): (&ZoneTopology, u16)| ZoneDemand {
            region: z.region.clone().filter(|_| has_regions),
            zone: z.name.clone(),
            share,
        };
        Some(Self { zones: zones.iter().zip(shares).map(zone).collect() })
    }

    /// Sorted by name.
    pub fn zones(&self) -> &[ZoneDemand] {
        &self.zones
    }

    pub fn parse(text: &str) -> Result<Self, DemandError> {
        text.parse()
    }

    /// Whether `other` has the same zones and no share differs by more than `parts`.
    pub fn is_near(&self, other: &Self, parts: u16) -> bool {
        let near = |(a, b): (&ZoneDemand, &ZoneDemand)| {
            a.zone == b.zone && a.region == b.region && a.share.abs_diff(b.share) <= parts
        };
        self.zones.len() == other.zones.len() && self.zones.iter().zip(&other.zones).all(near)
    }

    fn has_regions(&self) -> bool {
        self.zones.iter().any(|z| z.region.is_some())
    }
}

/// Rounds by largest remainders; ties by name.
fn shares(weights: &[u64]) -> Option<Vec<u16>> {
    let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if total == 0 {
        return None;
    }
    let scaled = |w: &u64| u128::from(*w) * u128::from(PARTS);
    let mut shares: Vec<u128> = weights.iter().map(|w| scaled(w) / total).collect();
    let left = u128::from(PARTS) - shares.iter().sum::<u128>();
    let mut by_loss: Vec<usize> = (0..weights.len()).collect();
    by_loss.sort_by_key(|at| std::cmp::Reverse(scaled(&weights[*at]) % total));
    for at in by_loss.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        shares[at] += 1;
    }
    Some(shares.into_iter().map(|s| u16::try_from(s).unwrap_or(u16::MAX)).collect())
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
        if sum != PARTS {
            return Err(DemandError(format!("the shares add up to {sum} instead of {PARTS}")));
        }
        Ok(Self { zones })
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
