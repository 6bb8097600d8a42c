//! `same-node`, `same-zone` and `same-region` (seed 003) -> one mechanism.
//!
//! A narrower Require also requires the wider levels, and a Prefer never goes past a wider Require:
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

use super::mechanism::Mechanism;

/// How much traffic is bound to a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Not at all.
    #[default]
    Balanced,
    /// As far as it does no harm.
    Prefer,
    /// Without exception.
    Require,
}

impl Level {
    /// Reads the annotation's value. Seed 003: any other value is taken as Balanced, which is up to the caller to say.
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
pub fn combine(node: Level, zone: Level, region: Level) -> Mechanism {
    use Level::{Balanced, Prefer, Require};
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
