//! Values of the what-if flags: `--traffic`, `--set` and `--scale`.

use std::path::PathBuf;
use std::str::FromStr;

use plan::hints::Mechanism;
use sim::what_if::MECHANISMS;

use cluster::object_name::ObjectName;

/// `--traffic`, in GB per month.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficVolume {
    /// Per Service, from all zones.
    Total(f64),
    /// Per Service, by source zone.
    PerZone(Vec<(String, f64)>),
    /// A file with metrics of the nodes.
    Scrape(PathBuf),
}

impl TrafficVolume {
    /// Traffic per Service, if it is the same for each.
    pub(super) fn total(&self) -> Option<f64> {
        match self {
            Self::Total(gb) => Some(*gb),
            Self::PerZone(zones) => Some(zones.iter().map(|(_, gb)| gb).sum()),
            Self::Scrape(_) => None,
        }
    }
}

impl FromStr for TrafficVolume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || {
            "expected GB per month, such as 800 or zone-a=500,zone-b=300, or a metrics file, such as nodes.prom"
                .to_owned()
        };
        let number = |text: &str| text.parse::<f64>().ok().filter(|gb| gb.is_finite() && *gb >= 0.0);
        if let Some(total) = number(text) {
            return Ok(Self::Total(total));
        }
        if text.ends_with(".prom") {
            return Ok(Self::Scrape(text.into()));
        }
        let zone = |entry: &str| {
            let (zone, gb) = entry.split_once('=')?;
            Some((zone.to_owned(), number(gb)?))
        };
        let zones =
            text.split(',').map(|entry| zone(entry).ok_or_else(advice)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::PerZone(zones))
    }
}

/// `svc/web=Spill`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MechanismOverride {
    pub service: ObjectName,
    pub mechanism: Mechanism,
}

impl FromStr for MechanismOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || MECHANISMS.iter().map(|m| m.as_str()).collect::<Vec<_>>().join(", ");
        let advice =
            || format!("expected SERVICE=MECHANISM, such as svc/web=Spill; mechanisms are {}", known());
        let (service, name) = text.split_once('=').ok_or_else(advice)?;
        // Names of seed 003.
        let mechanism = match name {
            "Balanced" | "default" => Some(Mechanism::None),
            "Prefer" => Some(Mechanism::PreferZone),
            "Require" => Some(Mechanism::RequireZone),
            name => MECHANISMS.iter().copied().find(|m| m.as_str() == name),
        };
        Ok(Self { service: service.parse()?, mechanism: mechanism.ok_or_else(advice)? })
    }
}

/// `svc/web=+2@zone-b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    pub service: ObjectName,
    /// Replicas to add, or to remove if negative.
    pub by: i64,
    pub zone: String,
}

/// Limit against typing errors.
const MAX_REPLICAS: i64 = 10_000;

impl FromStr for ReplicaChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (service, change) = text.split_once('=')?;
            let (by, zone) = change.split_once('@')?;
            let by = by.parse::<i64>().ok().filter(|by| by.abs() <= MAX_REPLICAS)?;
            Some(Self { service: service.parse().ok()?, by, zone: zone.to_owned() })
        };
        read().ok_or_else(|| {
            format!("expected SERVICE=+N@ZONE, such as svc/web=+2@zone-b, with N up to {MAX_REPLICAS}")
        })
    }
}
