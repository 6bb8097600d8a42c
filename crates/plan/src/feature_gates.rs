//! Feature gates, with the names that Kubernetes gives them.

mod node_gates;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use node_gates::{NodeGates, ReadGates};

/// The gates of traffic distribution. All are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct FeatureGates {
    /// `spec.trafficDistribution` (KEP-4444).
    pub service_traffic_distribution: bool,
    /// PreferSameZone, PreferSameNode and node hints.
    pub prefer_same_traffic_distribution: bool,
    /// The annotations that enable Auto (KEP-2433).
    pub topology_aware_hints: bool,
}

impl FeatureGates {
    /// All gates on, as without flags.
    pub const ALL: Self = Self {
        service_traffic_distribution: true,
        prefer_same_traffic_distribution: true,
        topology_aware_hints: true,
    };

    /// Those of L7 proxies, which have no flag: they obey every hint that a controller writes.
    pub const OF_PROXIES: Self = Self::ALL;
}

/// An invalid list of feature gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateError(String);

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GateError {}

const KNOWN: &str = "ServiceTrafficDistribution, PreferSameTrafficDistribution and TopologyAwareHints";

impl std::str::FromStr for FeatureGates {
    type Err = GateError;

    /// Parses `Name=true,Other=false`; other gates keep their default.
    fn from_str(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::ALL;
        for (name, on) in parse_list(text)? {
            match name.as_str() {
                "ServiceTrafficDistribution" => gates.service_traffic_distribution = on,
                "PreferSameTrafficDistribution" => gates.prefer_same_traffic_distribution = on,
                "TopologyAwareHints" => gates.topology_aware_hints = on,
                other => {
                    return Err(GateError(format!("unknown feature gate {other:?}: supported are {KNOWN}")));
                }
            }
        }
        Ok(gates)
    }
}

/// Parses `Name=true,Other=false` with any names. Booleans are spelled as in Go's flags.
pub fn parse_list(text: &str) -> Result<BTreeMap<String, bool>, GateError> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| GateError(format!("{entry:?}: write it as Name=true or Name=false")))?;
            let on = match value.trim() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(GateError(format!(
                        "{entry:?}: the value of a feature gate is true or false, not {value:?}"
                    )));
                }
            };
            Ok((name.trim().to_owned(), on))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_by_name() {
        let gates: FeatureGates =
            " PreferSameTrafficDistribution=false, TopologyAwareHints=true".parse().unwrap();
        assert!(!gates.prefer_same_traffic_distribution && gates.topology_aware_hints);
        assert_eq!("".parse(), Ok(FeatureGates::ALL));
        for bad in ["TopologyAwareHints", "TopologyAwareHints=maybe", "Topology=true"] {
            assert!(bad.parse::<FeatureGates>().is_err(), "{bad}");
        }
    }
}
