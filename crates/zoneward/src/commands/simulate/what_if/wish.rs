//! What a user wants to try, as it is written on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use plan::hints::Mechanism;
use sim::whatif::MECHANISMS;

use cluster::object_name::ObjectName;

/// Gigabytes per month.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// For each Service, from all zones together.
    Total(f64),
    /// For each Service, by the zone that it comes from.
    PerZone(Vec<(String, f64)>),
    /// Out of what the nodes' metrics said.
    Scrape(PathBuf),
}

impl Traffic {
    /// All that a Service gets, where that is the same for each.
    pub(super) fn total(&self) -> Option<f64> {
        match self {
            Self::Total(gb) => Some(*gb),
            Self::PerZone(zones) => Some(zones.iter().map(|(_, gb)| gb).sum()),
            Self::Scrape(_) => None,
        }
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || {
            "write gigabytes per month, as 800 or zone-a=500,zone-b=300, or a file of metrics, as nodes.prom"
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
pub struct Setting {
    /// The Service.
    pub service: ObjectName,
    /// What it should use.
    pub mechanism: Mechanism,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || MECHANISMS.iter().map(|m| m.as_str()).collect::<Vec<_>>().join(", ");
        let advice = || format!("write SERVICE=MECHANISM, as svc/web=Spill; mechanisms are {}", known());
        let (service, name) = text.split_once('=').ok_or_else(advice)?;
        // The names that seed 003 and its readers use.
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
pub struct Scaling {
    /// The Service.
    pub service: ObjectName,
    /// Replicas more, or fewer if negative.
    pub by: i64,
    /// Where.
    pub zone: String,
}

/// More replicas than this are a typing mistake.
const MOST_REPLICAS: i64 = 10_000;

impl FromStr for Scaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (service, change) = text.split_once('=')?;
            let (by, zone) = change.split_once('@')?;
            let by = by.parse::<i64>().ok().filter(|by| by.abs() <= MOST_REPLICAS)?;
            Some(Self { service: service.parse().ok()?, by, zone: zone.to_owned() })
        };
        read().ok_or_else(|| {
            format!("write SERVICE=+N@ZONE, as svc/web=+2@zone-b, with N up to {MOST_REPLICAS}")
        })
    }
}
