//! The algorithms, each a function from zones to groups.
//!
//! Those of the published tool follow it bit for bit (simulator 4); `local`, `prefer` and `spill` are the functions
//! that the controllers themselves use.

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

use crate::groups::{Group, by_label};
use crate::input::Zone;
use crate::score::{Metrics, ScoreWeights, measure};

/// A way to group endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// One group for all: what a Service does that asks for nothing.
    Balanced,
    /// Seed 003's recommendation; with a starting threshold of its own as `local-2x`.
    Local(Option<usize>),
    /// Zones that lack endpoints share groups (seed 003).
    LocalShared,
    /// Exact shares by weights (seed 003).
    LocalWeighted,
    /// The remainder is shared by all (seed 003).
    LocalOpt,
    /// 40 % of what a zone has too much goes to all.
    SharedGlobal,
    /// What a zone has too much goes to the other zones.
    SharedMultizone,
    /// `same-zone: Prefer` as the controller does it, from a fresh start.
    Prefer,
    /// Spill as nodes do it, with demand that is not rounded.
    Spill,
    /// The highest score of all partitions of whole zones without overload.
    Best,
}

/// Every algorithm by its name, in the order of the help.
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

/// What can be chosen beside the algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// `local` starts at this many endpoints per zone (seed 003: 3).
    pub starting_threshold: usize,
    /// `local` and `local-shared` let no endpoint get more than this above its fair share (seed 003: 50 %).
    pub overload_threshold: f64,
    /// What the parts of the score count.
    pub weights: ScoreWeights,
}

impl Default for Settings {
    fn default() -> Self {
        Self { starting_threshold: 3, overload_threshold: 0.5, weights: ScoreWeights::default() }
    }
}

impl Algorithm {
    /// Its name.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(_, a)| *a == self).map_or("local", |(name, _)| name)
    }

    /// Its groups, in the order of their labels.
    pub fn groups(self, zones: &[Zone], settings: &Settings) -> Vec<Group> {
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
        by_label(groups.unwrap_or_else(|| vec![Group::global(zones)]))
    }

    /// Its metrics, `None` where some zone reaches no endpoint.
    pub fn measure(self, zones: &[Zone], settings: &Settings) -> Option<Metrics> {
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
            format!("no algorithm has that name; known are {}", names.join(", "))
        })
    }
}

/// One function for the controller and for us.
fn local_groups(zones: &[Zone], start: usize, settings: &Settings) -> Option<Vec<Group>> {
    let load =
        |z: &Zone| ZoneLoad { nodes: z.nodes, endpoints: usize::try_from(z.endpoints).unwrap_or(usize::MAX) };
    let loads: Vec<ZoneLoad> = zones.iter().map(load).collect();
    let groups = rebalance_zones(&loads, start, settings.overload_threshold)?;
    Some(from_table(zones, &groups))
}

/// A group per zone out of `table[receiver][giver]`.
fn from_table(zones: &[Zone], table: &[Vec<usize>]) -> Vec<Group> {
    let group = |(zone, counts): (usize, &Vec<usize>)| Group {
        composition: counts.iter().map(|n| *n as u64).collect(),
        ..Group::own(zones, zone, 0)
    };
    table.iter().enumerate().map(group).collect()
}
