//! The zones of each region: the annotation `zoneward.dev/regions` of slices.
//!
//! An endpoint's hints list at most eight zones. If a region has more, endpoints have no zone hints, and slices carry
//! `zoneward.dev/regions: west=a,b,c;east=d,e`: nodes watch only their own Node, so this tells them the zones of their
//! region.

use std::collections::BTreeMap;
use std::fmt;

use model::Name;

/// The zones of each region. A zone is in one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    region_by_zone: BTreeMap<Name, Name>,
}

impl Regions {
    /// From pairs of zone and region; of two regions of a zone the first by name counts.
    pub fn new(zones: impl IntoIterator<Item = (Name, Name)>) -> Self {
        let mut region_by_zone: BTreeMap<Name, Name> = BTreeMap::new();
        for (zone, region) in zones {
            let known = region_by_zone.entry(zone).or_insert_with(|| region.clone());
            if region < *known {
                *known = region;
            }
        }
        Self { region_by_zone }
    }

    /// Parses the annotation; `None` if malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut zones = Vec::new();
        for region in text.split(';') {
            let (region, listed) = region.split_once('=')?;
            let names = listed.split(',').map(str::trim);
            zones.extend(names.map(|zone| (Name::new(zone), Name::new(region.trim()))));
        }
        let whole = zones.iter().all(|(zone, region)| !zone.is_empty() && !region.is_empty());
        whole.then(|| Self::new(zones))
    }

    /// The region of a zone.
    pub fn of(&self, zone: &str) -> Option<&Name> {
        self.region_by_zone.get(zone)
    }

    /// Whether both zones are known to be in the same region.
    pub fn are_together(&self, a: &str, b: &str) -> bool {
        self.of(a).is_some_and(|region| self.of(b) == Some(region))
    }
}

/// The annotation's value.
impl fmt::Display for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut zones_by_region: BTreeMap<&Name, Vec<&str>> = BTreeMap::new();
        for (zone, region) in &self.region_by_zone {
            zones_by_region.entry(region).or_default().push(zone);
        }
        for (i, (region, zones)) in zones_by_region.iter().enumerate() {
            let before = if i == 0 { "" } else { ";" };
            write!(f, "{before}{region}={}", zones.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_read_back_as_written() {
        let regions = Regions::parse("west=a,b,c;east=d").unwrap();
        assert_eq!(regions.to_string(), "east=d;west=a,b,c");
        assert_eq!(Regions::parse(&regions.to_string()), Some(regions.clone()));
        assert!(regions.are_together("a", "c") && !regions.are_together("a", "d"));
        assert!(!regions.are_together("x", "x"), "an unknown zone is in no region");
        for malformed in ["", "west", "west=", "=a", "west=a;;"] {
            assert_eq!(Regions::parse(malformed), None, "{malformed}");
        }
    }
}
