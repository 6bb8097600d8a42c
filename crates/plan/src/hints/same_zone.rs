//! `same-node`, `same-zone` and `same-region` (seed 003): the mechanism of each combination.
//!
//! A narrower Require implies the wider levels, and Prefer never leaves a wider Require:
//!
//! | same-node | same-zone | same-region Balanced | same-region Prefer | same-region Require |
//! |---|---|---|---|---|
//! | Balanced | Balanced | None | PreferRegion | RequireRegion |
//! | Balanced | Prefer | PreferZone | PreferZoneRegion | PreferZoneRequireRegion |
//! | Prefer | Balanced | PreferSameNode | PreferNodeRegion | PreferNodeRequireRegion |
//! | Prefer | Prefer | PreferNodeZone | PreferNodeZoneRegion | PreferNodeZoneRequireRegion |
//! | Balanced | Require | RequireZone | RequireZone | RequireZone |
//! | Prefer | Require | PreferNodeRequireZone | PreferNodeRequireZone | PreferNodeRequireZone |
//! | Require | any | RequireNode | RequireNode | RequireNode |

pub mod go_heap;
pub(super) mod prefer;
pub mod rebalance;
pub(super) mod require;

use super::mechanism::Mechanism;

/// How strictly traffic stays at a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyLevel {
    #[default]
    Balanced,
    /// Unless it would overload endpoints.
    Prefer,
    /// Always.
    Require,
}

impl TopologyLevel {
    /// Parses the annotation's value; the caller reports invalid ones (seed 003: any other value means Balanced).
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Balanced" => Some(Self::Balanced),
            "Prefer" => Some(Self::Prefer),
            "Require" => Some(Self::Require),
            _ => None,
        }
    }
}

/// The mechanism of a combination of levels.
pub fn combine(node: TopologyLevel, zone: TopologyLevel, region: TopologyLevel) -> Mechanism {
    use TopologyLevel::{Balanced, Prefer, Require};
    match (node, zone, region) {
        // Seed 003: "Require node would also Require zone and region".
        (Require, _, _) => Mechanism::RequireNode,
        (Balanced, Require, _) => Mechanism::RequireZone,
        (Prefer, Require, _) => Mechanism::PreferNodeRequireZone,
        (Balanced, Balanced, Balanced) => Mechanism::None,
        (Balanced, Balanced, Prefer) => Mechanism::PreferRegion,
        (Balanced, Balanced, Require) => Mechanism::RequireRegion,
        (Balanced, Prefer, Balanced) => Mechanism::PreferZone,
        (Balanced, Prefer, Prefer) => Mechanism::PreferZoneRegion,
        (Balanced, Prefer, Require) => Mechanism::PreferZoneRequireRegion,
        (Prefer, Balanced, Balanced) => Mechanism::PreferSameNode,
        (Prefer, Balanced, Prefer) => Mechanism::PreferNodeRegion,
        (Prefer, Balanced, Require) => Mechanism::PreferNodeRequireRegion,
        (Prefer, Prefer, Balanced) => Mechanism::PreferNodeZone,
        (Prefer, Prefer, Prefer) => Mechanism::PreferNodeZoneRegion,
        (Prefer, Prefer, Require) => Mechanism::PreferNodeZoneRequireRegion,
    }
}
