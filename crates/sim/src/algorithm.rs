//! The algorithms: functions from zones to groups of endpoints.
//!
//! Those of the published tool follow it bit for bit (simulator 4); `local`, `prefer` and `spill` are the functions
//! of the controllers.

mod best;
mod opt;
mod prefer;
mod shared;
mod shared_global;
mod spill;
mod weighted;

use std::fmt;
use std::str::FromStr;

use plan::hints::same_zone::rebalance::{ZoneLoad, rebalance_zones};

use crate::input::Zone;
use crate::metrics::{ScoreMetrics, ScoreWeights, measure};
use crate::slice_group::{SliceGroup, by_label};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// One group for all zones: the default of a Service.
    Balanced,
    /// Seed 003's recommendation; with a starting threshold of its own as `local-2x`.
    Local(Option<usize>),
    /// Zones that lack endpoints share groups (seed 003).
    LocalShared,
    /// Exact shares by weights (seed 003).
    LocalWeighted,
    /// The remainder is shared by all (seed 003).
    LocalOpt,
    /// 40 % of the surplus of a zone goes to a group for all.
    SharedGlobal,
    /// The surplus of a zone goes to the other zones.
    SharedMultizone,
    /// `same-zone: Prefer` as in the controller, without hysteresis.
    Prefer,
    /// Spill as in nodes, with exact demand.
    Spill,
    /// The highest score of all partitions of whole zones without overload.
    Best,
}

/// In the order of the help.
pub const ALL: &[(&str, Algorithm)] = &[
    ("balanced", Algorithm::Balanced),
    ("local", Algorithm::Local(None)),
    ("local-1x", Algorithm::Local(Some(1))),
    ("local-2x", Algorithm::Local(Some(2))),
    ("local-3x", Algorithm::Local(Some(3))),
    ("local-4x", Algorithm::Local(Some(4))),
    ("local-5x", Algorithm::Local(Some(5))),
    ("local-shared", Algorithm::LocalShared),
    ("local-weighted", Algorithm::LocalWeighted),
    ("local-opt", Algorithm::LocalOpt),
    ("shared-global", Algorithm::SharedGlobal),
    ("shared-multizone", Algorithm::SharedMultizone),
    ("prefer", Algorithm::Prefer),
    ("spill", Algorithm::Spill),
    ("best", Algorithm::Best),
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlgorithmSettings {
    /// Minimum average number of endpoints per zone for `local` (seed 003: 3).
    pub starting_threshold: usize,
    /// Maximum overload of an endpoint for `local` and `local-shared` (seed 003: 50 %).
    pub overload_threshold: f64,
    pub weights: ScoreWeights,
}

impl Default for AlgorithmSettings {
    fn default() -> Self {
        Self { starting_threshold: 3, overload_threshold: 0.5, weights: ScoreWeights::default() }
    }
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(_, a)| *a == self).map_or("local", |(name, _)| name)
    }

    /// Sorted by label.
    pub fn groups(self, zones: &[Zone], settings: &AlgorithmSettings) -> Vec<SliceGroup> {
        let groups = match self {
            Self::Balanced => None,
            Self::Local(start) => local_groups(zones, start.unwrap_or(settings.starting_threshold), settings),
            Self::LocalShared => shared::groups(zones, settings.overload_threshold),
            Self::LocalWeighted => Some(weighted::groups(zones)),
            Self::LocalOpt => Some(opt::groups(zones)),
            Self::SharedGlobal => shared_global::groups(zones, 0.4, shared_global::Reach::All),
            Self::SharedMultizone => shared_global::groups(zones, 1.0, shared_global::Reach::Needy),
            Self::Prefer => prefer::groups(zones),
            Self::Spill => spill::groups(zones),
            Self::Best => best::groups(zones, &settings.weights),
        };
        by_label(groups.unwrap_or_else(|| vec![SliceGroup::global(zones)]))
    }

    /// `None` if some zone reaches no endpoint.
    pub fn measure(self, zones: &[Zone], settings: &AlgorithmSettings) -> Option<ScoreMetrics> {
        measure(zones, &self.groups(zones, settings), &settings.weights)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(Some(start)) => write!(f, "local-{start}x"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ALL.iter().find(|(name, _)| *name == text).map(|(_, a)| *a);
        known.ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown algorithm; known are {}", names.join(", "))
        })
    }
}

/// The function of the controller.
fn local_groups(zones: &[Zone], start: usize, settings: &AlgorithmSettings) -> Option<Vec<SliceGroup>> {
    let load =
        |z: &Zone| ZoneLoad { nodes: z.nodes, endpoints: usize::try_from(z.endpoints).unwrap_or(usize::MAX) };
    let loads: Vec<ZoneLoad> = zones.iter().map(load).collect();
    let groups = rebalance_zones(&loads, start, settings.overload_threshold)?;
    Some(from_table(zones, &groups))
}

/// One group per zone from `table[receiver][giver]`.
fn from_table(zones: &[Zone], table: &[Vec<usize>]) -> Vec<SliceGroup> {
    let group = |(zone, counts): (usize, &Vec<usize>)| SliceGroup {
        composition: counts.iter().map(|n| *n as u64).collect(),
        ..SliceGroup::own(zones, zone, 0)
    };
    table.iter().enumerate().map(group).collect()
}
