//! Inputs of the simulator: nodes and endpoints per zone.
//!
//! Limits are checked at construction, so that no algorithm can overflow.

pub mod csv;

use std::fmt;

use model::Name;

/// The maximum number of nodes or endpoints of a zone; sums and products of more would overflow.
pub const LARGEST_COUNT: u64 = 10_000_000;
/// The maximum number of zones.
pub const MAX_ZONES: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub name: Name,
    /// The traffic of the zone is proportional to them.
    pub nodes: u64,
    pub endpoints: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationInput {
    id: String,
    zones: Vec<Zone>,
}

/// Why an input cannot be scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// Name of the input; empty if unknown.
    pub id: String,
    /// Line and column, from 1, of an input in a text.
    pub at: Option<(usize, usize)>,
    pub reason: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.at {
            write!(f, "line {line}, column {column}: ")?;
        }
        match self.id.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.id, self.reason),
        }
    }
}

impl SimulationInput {
    /// Zones may come in any order.
    pub fn new(id: &str, mut zones: Vec<Zone>) -> Result<Self, InputError> {
        let reject = |reason: String| Err(InputError { id: id.to_owned(), at: None, reason });
        if zones.is_empty() {
            return reject("no zones: add at least one".to_owned());
        }
        if zones.len() > MAX_ZONES {
            return reject(format!("{} zones: the maximum is {MAX_ZONES}", zones.len()));
        }
        // Simulator 4: byte order, so that zone10 comes before zone2.
        zones.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = zones.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return reject(format!("duplicate zone {}: rename or remove one", pair[0].name));
        }
        if let Some(zone) = zones.iter().find(|z| z.nodes.max(z.endpoints) > LARGEST_COUNT) {
            return reject(format!("zone {}: more than {LARGEST_COUNT} nodes or endpoints", zone.name));
        }
        Ok(Self { id: id.to_owned(), zones })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The zones in the order of their names.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }
}

/// The share of traffic that each zone sends, and the endpoints expected for it (simulator 3 and 4).
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// Endpoints of all zones.
    pub total: u64,
    /// Nodes of the zone divided by all nodes.
    pub ratio: Vec<f64>,
    /// Endpoints of the zone in proportion to its traffic: the rounded ratio times the total, rounded.
    pub expected: Vec<f64>,
}

impl Shares {
    pub(crate) fn of(zones: &[Zone]) -> Self {
        let total: u64 = zones.iter().map(|z| z.endpoints).sum();
        let nodes: u64 = zones.iter().map(|z| z.nodes).sum();
        let ratio = |z: &Zone| if nodes == 0 { 0.0 } else { z.nodes as f64 / nodes as f64 };
        let ratio: Vec<f64> = zones.iter().map(ratio).collect();
        let expected = ratio.iter().map(|r| r * total as f64).collect();
        Self { total, ratio, expected }
    }
}
